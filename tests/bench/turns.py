# SPDX-License-Identifier: Apache-2.0
"""Contenders, each in its own process, where it waits while others are timed."""

import multiprocessing
import os
import time
from statistics import median

import numpy as np

from problems import Unavailable

TOLERANCE = {"f32": 1e-4, "bf16": 3e-2}  # relative to the largest output
MIN_SECONDS = 0.01  # of one measurement; shorter work is repeated
MIN_MEASUREMENTS = 5  # in a round
MAX_SECONDS = 6  # after which no other measurement begins, however few there were


def time_runs(run, threads, seconds):
    """Returns the milliseconds of one run: the median of several measurements after the first. With
    one thread it is the CPU time where that is less, so that other programs do not count."""
    def measure():
        runs, elapsed, began, used = 0, 0, time.perf_counter(), time.process_time()
        while elapsed < MIN_SECONDS:
            run()
            runs, elapsed = runs + 1, time.perf_counter() - began
        used = time.process_time() - used
        return (min(elapsed, used) if threads == 1 else elapsed) / runs * 1e3

    measure()
    times, began = [], time.perf_counter()
    while not times or (elapsed := time.perf_counter() - began) < seconds or (
            len(times) < MIN_MEASUREMENTS and elapsed < max(seconds, MAX_SECONDS)):
        times.append(measure())
    return median(times)


def serve(connection, maker, make_problem, threads, options):
    """Runs in the process of a peer. Sends the outputs, then a time for every number of seconds."""
    try:
        run, outputs, detail = maker(make_problem(), **options)
        run()
        connection.send((np.array(outputs()), detail))
        while True:
            connection.send(time_runs(run, threads, connection.recv()))
    except EOFError:  # the other end was closed: nothing is left to do
        pass
    except Exception as error:
        text = str(error).split("\n")[0]
        connection.send(error if isinstance(error, Unavailable) else
                        RuntimeError(f"{type(error).__name__}: {text}"))


class Peer:
    """A process that holds one contender, with `threads` threads for BLAS and OpenMP. It makes its
    problem itself, by a function that can be pickled."""

    def __init__(self, maker, make_problem, threads, options):
        for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
            os.environ[name] = str(threads)
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=serve, daemon=True,
                                       args=(other, maker, make_problem, threads, options))
        self.process.start()
        other.close()

    def receive(self):
        reply = self.connection.recv()
        if isinstance(reply, Exception):
            raise reply
        return reply

    def compare(self, precision, expected):
        """Returns the entry of the report before anything is timed: "unavailable" or "failed" with
        the reason, or only a description and the difference from `expected`."""
        try:
            outputs, detail = self.receive()
        except Unavailable as reason:
            return {"precision": precision, "unavailable": str(reason)}
        except (RuntimeError, EOFError, OSError) as error:
            return {"precision": precision, "failed": str(error).strip() or "its process ended"}
        difference = float(np.abs(outputs - expected).max() / np.abs(expected).max())
        entry = {"precision": precision, "detail": detail, "difference": difference}
        if not difference <= TOLERANCE[precision]:  # NaN fails, too
            entry["failed"] = f"differs from float64 by {difference:.1e} of the largest output"
        return entry

    def time(self, seconds):
        self.connection.send(seconds)
        return self.receive()

    def close(self):
        self.connection.close()
        self.process.join()
