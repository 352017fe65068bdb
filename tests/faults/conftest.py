# SPDX-License-Identifier: Apache-2.0
"""Tests that let everything fail in turn. They use the helpers of tests/http."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "http"))

from background import pause_background_load
from server import Server


@pytest.fixture(autouse=True, scope="module")
def quiet():
    """Holds back the load of background.py: these tests count calls, descriptors and bytes."""
    with pause_background_load():
        yield


@pytest.fixture
def start_server():
    """Starts servers for one test. Those that still run afterwards are stopped and checked."""
    servers = []

    def start(*arguments, **options):
        servers.append(Server(*arguments, **options))
        return servers[-1]

    yield start
    for server in servers:
        if server.process.poll() is None:
            server.stop()
        elif os.path.exists(server.log_path):
            os.unlink(server.log_path)
