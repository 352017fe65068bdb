# SPDX-License-Identifier: Apache-2.0
"""Fixtures: servers, which must stop cleanly when their tests are over."""

import gc
import os
import random

import pytest

from background import pause_background_load
from fixtures import start_server  # noqa: F401 (a fixture)
from server import BINARY, Server

os.environ.setdefault("PROPERTY_SEED", str(random.randrange(2**32)))


def pytest_report_header():
    return f"attnd: {BINARY}, PROPERTY_SEED={os.environ['PROPERTY_SEED']}"


def pytest_sessionstart():
    if not BINARY.exists():
        pytest.exit(f"{BINARY} is not built; set BINARY or run tests/run.sh", returncode=4)


def pytest_collection_finish():
    """Thousands of tests stay until the end: the collector of garbage need not look at them again and again."""
    gc.freeze()


@pytest.fixture(autouse=True)
def quiet(request):
    """Holds back the load of background.py for a test that is marked `alone`."""
    if request.node.get_closest_marker("alone"):
        with pause_background_load():
            yield
    else:
        yield


@pytest.fixture(scope="session")
def demo_server():
    """attnd --demo: the models `journey`, `d2l`, `patterns` and `stacked`, a body limit of 1 MiB, two HTTP threads."""
    with Server("--demo", "--max-body", 1048576, "--grace", 5, "--http-threads", 2) as server:
        yield server
