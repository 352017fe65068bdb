#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""corpus.py: reads and extends the kept inputs of a fuzz target, which are one file.

corpus.py unpack CORPUS FOLDER: writes each input into FOLDER, where libFuzzer looks for them.
corpus.py add CORPUS FILE...: adds each FILE, such as crash-12ab, unless an input is the same.

In a corpus, each input has a line with its name and its size in bytes. The bytes follow, and a
newline. replay.c reads that, too."""
import pathlib
import sys


def read_inputs(corpus):
    """Returns a dict from names to inputs."""
    inputs, data = {}, corpus.read_bytes() if corpus.exists() else b""
    while data:
        line, _, data = data.partition(b"\n")
        name, size = line.split()
        inputs[name.decode()], data = data[:int(size)], data[int(size) + 1:]
    return inputs


def unpack(corpus, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in read_inputs(corpus).items():
        (folder / name).write_bytes(data)


def add(corpus, *files):
    inputs = read_inputs(corpus)
    for file in files:
        if file.read_bytes() in inputs.values():
            continue
        if file.name in inputs or " " in file.name:
            sys.exit(f"{file}: rename it: its name is taken, or has a space")
        inputs[file.name] = file.read_bytes()
    corpus.write_bytes(b"".join(b"%s %d\n%s\n" % (name.encode(), len(data), data)
                                for name, data in sorted(inputs.items())))


{"unpack": unpack, "add": add}[sys.argv[1]](*map(pathlib.Path, sys.argv[2:]))
