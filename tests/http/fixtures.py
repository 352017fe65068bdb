# SPDX-License-Identifier: Apache-2.0
"""Fixtures of tests/http that tests/faults uses too."""

import os

import pytest

from server import Server


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
