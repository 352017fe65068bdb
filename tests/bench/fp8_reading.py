# SPDX-License-Identifier: Apache-2.0
"""fp8_reading.py ATTND [--rounds N] [--width N]: the CPU time of `attnd inspect`, which reads all numbers
of a layer, from bfloat16 and from each form of FP8, in turns. The numbers are the same, and the files in
the page cache."""

import clean_environment  # before numpy

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import numpy as np

from peers import machine_text

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "http"))

from fp8 import FORMS, decode, encode, write_folder

NAMES = [f"layers.0.self_attn.{letter}_proj.weight" for letter in "qkvo"]


def write_forms(folder, width):
    """Writes a folder for each form, whose scales are 1, and one in bfloat16. Returns their paths."""
    rng = np.random.default_rng(1)
    # as published ones are spread: the largest of many normal numbers is 448
    codes = {name: np.resize(encode(np.clip(100 * rng.normal(size=(64, width)), -448, 448)), (width, width))
             for name in NAMES}
    config = {"model_type": "llama", "hidden_size": width, "num_attention_heads": 8, "num_hidden_layers": 1}
    write_folder(folder / "BF16", config, {name: decode(codes[name]) for name in NAMES}, "BF16")
    for form, (quantization, ending, dtype, shape, block) in FORMS.items():
        rows, columns = (-(-width // (size or width)) for size in block)
        scales = shape(np.full((rows, columns), 127 if dtype in ("U8", "F8_E8M0") else 1, np.float32))
        write_folder(folder / form, config | {"quantization_config": quantization},
                     codes | {name + ending: scales for name in NAMES},
                     dict.fromkeys(NAMES, "F8_E4M3") | {name + ending: dtype for name in NAMES})
    return sorted(folder.iterdir())


def time_reading(program, folder):
    """Returns the seconds of CPU time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([program, "inspect", folder], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("attnd", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--width", type=int, default=4096)
    arguments = parser.parse_args()
    print(machine_text())
    with tempfile.TemporaryDirectory() as folder:
        paths = write_forms(Path(folder), arguments.width)
        times = {path.name: [] for path in paths}
        for _ in range(arguments.rounds + 1):
            for path in paths:
                times[path.name].append(time_reading(arguments.attnd.resolve(), path))
    for name, seconds in times.items():
        seconds = sorted(seconds[1:])  # the first brought the file into the cache
        print(f"{name:12} {median(seconds):.3f} s ({seconds[0]:.3f} to {seconds[-1]:.3f}), "
              f"{median(seconds) / median(sorted(times['BF16'][1:])):.2f} of BF16")


if __name__ == "__main__":
    main()
