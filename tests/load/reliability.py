# SPDX-License-Identifier: Apache-2.0
"""Measures the promises of docs/reliability.md and prints a table of all figures.

    BINARY=build/src/attnd build/venv/bin/python tests/load/reliability.py [--long] [NAME]...

NAME is one of the measurements, e.g. `slow` or `overload`; without one, all are made. --long takes
more time and more connections. Everything runs on 127.0.0.1. Exits 1 if a figure is short of what
was asked, or if a measurement cannot run here."""

import argparse
import resource
import shutil
import sys

import measure  # first: it adds tests/http to the path
from abandon import abandoned
from handshakes import handshakes
from hogs import flood, hogs, hogs_proxy, keys, uploads_proxy
from holders import described, holders, pieces
from memory import bodies, fill, headers, unread, uploads, workers
from mixed import batching, mixed, sizes, subnormals
from one_thread import idle_threads
from overload import overload, overload_proxy
from shares import shares
from slow import chunk_extension, slow, slow_proxy, slowhttptest

MEASUREMENTS = {
    "overload": overload,
    "overload-proxy": overload_proxy,
    "slow": slow,
    "slow-proxy": slow_proxy,
    "slowhttptest": slowhttptest,
    "hogs": hogs,
    "flood": flood,
    "keys": keys,
    "hogs-proxy": hogs_proxy,
    "uploads-proxy": uploads_proxy,
    "idle-threads": idle_threads,
    "described": described,
    "holders": holders,
    "pieces": pieces,
    "chunk-extension": chunk_extension,
    "handshakes": handshakes,
    "uploads": uploads,
    "headers": headers,
    "bodies": bodies,
    "workers": workers,
    "fill": fill,
    "unread": unread,
    "abandoned": abandoned,
    "shares": shares,
    "mixed": mixed,
    "sizes": sizes,
    "batching": batching,
    "subnormals": subnormals,
}


def allow_many_files():
    """The clients of a measurement have up to 10,000 connections in one process."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def print_table(results):
    print("", "| name | what | asked | measured | |", "|---|---|---|---|---|", sep="\n")
    for name, result in results:
        print(f"| `{name}` | {result.name} | {result.asked} | {result.measured} | {result.verdict} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--long", action="store_true", help="more time and more connections")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MEASUREMENTS))
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(MEASUREMENTS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(MEASUREMENTS)}")

    allow_many_files()
    results, num_impossible = [], 0
    try:
        for name in arguments.names or MEASUREMENTS:
            try:
                for result in MEASUREMENTS[name](arguments.long):
                    print(result, flush=True)
                    results.append((name, result))
            except measure.Impossible as reason:
                print(f"{name}: cannot be measured here: {reason}", flush=True)
                num_impossible += 1
    finally:
        shutil.rmtree(measure.WORK)
    print_table(results)
    return int(num_impossible > 0 or any(result.good is False for _, result in results))


if __name__ == "__main__":
    sys.exit(main())
