# SPDX-License-Identifier: Apache-2.0
"""Programs that reach attnd through a Unix socket: the Python client, and HAProxy."""

import asyncio
import contextlib
import re
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from http1 import Connection, post_bytes
from proxy import bound_socket, replace_once
from server import ROOT
from test_unix_socket import OTHER, SMALL, as_root, path, start, wait_for_clients  # noqa: F401 (fixtures)

from attnd import AsyncClient, Client

pytestmark = pytest.mark.alone


def test_python_clients_take_the_path(start, path):
    server = start()
    rows = np.random.default_rng(5).standard_normal((3, 100)).astype("f4")

    async def attend():
        async with AsyncClient(f"unix:{path}") as client:
            return await client.attend("d2l", rows, need_weights=True)

    client = Client(f"unix:{path}")
    expected = Client(server.url).attend("d2l", rows, need_weights=True)
    for got in (client.attend("d2l", rows, need_weights=True), asyncio.run(attend())):
        assert all(np.array_equal(a, b) for a, b in zip(got, expected))
    server.stop()
    with pytest.raises(ConnectionError, match=f"^no answer from unix:{path}; start attnd there"):
        client.attend("d2l", rows)


@contextlib.contextmanager
def haproxy(path):
    """Runs HAProxy with the settings of docs/operate.md, but for TLS and paths. Yields its port."""
    page = (ROOT / "docs/operate.md").read_text()
    settings = re.search(r"```\n(frontend public\n.*?)```", page, re.DOTALL)[1]
    listener, port = bound_socket()
    settings = replace_once(settings, r":443 ssl crt \S+ ssl-min-ver TLSv1\.2", f"fd@{listener.fileno()}")
    settings = replace_once(settings, "unix@/run/attnd/attnd.sock", f"unix@{path}")
    file = Path(path).with_name("haproxy.cfg")
    file.write_text("defaults\n    mode http\n    timeout connect 5s\n    timeout client 30s\n"
                    f"    timeout server 30s\n{settings}")
    process = subprocess.Popen(["haproxy", "-db", "-f", file], pass_fds=[listener.fileno()], user=OTHER,
                               group=OTHER, extra_groups=[], stderr=subprocess.DEVNULL)
    listener.close()
    try:
        yield port
    finally:
        process.kill()
        process.wait()


@as_root
@pytest.mark.skipif(shutil.which("haproxy") is None, reason="HAProxy is not installed")
def test_haproxy_of_the_page_names_its_clients(start, path):
    server = start("--trusted-proxy", f"unix:{OTHER}", "--access-log", socket_options=f",group={OTHER}")
    with haproxy(path) as port:
        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(ConnectionRefusedError), Connection(port, source="127.0.0.7") as connection:
                connection.send(post_bytes(SMALL))
                reply = connection.read_reply()
                break
            assert time.monotonic() < deadline, "HAProxy does not listen"
    assert reply.status == 200, reply
    wait_for_clients(server, {"127.0.0.7"})
