# SPDX-License-Identifier: Apache-2.0
"""Starts an attnd for layers of an example, so that it needs no second terminal."""

import contextlib
import pathlib
import shutil
import tempfile

from safetensors.numpy import save_file

import attnd

BUILT = pathlib.Path(__file__).parents[2] / "build-release/src/attnd"


def serve(*models, **options):
    """`attnd.serve`, also where attnd is not installed but built."""
    program = str(BUILT) if shutil.which("attnd") is None and BUILT.exists() else None
    return attnd.serve(*models, program=program, **options)


@contextlib.contextmanager
def serve_layers(layers, num_heads):
    """The same for layers of numpy arrays, {model: {tensor: array}}, from files that go away with it."""
    with tempfile.TemporaryDirectory() as folder:
        for name, tensors in layers.items():
            save_file(tensors, f"{folder}/{name}.safetensors", metadata={"num_heads": str(num_heads)})
        with serve(model_dir=folder) as client:
            yield client
