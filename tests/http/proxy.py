# SPDX-License-Identifier: Apache-2.0
"""Runs HAProxy with deploy/haproxy.cfg before replicas on ports of 127.0.0.1."""

import contextlib
import os
import re
import socket
import subprocess
import tempfile
import time

from server import ROOT

SETTINGS = ROOT / "deploy/haproxy.cfg"


def replace_once(text, pattern, replacement):
    text, count = re.subn(pattern, replacement, text)
    assert count == 1, f"{SETTINGS}: {count} places match {pattern}"
    return text


def adapt(text, bind, replicas, watch):
    """Returns the settings for processes on this machine instead of containers. The exporter listens at a Unix
    socket without a file, which is called `watch`."""
    servers = "\n".join(f"    server attnd{number} 127.0.0.1:{replica}"
                        for number, replica in enumerate(replicas, 1))
    for pattern, replacement in ((r"(?m)^    log stdout .*$", "    log 127.0.0.1:9 local0"),
                                 (r"(?ms)^resolvers dns\n.*?\n\n", ""),
                                 (r"bind :8080", f"bind {bind}"),
                                 (r"bind :8405", f"bind abns@{watch}"),
                                 (r" resolvers dns init-addr none", "")):
        text = replace_once(text, pattern, replacement)
    text, count = re.subn(r"(?m)^    server-template .*$", servers, text)
    assert count == 2, f"{SETTINGS}: {count} backends have replicas"
    return text


@contextlib.contextmanager
def log_socket():
    """Yields a socket of UDP for what HAProxy logs; count_down() reads it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as log:
        log.bind(("127.0.0.1", 0))
        log.setblocking(False)
        log.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
        yield log


def count_down(log):
    """Returns how often HAProxy has logged since the last call that a replica is down."""
    count = 0
    with contextlib.suppress(BlockingIOError):
        while line := log.recv(8192):
            count += b" is DOWN" in line
    return count


def bound_socket():
    """Returns a socket and its port. HAProxy inherits it as `fd@N`, so no other process can take the port."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    return listener, listener.getsockname()[1]


class Proxy:
    """`with Proxy(ports) as proxy:` accepts requests on proxy.port. `timeouts` replaces some, e.g.
    {"client": "1s"}. `limits` replaces other numbers, `changes` other text. What HAProxy logs goes to a
    port of UDP. A replica may be a text that begins with its port, and goes on with options of its line."""

    def __init__(self, replicas, timeouts=None, limits=None, changes=None, log_port=9):
        self.listener, self.port = bound_socket()
        self.watch = f"attnd-proxy-{os.getpid()}-{self.port}"
        settings = adapt(SETTINGS.read_text(), f"fd@{self.listener.fileno()}", replicas, self.watch)
        settings = replace_once(settings, "log 127.0.0.1:9 ", f"log 127.0.0.1:{log_port} ")
        for text, number in (limits or {}).items():
            settings = replace_once(settings, rf"\b{re.escape(text)} \d+", f"{text} {number}")
        for old, new in (changes or {}).items():
            settings = replace_once(settings, re.escape(old), new)
        for name, value in (timeouts or {}).items():
            settings = replace_once(settings, rf"(?m)^    timeout {name} .*$",
                                    f"    timeout {name} {value}")
        self.file = tempfile.NamedTemporaryFile("w", suffix=".cfg")
        self.file.write(settings)
        self.file.flush()

    def __enter__(self):
        self.process = subprocess.Popen(["haproxy", "-db", "-f", self.file.name], stdout=subprocess.DEVNULL,
                                        pass_fds=[self.listener.fileno()])
        for _ in range(1200):
            assert self.process.poll() is None, f"HAProxy has ended with status {self.process.returncode}"
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return self
            except ConnectionRefusedError:
                time.sleep(0.05)
        self.__exit__()
        raise AssertionError("HAProxy does not listen after 60 s")

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.listener.close()
        self.file.close()
