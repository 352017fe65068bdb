# SPDX-License-Identifier: Apache-2.0
"""Tests deploy/kubernetes (see kubernetes.sh): manifest_checks.py, proxy_checks.py and pod_checks.py, each in
its order.

    REQUIRE_DOCKER    1: pods that cannot run are a failure"""

import os
import signal
import sys

import manifest_checks
import pod_checks
import proxy_checks
from engine import Images, NoEngine, find_docker
from manifests import Rendered
from podman import Podman
from run import run_tests


def run_all(docker):
    """Returns how many tests passed and failed, and why pods cannot run, or None."""
    with Rendered(docker) as rendered, Images(docker) as images:
        rendered.wait()
        counts, reason = [run_tests(manifest_checks, rendered)], None
        with proxy_checks.Proxy(rendered, images) as proxy:
            counts.append(run_tests(proxy_checks, proxy))
        try:
            with Podman() as podman:
                counts.append(run_tests(pod_checks, pod_checks.Pod(podman, rendered, images.attnd)))
        except NoEngine as error:
            reason = str(error)
        return *map(sum, zip(*counts)), reason


def main():
    # SIGTERM must still remove what runs, so it unwinds like an error.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    required = os.environ.get("REQUIRE_DOCKER") == "1"
    try:
        passed, failed, reason = run_all(find_docker())
    except NoEngine as error:
        print(f"SKIP: no Docker engine: {error}")
        return 1 if required else 77
    print(f"{passed} passed, {failed} failed")
    if reason:
        print(f"SKIP: no pod runs: {reason}")
    return 1 if failed or (reason and required) else 77 if reason else 0


if __name__ == "__main__":
    sys.exit(main())
