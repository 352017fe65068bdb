# SPDX-License-Identifier: Apache-2.0
"""Starts an attnd for an example, so that it needs no second terminal."""

import contextlib
import pathlib
import shutil
import subprocess
import tempfile

from safetensors.numpy import save_file

from attention_client import Client

BUILT = pathlib.Path(__file__).parents[2] / "build-release/src/attnd"


@contextlib.contextmanager
def serve(*options):
    """A client of a new attnd on a free port: `with serve("--demo") as client:`. It stops at the end."""
    program = shutil.which("attnd") or shutil.which(BUILT)
    if program is None:
        raise SystemExit("attnd is not on PATH; build it first: sh deploy/quickstart.sh --once")

    command = [program, "--listen", "127.0.0.1:0", "--log-level", "warn", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as daemon:
        try:
            line = daemon.stdout.readline()  # listening on http://127.0.0.1:PORT
            if not line:
                raise SystemExit("attnd did not start; its own line above says why")
            yield Client(line.split()[-1])
        finally:
            daemon.terminate()


@contextlib.contextmanager
def serve_layers(layers, num_heads):
    """The same for layers of numpy arrays, {model: {tensor: array}}, from files that go away with it."""
    with tempfile.TemporaryDirectory() as folder:
        for name, tensors in layers.items():
            save_file(tensors, f"{folder}/{name}.safetensors", metadata={"num_heads": str(num_heads)})
        with serve("--model-dir", folder) as client:
            yield client
