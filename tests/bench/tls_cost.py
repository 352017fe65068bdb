# SPDX-License-Identifier: Apache-2.0
"""tls_cost.py ATTND: CPU time of the server for the same requests over plain HTTP and over TLS.

Two servers take turns; wrk sends, and Python opens the new connections. Time is what the scheduler
counts for all threads (schedstat), so other load on the machine changes it little. Needs wrk and the
packages of tests/requirements.txt."""
import http.client
import json
import re
import ssl
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/http"))
from certificates import Certificate, client_context  # noqa: E402

ROUNDS, SECONDS, CONNECTIONS, LARGE = 5, 2, 150, 3
LARGE_BODY = json.dumps({"model": "d2l", "queries": [[0.5] * 100] * 700, "need_weights": True})


def cpu_ns(server):
    """Returns the time of all threads that live."""
    tasks = Path(f"/proc/{server.pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks)


def start(attnd, *options):
    server = subprocess.Popen([attnd, "--demo", "--listen", "127.0.0.1:0", *map(str, options)],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return server, re.search(r"https?://\S+", server.stdout.readline())[0]


def run_wrk(url, *options):
    """Returns how many requests were replied to."""
    output = subprocess.run(["wrk", "-t1", "-c16", f"-d{SECONDS}", *options, url], check=True,
                            capture_output=True, text=True).stdout
    return int(re.search(r"(\d+) requests in", output)[1])


def connect(url):
    host = url.split("//")[1]
    if url.startswith("https"):
        return http.client.HTTPSConnection(host, context=client_context())
    return http.client.HTTPConnection(host)


def open_connections(url):
    for _ in range(CONNECTIONS):
        connection = connect(url)
        connection.request("GET", "/v2/health/live")
        connection.getresponse().read()
        connection.close()
    return CONNECTIONS


def read_large_replies(url):
    """Returns thousands of bytes."""
    connection, size = connect(url), 0
    for _ in range(LARGE):
        connection.request("POST", "/v1/attention", LARGE_BODY, {"Content-Type": "application/json"})
        size += len(connection.getresponse().read())
    return size / 1e3


WORK = {
    "a request of the idle route, us": lambda url: run_wrk(url + "/v2/health/live"),
    "a small request, us": lambda url: run_wrk(url, "-s", str(ROOT / "tests/load/d2l.lua")),
    "a new connection with one request, us": open_connections,
    "1 MB of a large reply, ms": read_large_replies,
}


def main():
    attnd = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        cert, key = Path(folder) / "cert.pem", Path(folder) / "key.pem"
        Certificate().write(cert, key)
        servers = {"plain": start(attnd), "TLS": start(attnd, "--tls-cert", cert, "--tls-key", key)}
        spent = {(what, name): [] for what in WORK for name in servers}
        try:
            for _ in range(ROUNDS):
                for (what, name), times in spent.items():
                    server, url = servers[name]
                    before = cpu_ns(server)
                    count = WORK[what](url)
                    times.append((cpu_ns(server) - before) / count / 1e3)
        finally:
            for server, _ in servers.values():
                server.terminate()
                server.wait()
    print(ssl.OPENSSL_VERSION)
    for what in WORK:
        plain, tls = (statistics.median(spent[what, name]) for name in ("plain", "TLS"))
        print(f"{what}: {plain:.2f} plain, {tls:.2f} over TLS, {tls / plain:.2f}x")


main()
