# SPDX-License-Identifier: Apache-2.0
"""The captures of tests/data/captures as requests, and their weights in float64."""

import json
import sys

import numpy as np

from server import ROOT

sys.path.insert(0, str(ROOT / "docs/examples"))

from attnd import captured as capture
from attnd._safetensors import read_safetensors
from attnd._masks import causal_ranges, cut
from plain_attention import NumpyClient, compute_weights  # noqa: F401 (for the tests)

FOLDER = ROOT / "tests/data/captures"


def recorded_layers(folder=FOLDER):
    """Yields for each layer of each family its name, its request as the package makes it of what an
    attention function gets, eager's weights without padding, and the window that was recorded."""
    for path in sorted(folder.glob("*.safetensors")):
        tensors, metadata = read_safetensors(path)
        for layer in metadata["layers"].split():
            found = {name.removeprefix(f"{layer}."): tensor for name, tensor in tensors.items()
                     if name.startswith(f"{layer}.") and name.count(".") == layer.count(".") + 1}
            texts = {name: json.loads(metadata[f"{layer}.{name}"]) for name in ("scale", "softcap", "causal", "window",
                     "window_sides") if f"{layer}.{name}" in metadata}
            queries, keys = len(found["queries"]), len(found["keys"])
            visible = found["mask"] > -1e30 if "mask" in found else causal_ranges(queries, keys, texts["causal"])
            request = cut(found["queries"], found["keys"], found["values"], visible, found.get("bias"),
                          "cross" not in layer)
            request |= {name: texts[name] for name in ("scale", "softcap") if name in texts}
            request |= {name: found[name] for name in ("sinks",) if name in found}
            padding = int(metadata.get("padding_left", 0))
            window = texts.get("window")
            if window is not None and texts["window_sides"] == 2:
                window -= 1
            yield f"{path.stem} {layer}", request, found["weights"][:, padding:, padding:], window
