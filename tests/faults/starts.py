# SPDX-License-Identifier: Apache-2.0
"""Starts of attnd that may fail."""

import os
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from fault import Control
from server import BINARY, clean_environment


def run_start(arguments, control):
    """Starts attnd and stops it with SIGTERM if it starts. Returns whether it did. If it did not,
    it has said why in one line. Either way no socket is left."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([BINARY, *arguments], stdout=subprocess.PIPE, stderr=log,
                                   text=True, env=clean_environment(**control.environment()))
        try:
            started = process.stdout.readline() != ""
            if started:
                control.disarm()
                process.send_signal(signal.SIGTERM)
            code = process.wait(60)
        finally:
            process.kill()
            process.communicate()
        log.seek(0)
        lines = log.read().decode(errors="replace").splitlines()
    assert code == 0 if started else code in (1, 2), (code, control.site, lines)
    assert started or sum(line.startswith("attnd: ") for line in lines) == 1, (control.site, lines)
    for path in (argument.split(",")[0][5:] for argument in arguments if argument.startswith("unix:")):
        assert not os.path.exists(path), control.site
    return started


@pytest.fixture
def control():
    """Steers starts, one after another."""
    made = Control()
    yield made
    made.close()


@pytest.fixture
def start_arguments(tmp_path):
    """A start that reads a configuration, a model and keys from files, too, and has two addresses
    and a Unix socket."""
    model = Path(__file__).parents[2] / "src/weights/demo/journey.safetensors"
    (tmp_path / "config.json").write_text('{"model": ["%s=%s,num_heads=2"], "workers": 2}' % (
        "mine", model))
    keys = tmp_path / "keys"
    keys.write_text("alice:0123456789abcdef\nbob:fedcba9876543210\n")
    keys.chmod(0o600)
    return ["--config", str(tmp_path / "config.json"), "--demo", "--listen", "127.0.0.1:0",
            "--listen", f"unix:{tmp_path}/socket,group={os.getegid()}", "--admin-listen", "127.0.0.1:0", "--api-key-file", str(keys)]
