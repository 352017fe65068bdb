# SPDX-License-Identifier: Apache-2.0
"""How many replicas a load needs, measured as docs/load-testing.md says: the knee of one replica by
itself, then that load for each replica but one behind HAProxy, with all of them and with one killed.

    BINARY=build/src/attnd build/venv/bin/python tests/load/replicas.py [--cpus 0.2] [--p99 100]

Each replica has one worker and a control group that allows it a share of one CPU, so that several fit
on this machine beside HAProxy and attnd-bench. Needs root, and HAProxy. Prints a table of Markdown;
exits 1 if N replicas did not carry the load of N - 1, and 77 if it cannot be measured here."""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "http"))

from programs import BENCH
from proxy import Proxy
from server import Server

PERIOD_US = 10_000  # of a quota; a process that has used it up waits for the next
GROWTH = 1.25       # from step to step of the sweep
NOTICE_SECONDS = 4  # until HAProxy has seen that a replica is gone


class Impossible(Exception):
    """What this machine does not have."""


@contextlib.contextmanager
def cpu_group(name, cpus):
    """Yields the folder of a control group, of version 1 or 2, whose processes get `cpus` of a CPU."""
    quota = round(cpus * PERIOD_US)
    if Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").exists():
        folder = Path("/sys/fs/cgroup/cpu") / name
        limits = {"cpu.cfs_period_us": PERIOD_US, "cpu.cfs_quota_us": quota}
    else:
        folder = Path("/sys/fs/cgroup") / name
        limits = {"cpu.max": f"{quota} {PERIOD_US}"}
    try:
        folder.mkdir()
        for file, text in limits.items():
            with os.fdopen(os.open(folder / file, os.O_WRONLY), "w") as limit:
                limit.write(str(text))
    except OSError as error:
        raise Impossible(f"no control group with a CPU quota can be made: {error}") from error
    try:
        yield folder
    finally:
        for _ in range(50):  # the kernel needs a moment after the last process has ended
            with contextlib.suppress(OSError):
                folder.rmdir()
                break
            time.sleep(0.1)


@contextlib.contextmanager
def replica(number, cpus):
    """Runs one attnd with so much of a CPU, and kills it at the end."""
    with cpu_group(f"attnd-replica-{os.getpid()}-{number}", cpus) as group:
        server = Server("--demo", "--workers", 1, "--trusted-proxy", "127.0.0.1/32")
        try:
            (group / "cgroup.procs").write_text(str(server.process.pid))
            yield server
        finally:
            server.process.kill()
            server.process.communicate()
            os.unlink(server.log_path)


def default_request():
    """Costs some 0.8 ms of a CPU, so that the proxy's share is small."""
    return json.dumps({"path": "/v1/attention",
                       "body": {"model": "d2l", "queries": [[[1] * 100] * 32] * 4}})


def measure(port, options, rate):
    """Returns the report of one step."""
    result = subprocess.run(
        [BENCH, "http", f"http://127.0.0.1:{port}", "--requests", options.requests, "--rate", str(rate),
         "--seconds", str(options.seconds), "--timeout-ms", "5000", "--json"],
        stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(result.stdout)


def meets(report, options):
    p99 = report["latency_ms"]["p99"]
    return report["served"] == report["requests"] and p99 is not None and p99 <= options.p99


def print_row(what, report, options):
    p99 = report["latency_ms"]["p99"]
    print(f"| {what} | {report['sent_per_s']:.0f} | "
          f"{report['served'] / report['requests']:.2%} | "
          f"{'-' if p99 is None else f'{p99:.1f} ms'} | {report['generator']['late_p99_ms']:.1f} ms | "
          f"{'yes' if meets(report, options) else 'no'} |", flush=True)


def find_knee(options):
    """Returns what was sent a second in the last step of a sweep at which one replica meets the objective."""
    rate, knee = options.first, None
    with replica(0, options.cpus) as server:
        while True:
            report = measure(server.port, options, rate)
            print_row("1, alone", report, options)
            if not meets(report, options):
                return knee
            knee, rate = report["sent_per_s"], round(rate * GROWTH)


def check(count, knee, options):
    """Returns whether `count` replicas carry the load of one less, with all and with one killed."""
    load = (count - 1) * knee
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(replica(number, options.cpus)) for number in range(count)]
        proxy = stack.enter_context(Proxy([server.port for server in servers]))
        time.sleep(NOTICE_SECONDS)
        whole = measure(proxy.port, options, load)
        print_row(f"{count} behind HAProxy", whole, options)
        servers[0].process.kill()
        time.sleep(NOTICE_SECONDS)
        less = measure(proxy.port, options, load)
        print_row(f"{count}, one of them killed", less, options)
    return meets(whole, options) and meets(less, options)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cpus", type=float, default=0.2, help="share of a CPU for each replica")
    parser.add_argument("--p99", type=float, default=100, help="the objective, in ms")
    parser.add_argument("--first", type=int, default=100, help="first rate of the sweep")
    parser.add_argument("--seconds", type=int, default=10, help="time of each step")
    parser.add_argument("--requests", help="file of requests; without one, 32 tokens for the layer d2l")
    parser.add_argument("--counts", type=int, nargs="*", default=[2, 4], help="replicas to check")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="attnd-replicas-") as folder:
        if options.requests is None:
            options.requests = Path(folder) / "requests.jsonl"
            options.requests.write_text(default_request())
        try:
            if not shutil.which("haproxy"):
                raise Impossible("haproxy is not installed")
            print("| replicas | sent/s | served | p99 | generator late (p99) | meets it |\n|---|---|---|---|---|---|")
            knee = find_knee(options)
            if knee is None:
                print(f"one replica does not meet a p99 of {options.p99:g} ms at {options.first} "
                      "requests/s; try a lower --first, or a larger --p99")
                return 1
            good = [check(count, knee, options) for count in options.counts]
        except Impossible as reason:
            print(f"SKIP: {reason}")
            return 77
    print(f"knee of one replica: {knee:.0f} requests/s")
    return int(not all(good))


if __name__ == "__main__":
    sys.exit(main())
