# SPDX-License-Identifier: Apache-2.0
"""Files that vLLM and vLLM-Hook write."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from ._arrays import Array
from ._errors import CaptureError
from ._safetensors import read_safetensors
from .captured import Captured
from .captured import open as open_capture


def read_hidden_states(path: str | os.PathLike[str], ids: Sequence[int],
                       num_hidden_layers: int | None = None) -> tuple[dict[int, Array], Array]:
    """Return the hidden states [tokens, width] of a file of vLLM by layer, and its token ids. `ids` are those
    of its configuration, `eagle_aux_hidden_state_layer_ids`, in that order: the file does not have them. Each
    goes to the layer of that number."""
    captured = open_capture(path)
    if captured.hidden_states is None or captured.token_ids is None:
        raise CaptureError(f"{path} is no file of vLLM, which has hidden_states and token_ids")
    if num_hidden_layers is not None and max(ids) >= num_hidden_layers:
        raise CaptureError(f"id {max(ids)} is what leaves the last layer, and enters none; ids are below "
                           f"{num_hidden_layers}")
    return captured.states(ids), captured.token_ids


def read_vllm_hook(run: str | os.PathLike[str]) -> list[Captured]:
    """Return a Captured for each request that vLLM-Hook wrote into a run's folder, or for each pass where the
    files do not say which passes belong together. The ranks of several GPUs become one."""
    folders = sorted(pathlib.Path(run).glob("tp_rank_*"), key=lambda path: int(path.name.split("_")[-1]))
    if not folders:
        raise CaptureError(f"{run} has no folder tp_rank_0; vLLM-Hook makes it in the folder of a run")
    ranks = [read_rank(folder, len(folders)) for folder in folders]
    captured = []
    for same in zip(*ranks):
        captured.append(Captured({layer: [own] for layer, (own,) in same[0].items()}))
        for layer, (request,) in captured[-1].layers.items():
            for name in ("queries", "keys"):
                request[name] = np.concatenate([rank[layer][0][name] for rank in same], axis=1)
    return captured


def read_rank(folder: pathlib.Path, num_ranks: int) -> list[dict[str, list[dict[str, Any]]]]:
    """Return for each request or pass of one rank its layers."""
    if not (folder / "qk.safetensors").exists():
        raise CaptureError(f"{folder} has no qk.safetensors; set VLLM_HOOK_USE_SAFETENSORS=1 for vLLM-Hook, which "
                           "writes a pickle otherwise")
    tensors, _ = read_safetensors(folder / "qk.safetensors")
    sidecar = json.loads((folder / "qk.json").read_text())
    num_heads = sidecar["config"]["num_attention_heads"] // num_ranks
    found: list[dict[str, list[dict[str, Any]]]] = []
    for entry in sidecar["layer_order"]:
        queries, keys = tensors[entry["key_q"]], tensors[entry["key_k"]]
        head_size = queries.shape[-1] // num_heads  # its own head_dim is wrong for some models
        scale = sidecar["config"].get("attention_multiplier") or head_size ** -0.5
        for number, (rows, seen, positions) in enumerate(passes(sidecar, queries, keys)):
            request = {"queries": rows.reshape(len(rows), -1, head_size), "positions": positions,
                       "keys": seen.reshape(len(seen), -1, head_size), "scale": scale, "causal": True}
            if number == len(found):
                found.append({})
            found[number][str(entry["layer_num"])] = [request]
    return found


def passes(sidecar: dict[str, Any], queries: Array, keys: Array) -> list[tuple[Array, Array, Array]]:
    """Return the queries, keys and positions of each pass, or of each request where it is known."""
    if sidecar.get("compact_all_tokens"):
        key_ends, ends = np.cumsum(sidecar["k_full_lens"]), sidecar["k_prefix_ends"]
        lens, first, result = iter(sidecar["q_seq_lens"]), 0, []
        for key_end, length, prefixes in zip(key_ends, sidecar["k_full_lens"], ends):
            positions = np.concatenate([np.arange(end - count, end) for end, count in zip(prefixes, lens)])
            result.append((queries[first:first + len(positions)], keys[key_end - length:key_end], positions))
            first += len(positions)
        return result

    if "k_seq_lens" not in sidecar or keys.ndim != 3:
        raise CaptureError(f"qk.json has {', '.join(sidecar)} and keys of {keys.shape}: none of vLLM-Hook's three "
                           "layouts (all tokens, last token, compact)")
    key_lens = sidecar["k_seq_lens"]
    if queries.ndim == 2:  # the last token of each pass
        queries = queries[:, None]
    query_lens = sidecar.get("q_seq_lens") or [1] * len(key_lens)
    return [(queries[i, :rows], keys[i, :length], np.arange(length - rows, length))
            for i, (rows, length) in enumerate(zip(query_lens, key_lens))]
