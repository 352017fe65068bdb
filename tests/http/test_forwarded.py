# SPDX-License-Identifier: Apache-2.0
"""Whom --max-per-client counts a request for where clients have addresses of the trusted range, and that it
counts no probe."""

import ipaddress
import json
import re

import pytest

from http1 import Connection, get_bytes, post_bytes, send_unfinished
from server import ROOT

SMALL = json.dumps({"model": "journey", "queries": [[0.43, 0.15, 0.89]]}).encode()
PROXY = "127.0.0.1"  # who connects in these tests
SHIPPED = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "deploy").rglob("*")
                 if path.is_file() and "ATTND_TRUSTED_PROXY" in path.read_text())

pytestmark = pytest.mark.alone


def ranges_of(name):
    """Returns the ranges that the file's lines of ATTND_TRUSTED_PROXY have, also as a variable's default."""
    lines = [line for line in (ROOT / name).read_text().splitlines() if "ATTND_TRUSTED_PROXY" in line]
    return re.findall(r"[0-9.]+/[0-9]+", " ".join(lines))


def status_of(server, forwarded):
    with Connection(server.port) as connection:
        connection.send(post_bytes(SMALL, f"X-Forwarded-For: {forwarded}"))
        return connection.read_reply().status


def is_same_client(server, first, second):
    """Whether a request of `first` in progress leaves none to `second`: the limit is one."""
    with Connection(server.port) as unfinished:
        send_unfinished(unfinished, SMALL, f"X-Forwarded-For: {first}")
        status = status_of(server, second)
    assert status in (200, 429)
    return status == 429


def test_every_shipped_configuration_is_known_here():
    assert SHIPPED == ["deploy/docker-compose.yml", "deploy/kubernetes/proxy/attnd.yaml", "deploy/stack.yml"]


@pytest.mark.parametrize("name", SHIPPED)
def test_clients_in_the_ranges_of_a_shipped_configuration_are_clients_of_their_own(start_server, name):
    ranges = ranges_of(name)
    assert ranges
    server = start_server("--demo", "--max-per-client", 1, ATTND_TRUSTED_PROXY=";".join([*ranges, PROXY]))
    for each in ranges:
        one, other = (str(ipaddress.ip_network(each)[number]) for number in (7, 9))
        assert is_same_client(server, one, one)
        assert not is_same_client(server, one, other)


@pytest.mark.parametrize("trusted, first, second, same", [
    # A client of the range, whose proxy replaces the header, or appends to what the client has invented.
    ("127.0.0.0/8", "127.0.0.5", "127.0.0.6", False), ("127.0.0.0/8", "127.0.0.5", "127.0.0.5", True),
    ("127.0.0.0/8", "127.0.0.8, 127.0.0.5", "127.0.0.9, 127.0.0.5", True),
    ("127.0.0.0/8", "127.0.0.6, 127.0.0.5", "127.0.0.6", False),
    ("127.0.0.0/8", "nonsense, 127.0.0.5", "127.0.0.5", True),
    ("127.0.0.0/8", "127.0.0.5, nonsense", "nonsense", True),
    # A client of the range after one outside of it is a proxy, and is believed.
    ("127.0.0.0/8", "10.0.0.1, 127.0.0.5", "10.0.0.1, 127.0.0.6", True),
    # Two proxies that append: 127.0.0.3 is before the one that connects. Where the range has the clients
    # too, they are the first proxy's; where the proxies are named, they are their own.
    ("127.0.0.0/8", "127.0.0.5, 127.0.0.3", "127.0.0.6, 127.0.0.3", True),
    ("127.0.0.1;127.0.0.3", "127.0.0.5, 127.0.0.3", "127.0.0.6, 127.0.0.3", False),
    ("127.0.0.1;127.0.0.3", "127.0.0.8, 127.0.0.5, 127.0.0.3", "127.0.0.9, 127.0.0.5, 127.0.0.3", True)])
def test_client_is_the_last_address_where_all_are_trusted(start_server, trusted, first, second, same):
    server = start_server("--demo", "--max-per-client", 1, ATTND_TRUSTED_PROXY=trusted)
    assert is_same_client(server, first, second) == same


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready"])
def test_probe_of_a_client_at_its_limit_is_answered(start_server, path):
    server = start_server("--demo", "--max-per-client", 1)
    with Connection(server.port) as unfinished, Connection(server.port) as probe:
        send_unfinished(unfinished, SMALL)
        probe.send(get_bytes("/v1/models"))
        assert probe.read_reply().status == 429
        probe.send(get_bytes(path))
        assert probe.read_reply().status == 200


def test_probes_in_progress_leave_the_client_its_requests(start_server):
    server = start_server("--demo", "--max-per-client", 1)
    with Connection(server.port) as first, Connection(server.port) as second:
        for probe in (first, second):
            probe.send(get_bytes("/v2/health/ready", "Expect: 100-continue", "Content-Length: 1"))
            assert probe.read_reply().status == 100
        assert status_of(server, "127.0.0.5") == 200
        for probe in (first, second):
            probe.send(b"x")
            assert probe.read_reply().status == 200
        assert status_of(server, "127.0.0.5") == 200


def test_header_that_is_not_believed_is_told_once(start_server):
    server = start_server("--demo", "--trusted-proxy", "192.0.2.1")
    told = "warn X-Forwarded-For is not believed"
    assert status_of(server, "192.0.2.9") == 200 and status_of(server, "192.0.2.10") == 200
    assert server.read_log().count(told) == 1 and "client=127.0.0.1 count=1\n" in server.read_log()
    server = start_server("--demo", "--trusted-proxy", PROXY)
    assert status_of(server, "192.0.2.9") == 200 and told not in server.read_log()
