# SPDX-License-Identifier: Apache-2.0
"""A connection that sends exactly the bytes it is given, and reads HTTP/1.1 replies."""

import contextlib
import json
import socket
from dataclasses import dataclass


@dataclass
class Reply:
    status: int
    headers: dict  # names in lower case
    body: bytes

    def json(self):
        return json.loads(self.body)


class Connection:
    """`port` is one of 127.0.0.1, or the path of a Unix socket."""

    def __init__(self, port, timeout=30, source="127.0.0.1"):
        if isinstance(port, str):
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(timeout)
            self.socket.connect(port)
        else:
            self.socket = socket.create_connection(("127.0.0.1", port), timeout, (source, 0))
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.unread = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, data):
        """Sends what the server reads: it may reply and close before it has read everything."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def receive(self):
        """Returns whether bytes arrived: False once the server has closed the connection."""
        try:
            data = self.socket.recv(65536)
        except ConnectionResetError:
            data = b""
        self.unread += data
        return bool(data)

    def read_reply(self, head_only=False):
        """Returns the next reply, or None if the connection was closed instead."""
        while b"\r\n\r\n" not in self.unread:
            if not self.receive():
                assert not self.unread, f"closed in the middle of {self.unread!r}"
                return None
        head, self.unread = self.unread.split(b"\r\n\r\n", 1)
        status_line, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, value in
                   (line.split(":", 1) for line in lines)}
        status = int(status_line.split()[1])
        if headers.get("transfer-encoding") == "chunked":
            return Reply(status, headers, self.read_chunks())
        size = int(headers.get("content-length", 0))
        if head_only or status == 100:
            size = 0
        return Reply(status, headers, self.read_bytes(size))

    def read_bytes(self, size):
        """Returns exactly `size` bytes."""
        pieces = [self.unread]
        missing = size - len(self.unread)
        while missing > 0:
            self.unread = b""
            assert self.receive(), "closed in the middle of a body"
            pieces.append(self.unread)
            missing -= len(self.unread)
        data = b"".join(pieces)
        self.unread = data[size:]
        return data[:size]

    def read_chunks(self):
        """Reads a chunked body to its end (RFC 9112, section 7.1)."""
        chunks = []
        while True:
            while b"\r\n" not in self.unread:
                assert self.receive(), "closed in the middle of a chunk's size"
            line, self.unread = self.unread.split(b"\r\n", 1)
            size = int(line, 16)
            chunks.append(self.read_bytes(size))
            assert self.read_bytes(2) == b"\r\n"
            if size == 0:
                return b"".join(chunks)

    def read_to_end(self, timeout=10):
        """Returns everything until the server closes. It may pause for at most `timeout` s."""
        self.socket.settimeout(timeout)
        while self.receive():
            pass
        return self.unread


@contextlib.contextmanager
def closed_port():
    """Yields a port that refuses connections, of this machine's addresses of both kinds. It is bound meanwhile,
    so no other program can listen there."""
    with socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET) as bound:
        if bound.family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind(("", 0))
        yield bound.getsockname()[1]


def post_bytes(body, *headers, path="/v1/attention"):
    """Returns a complete POST request: the usual headers, then those of `headers`."""
    lines = [f"POST {path} HTTP/1.1", "Host: attnd", "Content-Type: application/json",
             f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def send_unfinished(connection, body, *headers):
    """Sends all of a POST request but its last byte, and waits until the server has its headers."""
    data = post_bytes(body, "Expect: 100-continue", *headers)
    connection.send(data[:-len(body)])
    assert connection.read_reply().status == 100
    connection.send(body[:-1])


def get_bytes(path, *headers):
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: attnd", *headers, "", ""]).encode()
