# SPDX-License-Identifier: Apache-2.0
"""python -m attnd heads: what the heads of a layer, or of all layers of a folder, attend to over a file."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
import warnings
from collections.abc import Sequence

from ._analysis import run_heads
from ._errors import Error, InvalidError, naming
from ._rows import read_rows
from .captured import Captured
from .head_table import COLUMNS, HeadTable
from .layers import load


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    columns = ["layer", *[name for name, *_ in COLUMNS]]
    parser = argparse.ArgumentParser("python -m attnd", allow_abbrev=False, description="What each head attends to, and how "
                                     "much the outputs depend on it: docs/heads.md.")
    parser.add_argument("command", choices=["heads"])
    parser.add_argument("model", nargs="?", metavar="FILE|FOLDER[,KEY=VALUE]...",
                        help="a layer, or the layers of a folder, with the keys of attnd --model; none for a capture")
    parser.add_argument("--data", metavar="FILE", required=True,
                        help="requests, one JSON body of POST /v1/attention on each line or one in safetensors; "
                        "hidden_states of many layers, with targets if you like; or a capture")
    parser.add_argument("--ids", metavar="ID[,ID]...",
                        help="the ids of the layers in hidden_states, in the order of the file: 0,8,16 or 0-29")
    parser.add_argument("--sort", choices=columns, help="the column to sort by, the largest number first")
    parser.add_argument("--json", action="store_true", help="print for each layer what POST /v1/heads replies")
    options = parser.parse_args(arguments)
    for name in ("--data", "--ids", "--sort"):
        if sum(word.partition("=")[0] == name for word in arguments) > 1:
            parser.error(f"{name} is given twice; give it once")
    if options.json and options.sort:
        parser.error("--sort is for the table; leave it or --json out")

    logging.basicConfig(format="attnd: %(message)s", level=logging.INFO if sys.stderr.isatty() else logging.WARNING)
    warnings.formatwarning = lambda message, *_, **__: f"attnd: {message}\n"
    try:
        table = analyse(options.model, options.data, options.ids)
        print(table.to_json() if options.json else table.sort(options.sort or "layer"), flush=True)
    except BrokenPipeError:  # of a reader such as head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (Error, OSError, ValueError) as error:
        print(f"attnd: {error}", file=sys.stderr)
        return 1
    return 0


def analyse(operand: str | None, path: str, ids: str | None) -> HeadTable:
    """Return the table of all layers that the file at `path` has rows for."""
    data = read_rows(path)
    if ids is not None and (operand is None or not isinstance(data, Captured) or data.hidden_states is None):
        raise InvalidError(f"{path}: it has no hidden_states, whose layers --ids lists, or no folder is named")
    if operand is None:
        if not isinstance(data, Captured):
            raise InvalidError(f"{path} is for a layer; name its file or folder, too")
        with naming(path):
            return data.heads()
    name, *pairs = re.split(r",(?=\w+=)", operand)  # a value may have commas, too
    model = load(name, **dict(pair.split("=", 1) for pair in pairs))
    if isinstance(data, Captured):
        if model.family is None:
            raise InvalidError(f"{model.path} is one layer; name the folder of the model whose hidden_states {path} has")
        return model.heads(data, ids=ids)
    if len(model) > 1:
        raise InvalidError(f"{path} has rows of one layer, but {model.path} has {len(model)} layers, whose rows differ; choose "
                           f"one, as in {model.path},layer={model[0].name}, or save the hidden_states of each")
    layer = model[0]
    return HeadTable({layer.name: run_heads(data, layer.handle()) | {"model": layer.name}})


if __name__ == "__main__":
    sys.exit(main())
