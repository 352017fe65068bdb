# SPDX-License-Identifier: Apache-2.0
"""run.py [PART...]: builds the images and runs the tests of these parts, or of all (see run.sh).

    REQUIRE_DOCKER    1: a part that cannot run is a failure"""

import os
import signal
import sys

import deploy_test
import swarm_test
from engine import Images, NoEngine, find_docker
from stack import Stack
from swarm import Swarm

PARTS = {
    "compose": (deploy_test, lambda docker, images: Stack(docker)),
    "swarm": (swarm_test, Swarm),
}


def run_tests(module, service):
    passed, failed = 0, 0
    for name, test in [*vars(module).items()]:
        if not name.startswith("test_"):
            continue
        try:
            test(service)
            print("ok  ", name, flush=True)
            passed += 1
        except Exception as error:
            print(f"FAIL {name}: {type(error).__name__}: {error}", flush=True)
            failed += 1
            if failed == 1:
                service.print_logs()
            if name == "test_proxy_becomes_ready":
                break  # no other test can pass, and each would wait for its full timeout
    return passed, failed


def run_part(name, docker, images):
    """Returns how many tests passed, failed and were skipped; a part that cannot run is one of the last."""
    module, make = PARTS[name]
    try:
        with make(docker, images) as service:
            print(f"{name}: {service.url}, project {service.project}", flush=True)
            return (*run_tests(module, service), 0)
    except NoEngine as error:
        print(f"SKIP: no {name} on this Docker engine: {error}", flush=True)
        return 0, 0, 1
    except RuntimeError as error:
        print(f"FAIL bringing {name} up: {error}", flush=True)
        return 0, 1, 0


def main():
    # SIGTERM must still remove the containers, so it unwinds like an error.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    required = os.environ.get("REQUIRE_DOCKER") == "1"
    parts = sys.argv[1:] or [*PARTS]
    if not PARTS.keys() >= {*parts}:
        print(f"usage: run.py [{'] ['.join(PARTS)}]", file=sys.stderr)
        return 2
    try:
        docker = find_docker()
    except NoEngine as error:
        print(f"SKIP: no Docker engine: {error}")
        return 1 if required else 77

    try:
        with Images(docker) as images:
            counts = [run_part(name, docker, images) for name in parts]
    except RuntimeError as error:
        print(f"FAIL building the images: {error}")
        counts = [(0, 1, 0)]
    passed, failed, skipped = map(sum, zip(*counts))
    if skipped == len(parts) and not required:
        return 77  # the last line is the reason
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or required and skipped else 0


if __name__ == "__main__":
    sys.exit(main())
