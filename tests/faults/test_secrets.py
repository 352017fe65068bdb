# SPDX-License-Identifier: Apache-2.0
"""Keys and certificates are read again while calls fail. GnuTLS and libtasn1 do not survive every
allocation that fails, so those fail only where attnd reads keys."""

import signal
import time

import pytest

from certificates import Certificate
from fault import ALLOCATIONS, faulty_server, why_not
from http1 import Connection, get_bytes
from test_tls import TlsConnection, pytestmark as tls_marks

pytestmark = [pytest.mark.skipif(bool(why_not()), reason=why_not()), *tls_marks]

LIVE = get_bytes("/v2/health/live")
KEEP = ("keys stay as they were", "certificate stays as it was")


@pytest.fixture
def options(tmp_path):
    cert, key, keys = (tmp_path / name for name in ("cert.pem", "key.pem", "keys"))
    Certificate().write(cert, key)
    keys.write_text("alice:0123456789abcdef\n")
    keys.chmod(0o600)
    return ["--demo", "--workers", "1", "--http-threads", "1", "--api-key-file", str(keys),
            "--tls-cert", str(cert), "--tls-key", str(key)]


def ask(server, kind):
    """Returns the status of a reply over a new connection, or None."""
    try:
        with kind(server.port, timeout=10) as connection:
            connection.send(LIVE)
            reply = connection.read_reply()
            return reply and reply.status
    except OSError:
        return None


@pytest.mark.parametrize("kinds", [("open",), ("read",), ALLOCATIONS])
def test_a_reload_that_fails_keeps_what_was_read(options, kinds):
    """Each call of a reload fails in turn. Keys and certificate stay, or are read all the same."""
    has_tls = kinds != ALLOCATIONS
    with faulty_server(*options[:None if has_tls else 7]) as (server, control):
        def num_lines():
            log = server.read_log()
            return sum(log.count(words) for words in ("info keys ", "info certificate ", *KEEP))

        for nth in range(1, 400):
            expected = num_lines() + 1 + has_tls
            control.arm(kinds, nth)
            server.process.send_signal(signal.SIGHUP)
            deadline = time.monotonic() + 30
            while num_lines() < expected and time.monotonic() < deadline:
                time.sleep(0.002)
            failed = control.disarm()
            assert num_lines() == expected, (nth, control.site)
            assert ask(server, TlsConnection if has_tls else Connection) == 200, (nth, control.site)
            if not failed:
                break
        assert nth > 2 and any(words in server.read_log() for words in KEEP)
