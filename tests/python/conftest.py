# SPDX-License-Identifier: Apache-2.0
"""Tests of the Python package. They use the helpers of tests/http, and libattnd beside BINARY."""

import os
import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "http"))

from fixtures import start_server  # noqa: F401 (a fixture)
from programs import BINARY
from server import Server, is_sanitized

os.environ["ATTND_LIBRARY"] = str(BINARY.with_name("libattnd.so"))
os.environ.setdefault("PROPERTY_SEED", str(random.randrange(2**32)))

# A library with a sanitizer cannot be loaded by a Python without one.
collect_ignore_glob = ["test_*.py"] if BINARY.exists() and is_sanitized() else []


@pytest.fixture(scope="session")
def plain_server():
    """attnd --demo, to compare with."""
    with Server("--demo") as server:
        yield server
