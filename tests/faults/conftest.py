# SPDX-License-Identifier: Apache-2.0
"""Tests that let everything fail in turn. They use the helpers of tests/http."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "http"))

from background import pause_background_load
from fixtures import start_server  # noqa: F401 (a fixture)


@pytest.fixture(autouse=True, scope="module")
def quiet():
    """Holds back the load of background.py: these tests count calls, descriptors and bytes."""
    with pause_background_load():
        yield
