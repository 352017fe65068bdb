# SPDX-License-Identifier: Apache-2.0
"""Certificates for tests of TLS, by a certificate authority that only they know."""

import contextlib
import functools
import ssl

import trustme

HOST = "127.0.0.1"
RSA = trustme.KeyType.RSA


@functools.cache
def authority():
    return trustme.CA()


class Certificate:
    """A new certificate of 127.0.0.1 with its key."""

    def __init__(self, **options):
        self.issued = authority().issue_cert(HOST, **options)
        self.der = ssl.PEM_cert_to_DER_cert(self.issued.cert_chain_pems[0].bytes().decode())

    def write(self, cert, key):
        """Writes chain and key where attnd reads them."""
        cert.write_bytes(b"".join(pem.bytes() for pem in self.issued.cert_chain_pems))
        key.write_bytes(self.issued.private_key_pem.bytes())
        key.chmod(0o600)


def client_context():
    """Trusts nothing but the authority of the tests."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority().configure_trust(context)
    return context


def hello():
    """Returns a whole ClientHello, to which the server replies."""
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = client_context().wrap_bio(received, sent, server_hostname=HOST)
    with contextlib.suppress(ssl.SSLWantReadError):
        session.do_handshake()
    return sent.read()
