# SPDX-License-Identifier: Apache-2.0
"""Requests of different sizes beside each other, and many small ones for a wide model."""

import numpy as np

from measure import (Load, Result, binary_request, d2l_request, known, run_load, serve,
                     wide_model)

SMALL_RATE = 100  # requests/s of the d2l example
PATIENT = ("--max-memory", "4GiB", *known("--max-queue-delay", "30000"))
SMALL_TOKENS = 45  # half of the sizes that are drawn below
SIZES = 1000
WIDTH = 256


def mixed(long):
    """The d2l example beside clients of (8,512,768)."""
    seconds = 60 if long else 12
    large = binary_request("wide", 8, 512, 768)
    with serve("--model", wide_model(768, 12), *PATIENT) as server:
        alone = run_load(server.port, [d2l_request()], 5, rate=SMALL_RATE, connections=64)
        yield Result("d2l alone: p99", "-", f"{alone.p99_ms():.1f} ms", None)
        for count in (1, 2, 4, 16):
            undisturbed = run_load(server.port, [large], seconds, connections=count,
                                   source="127.0.0.2").rate()
            big = Load(server.port, [large], seconds, connections=count, source="127.0.0.2")
            small = run_load(server.port, [d2l_request()], seconds, rate=SMALL_RATE,
                             connections=2000)
            beside = big.wait().rate()
            share = beside / max(undisturbed, 1e-9)
            name, p99 = f"d2l beside {count} of (8,512,768)", small.p99_ms()
            print(f"  {name}: these get {undisturbed:.1f}/s alone, {beside:.1f}/s beside d2l")
            asked = count >= 4
            yield Result(f"{name}: p99", "≤ 10 ms" if asked else "-", f"{p99:.1f} ms",
                         p99 <= 10 if asked else None)
            yield Result(f"{name}: what these get", "≥ 0.9 of alone" if asked else "-",
                         f"{share:.2f}", share >= 0.9 if asked else None)


def sizes(long):
    """A thousand lengths from 1 to 2,048 tokens, drawn log-uniformly, over 16 connections."""
    rng = np.random.default_rng(7)
    lengths = np.exp(rng.uniform(0, np.log(2048), SIZES)).astype(int)
    requests = [binary_request("narrow", 1, int(tokens), WIDTH) for tokens in lengths]
    classes = [int(tokens > SMALL_TOKENS) for tokens in lengths]
    with serve("--model", wide_model(WIDTH, 4, "narrow"), *PATIENT) as server:
        samples = run_load(server.port, requests, 60 if long else 15, connections=16,
                           classes=classes)
    small, large = samples.p99_ms(kind=0), samples.p99_ms(kind=1)
    yield Result(f"{SIZES:,} sizes: p99 up to {SMALL_TOKENS} tokens", "≤ 10 ms",
                 f"{small:.1f} ms", small <= 10)
    yield Result(f"{SIZES:,} sizes: p99 of the longer", "-", f"{large:.0f} ms", None)
    yield Result(f"{SIZES:,} sizes: served", "all", f"{samples.count(200):,} of "
                 f"{samples.count():,}, {samples.rate():.0f}/s", samples.share() == 1)


def batching(long):
    """Single rows for a model 4,096 wide. With one client for each worker no request waits, so
    nothing can be batched: this rate is the one without batching."""
    seconds = 30 if long else 10
    requests = [binary_request("wide4096", 1, 4096, seed=seed) for seed in range(64)]
    arguments = ("--model", wide_model(4096, 32, "wide4096"), "--workers", "2", *PATIENT)
    with serve(*arguments) as server:
        single = run_load(server.port, requests, seconds, connections=2).rate()
        many = run_load(server.port, requests, seconds, connections=64)
    ratio = many.rate() / single
    print(f"  batching: {single:.0f}/s with 2 connections, {many.outcomes()}")
    yield Result("model 4,096 wide, single rows, 64 connections", "≥ 5x without batching",
                 f"{ratio:.1f}x, {many.rate():.0f}/s", ratio >= 5)


def subnormals(long):
    """Requests whose numbers are all subnormal, in turns with ordinary ones."""
    ordinary, tiny = (binary_request("wide", 1, 512, 768, scale=scale) for scale in (1, 1e-40))
    slowdowns = []
    with serve("--model", wide_model(768, 12), *PATIENT) as server:
        for _ in range(10 if long else 4):
            rates = [run_load(server.port, [request], 2).rate() for request in (ordinary, tiny)]
            slowdowns.append(rates[0] / max(rates[1], 1e-9))
    slowdown = float(np.median(slowdowns))
    yield Result("subnormal numbers, (1,512,768): time", "≤ 2x of ordinary ones",
                 f"{slowdown:.2f}x", slowdown <= 2)
