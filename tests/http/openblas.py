# SPDX-License-Identifier: Apache-2.0
"""Marks tests that need an attnd with OpenBLAS, which -Dopenblas=disabled leaves out."""

import pytest

from programs import BINARY

HAS_OPENBLAS = not BINARY.exists() or b"libopenblas.so" in BINARY.read_bytes()
needs_openblas = pytest.mark.skipif(not HAS_OPENBLAS, reason="this attnd was built without OpenBLAS")
