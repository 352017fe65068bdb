# SPDX-License-Identifier: Apache-2.0
"""socket_cost.py ATTND: the same small requests over TCP on loopback and over a Unix socket.

One server has both addresses, which take turns. Eight connections each send a request, and then each
reads its reply. CPU time is what the scheduler counts for all threads of the server (schedstat)."""
import json
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS, SECONDS, CONNECTIONS = 15, 1, 8
BODY = json.dumps({"model": "d2l", "queries": [[0.5] * 100] * 4, "valid_lens": 3})
WORK = {
    "a request of the idle route": b"GET /v2/health/live HTTP/1.1\r\nHost: attnd\r\n\r\n",
    "a small request": (f"POST /v1/attention HTTP/1.1\r\nHost: attnd\r\nContent-Type: application/json\r\n"
                        f"Content-Length: {len(BODY)}\r\n\r\n{BODY}").encode(),
}


def cpu_seconds(server):
    tasks = Path(f"/proc/{server.pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def connect(place):
    connection = socket.socket(socket.AF_UNIX if isinstance(place, str) else socket.AF_INET)
    connection.connect(place)
    if connection.family == socket.AF_INET:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def read_size(connection, request):
    """Returns the bytes of a reply, which are the same each time but for its id and times."""
    connection.sendall(request)
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, body = data.split(b"\r\n\r\n", 1)
    assert head.startswith(b"HTTP/1.1 200 "), head
    size = int(re.search(rb"(?i)content-length: (\d+)", head)[1])
    while len(body) < size:
        body += connection.recv(65536)
    return size


def read_reply(connection, size):
    data = connection.recv(65536)
    while b"\r\n\r\n" not in data or len(data) - data.index(b"\r\n\r\n") - 4 < size:
        data += connection.recv(65536)


def measure(server, connections, request):
    """Returns microseconds of the server for a request, and requests per second."""
    size, count = read_size(connections[0], request), 0
    cpu, began = cpu_seconds(server), time.perf_counter()
    while (elapsed := time.perf_counter() - began) < SECONDS:
        for connection in connections:
            connection.sendall(request)
        for connection in connections:
            read_reply(connection, size)
        count += len(connections)
    return (cpu_seconds(server) - cpu) / count * 1e6, count / elapsed


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/attnd.sock"
        server = subprocess.Popen([sys.argv[1], "--demo", "--listen", "127.0.0.1:0", "--listen", f"unix:{path}"],
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            port = int(re.search(r"127\.0\.0\.1:(\d+)", server.stdout.readline())[1])
            server.stdout.readline()
            places = {"TCP": ("127.0.0.1", port), "Unix socket": path}
            clients = {name: [connect(place) for _ in range(CONNECTIONS)] for name, place in places.items()}
            for what, request in WORK.items():
                results = {name: [] for name in clients}
                for _ in range(ROUNDS):
                    for name, connections in clients.items():
                        results[name].append(measure(server, connections, request))
                print_results(what, results)
        finally:
            server.terminate()
            server.wait()


def print_results(what, results):
    medians = {name: [statistics.median(column) for column in zip(*rounds)] for name, rounds in results.items()}
    for name, (cpu, rate) in medians.items():
        print(f"{what}, {name}: {cpu:.1f} us of CPU, {rate:.0f} requests/s")
    (tcp_cpu, tcp_rate), (unix_cpu, unix_rate) = medians.values()
    print(f"{what}: {unix_cpu / tcp_cpu:.2f}x the CPU time of TCP, {unix_rate / tcp_rate:.2f}x its requests/s")


main()
