# SPDX-License-Identifier: Apache-2.0
"""loading.py ATTND [--rounds N] [--precision f32|bf16]: the time from the command to "listening on"
with a folder like gpt2-xl's: 48 layers, 1,600 wide, 1.97 GB of tensors in float32. The file is in
the page cache. It takes 2 GB below --folder, and writing it takes 8 GB of memory."""

import clean_environment  # before numpy

import argparse
import os
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median

from beside_numpy import start_attnd
from family_layers import Family, write_folder
from peers import machine_text

GPT2_XL = Family("gpt2", 1600, 25, 25, 64)


def time_start(program, folder, options):
    """Returns the seconds until the server listens, and those of CPU time in all."""
    began = time.perf_counter()
    server, _ = start_attnd(program, f"xl={folder}", *options)
    elapsed = time.perf_counter() - began
    server.terminate()
    _, _, usage = os.wait4(server.pid, 0)
    return elapsed, usage.ru_utime + usage.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("attnd", type=Path)
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precision", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--folder", type=Path, help="write the layers below this one")
    arguments = parser.parse_args()
    print(machine_text())
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        size = write_folder(folder, GPT2_XL, arguments.layers) * 1e-9
        subprocess.run(["cat", f"{folder}/model.safetensors"], stdout=subprocess.DEVNULL, check=True)
        times = [time_start(arguments.attnd.resolve(), folder, ["--precision", arguments.precision])
                 for _ in range(arguments.rounds)]
    seconds, cpu = zip(*times)
    print(f"{arguments.layers} layers of width {GPT2_XL.width}, {size:.2f} GB of tensors, "
          f"{arguments.precision}: ready in {median(seconds):.2f} s ({min(seconds):.2f} to "
          f"{max(seconds):.2f}), {size / median(seconds):.2f} GB/s; {median(cpu):.2f} s of CPU time")


if __name__ == "__main__":
    main()
