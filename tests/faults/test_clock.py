# SPDX-License-Identifier: Apache-2.0
"""The time of day jumps. The clock of the machine is not touched: preload.c moves what attnd sees."""

import json
import re
import time
from datetime import datetime, timedelta, timezone

import pytest

from all_requests import ROWS, native
from checkpoints import slow_request, write_slow_layer
from fault import exchange, faulty_server, is_healthy, wait_until, why_not
from http1 import Connection, post_bytes

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())

DAY_NS = 86400 * 1000000000
SMALL = post_bytes(native(ROWS))


@pytest.mark.parametrize("jump_ns", (DAY_NS, -DAY_NS, 365 * DAY_NS, -20000 * DAY_NS, 1500000000))
def test_no_timeout_follows_the_time_of_day(tmp_path, jump_ns):
    """Open when it jumps: an idle connection, half a request, and a job."""
    path = tmp_path / "slow.safetensors"
    write_slow_layer(path)
    slow = post_bytes(json.dumps(slow_request(1, 300) | {"model": "slow"}).encode())
    with faulty_server("--demo", "--model", f"slow={path}", "--workers", 1) as (server, control), \
            Connection(server.port) as idle, Connection(server.port) as half, \
            Connection(server.port) as waiting:
        idle.send(SMALL)
        assert idle.read_reply().status == 200
        half.send(SMALL[:-5])
        waiting.send(slow)
        assert is_healthy(server)
        control.write(clock_offset_ns=jump_ns)
        for _ in range(5):
            assert exchange(server.port, SMALL).status == 200
        time.sleep(0.2)
        half.send(SMALL[-5:])
        idle.send(SMALL)
        statuses = [connection.read_reply().status for connection in (idle, half, waiting)]
        assert statuses == [200, 200, 200]
        control.write(clock_offset_ns=0)
        idle.send(SMALL)
        assert idle.read_reply().status == 200


def test_log_shows_the_time_of_day():
    """So the jump really reaches attnd."""
    in_two_days = f"{datetime.now(timezone.utc) + timedelta(days=2):%Y-%m-%dT}"
    with faulty_server("--demo", "--log-level", "debug") as (server, control):
        control.write(clock_offset_ns=2 * DAY_NS)
        assert is_healthy(server)
        wait_until(lambda: f"\n{in_two_days}" in server.read_log(), 10, f"a line of {in_two_days}")


def offset_to(year):
    """Returns the nanoseconds from now to the middle of a year."""
    return round((year - 1970 - 56.9) * 365.2425) * DAY_NS


@pytest.mark.parametrize("year", [1969, 1900, 1800, 2100, 2200])
def test_log_of_a_clock_that_stands_wrong_has_a_date(year):
    """A machine without a battery may begin before 1970. Years beyond 2262 do not fit into the file
    that moves the clock."""
    with faulty_server("--demo", "--log-level", "debug") as (server, control):
        control.write(clock_offset_ns=offset_to(year))
        assert is_healthy(server)
        wait_until(lambda: re.search(rf"\n{year}-[01]\d-[0-3]\dT[0-2]\d:[0-5]\d:[0-5]\d\.\d{{3}}Z ", server.read_log()),
                   10, f"a line of {year}")
