# SPDX-License-Identifier: Apache-2.0
"""A network that loses and delays packets, and clients that send single bytes."""

import socket
import subprocess
import sys
import time

import pytest

from all_requests import make_requests
from fault import FOLDER, LONG, exchange
from http1 import Connection
from server import BINARY, clean_environment

# One packet in 20, of those that a client or attnd sends.
LOSSES = {
    "netem": "tc qdisc add dev lo root netem loss 5% delay 2ms 2ms",
    "iptables": "iptables -A OUTPUT -o lo -m statistic --mode random --probability 0.05 -j DROP",
}


def in_namespace(script, *arguments, **options):
    return subprocess.run(["unshare", "--net", "sh", "-c", f"ip link set lo up && {script}", "sh",
                           *map(str, arguments)], capture_output=True, text=True, **options)


def find_loss():
    """Returns the command that loses packets here, and why the others do not."""
    reasons = []
    for name, command in LOSSES.items():
        tried = in_namespace(command)
        if tried.returncode == 0:
            return command, reasons
        reasons.append(f"{name}: {(tried.stderr.strip().splitlines() or ['?'])[-1]}")
    return None, reasons


def test_replies_are_the_same_when_packets_are_lost():
    """Client and server are in a network namespace of their own, in a process of its own."""
    loss, reasons = find_loss()
    if loss is None:
        pytest.skip(f"packets cannot be lost here: {'; '.join(reasons)}")
    times = 20 if LONG else 1
    done = in_namespace(f'{loss} && exec "$@"', sys.executable, FOLDER / "lossy_client.py", times,
                        env=clean_environment(BINARY=str(BINARY)), timeout=3600 if LONG else 170)
    assert done.returncode == 0, done.stdout + done.stderr
    print(f"{loss.split()[0]}: {done.stdout.strip()}", *reasons)


@pytest.mark.parametrize("name", ("native", "chunked", "safetensors", "OIP, binary"))
def test_request_in_single_bytes_gets_the_same_reply(start_server, name):
    server = start_server("--demo")
    data, _ = make_requests()[name]
    whole = exchange(server.port, data)
    with Connection(server.port) as client:
        for byte in data:
            client.send(bytes([byte]))
            time.sleep(0.0002)  # so that most are packets of their own
        reply = client.read_reply()
    assert (reply.status, reply.body) == (whole.status, whole.body)
    assert reply.status == 200


def test_reply_that_is_read_in_small_pieces_is_complete(start_server):
    server = start_server("--demo")
    data, _ = make_requests()["streamed reply"]
    whole = exchange(server.port, data)
    with Connection(server.port) as client:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        client.send(data)
        assert client.read_reply().body == whole.body
