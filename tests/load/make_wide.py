# SPDX-License-Identifier: Apache-2.0
"""Writes the layer for wide.lua: layout d2l, 768 wide, 12 heads, random weights.

    build/venv/bin/python tests/load/make_wide.py wide.safetensors
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "http"))

from checkpoints import write_layer

write_layer(Path(sys.argv[1]), num_heads=12, head_size=64, query_size=768)
