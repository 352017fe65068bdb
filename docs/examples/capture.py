# SPDX-License-Identifier: Apache-2.0
"""Queries and keys of a model that runs elsewhere, for attnd to compute their attention weights.

Copy it beside your program. It needs the package attnd; `capture` works on
models of torch and transformers. docs/inspect.md shows its use."""

import contextlib
import fcntl
import importlib
import json
import pathlib
import re
import struct
import sys

import numpy as np

from attnd.client import BFLOAT16, AttentionError, Client, from_safetensors, to_safetensors

MASKS = {"sdpa": "sdpa_mask", "eager": "eager_mask"}  # the mask of each kernel that can be captured
TENSORS = ("queries", "keys", "values", "bias", "sinks", "slopes", "positions", "key_positions")
OPTIONS = ("scale", "softcap", "causal", "window")
CROSS = re.compile("cross|encoder_attn|encdec", re.I)


class CaptureError(Exception):
    """What could not be captured or read, and what to do."""


class Captured:
    """The calls of the attention layers of one model: `layers` has for each name the options of a
    request, as `Client.dot_product` takes them, for each sequence. `tokens` are labels, if one has them."""

    def __init__(self, layers=None, tokens=None):
        self.layers, self.tokens = {} if layers is None else layers, tokens
        self.kept = {}  # by sequence: the client that has put it, and its name

    def request(self, layer, sequence=0):
        """Returns the queries, keys and options of a layer, which may be given as its number."""
        found = self.layers.get(str(layer))
        if found is None:
            raise CaptureError(f"layer {layer} was not captured; these were: {', '.join(self.layers) or 'none'}")
        if not -len(found) <= sequence < len(found):
            raise CaptureError(f"there is no sequence {sequence}; layer {layer} has {len(found)}, which begin at 0")
        return found[sequence]

    def attend(self, layer, need="weights", heads=None, queries=None, client=None, sequence=0, **options):
        """Returns what attnd computes for a layer: an array, such as [H, Tq, Tk] of weights, or for a
        list of words a dict. `heads` and `queries` select; -1 is the last query. `client` is a
        Client, or the address of an attnd. Without one, what has been `put` is asked by its name.
        Other options are those of `Client.dot_product`."""
        request = dict(self.request(layer, sequence))
        words = need.split(",") if isinstance(need, str) else list(need)
        if "heads" not in words:
            request.pop("values", None)
        elif "values" not in request:
            raise CaptureError("heads are sums of values, which were not kept; use capture(..., values=True)")
        options |= {"need": words, "weights_heads": heads, "weights_queries": queries}
        if client is None and sequence in self.kept:
            kept, name = self.kept[sequence]
            results = kept.attend(capture=name, layer=layer, **options)
        else:
            results = as_client(client).dot_product(**request, **options)
        return results[need] if need in words else results

    def put(self, client=None, sequence=0):
        """Puts one sequence on the server, so that `attend` sends no tensors any more. Returns its name,
        the SHA-256 of what `save` writes. After a change of `layers`, put it again."""
        client = as_client(client)
        try:
            name = client.put_capture(None, lambda: self.to_bytes(sequence))["name"]
        except AttentionError as error:
            if error.problem["title"] != "Captures are off":
                raise
            raise CaptureError(f"{client.address} keeps no captures; start attnd with --capture-memory 4GiB") from error
        self.kept[sequence] = client, name
        return name

    def bertviz(self, layers=None, **options):
        """Returns what BertViz's head_view and model_view take: `head_view(**captured.bertviz())`."""
        attention = [self.attend(layer, **options)[None] for layer in layers or self.layers]
        with contextlib.suppress(ImportError):
            attention = [importlib.import_module("torch").from_numpy(weights) for weights in attention]
        return {"attention": attention, "tokens": self.labels(attention[0].shape[-1])}

    def circuitsvis(self, layer, **options):
        """Returns what CircuitsVis takes: `circuitsvis.attention.attention_heads(**...)`."""
        weights = self.attend(layer, **options)
        return {"attention": weights, "tokens": self.labels(weights.shape[-1])}

    def labels(self, count):
        """Returns the first `count` tokens, or their numbers."""
        return [str(each) for each in (range(count) if self.tokens is None else list(self.tokens)[:count])]

    def save(self, path, sequence=0):
        """Writes one sequence as safetensors: `LAYER.queries` and so on, and options as JSON texts."""
        pathlib.Path(path).write_bytes(self.to_bytes(sequence))

    def to_bytes(self, sequence=0):
        """Returns what `save` writes: the same bytes for the same capture, also when it was loaded."""
        tensors, metadata = {}, {"layers": json.dumps(list(self.layers)), "tokens": json.dumps(self.tokens)}
        for layer in self.layers:
            for name, value in sorted(self.request(layer, sequence).items(), key=lambda item: place(item[0])):
                if name in TENSORS:
                    tensors[f"{layer}.{name}"] = np.ascontiguousarray(value)
                else:
                    metadata[f"{layer}.{name}"] = json.dumps(value)
        return to_safetensors(tensors, metadata)


def place(name):
    """Returns where a field is in a file: in the order of `load`, so that a file is saved as it was."""
    return (*TENSORS, *OPTIONS, name).index(name)


def as_client(client):
    """Returns a client, which may be given as an address, or as None for the usual one."""
    return client if hasattr(client, "dot_product") else Client(*[client] if client else [])


def load(path):
    """Returns the Captured that `save` wrote."""
    tensors, metadata = read_safetensors(path)
    if "layers" not in metadata:
        raise CaptureError(f"{path} is no capture: it has no 'layers' in its metadata, but {describe(tensors)}")
    layers = {}
    for layer in json.loads(metadata["layers"]):
        request = {name: tensors[f"{layer}.{name}"] for name in TENSORS if f"{layer}.{name}" in tensors}
        request |= {name: json.loads(metadata[f"{layer}.{name}"]) for name in OPTIONS
                    if f"{layer}.{name}" in metadata}
        layers[layer] = [request]
    return Captured(layers, json.loads(metadata.get("tokens", "null")))


# Beside transformers


@contextlib.contextmanager
def capture(model, layers=None, values=False, tokens=None):
    """Keeps what goes into the attention of a model of transformers while the block runs:
    `with capture(model, layers=[8, 14]) as c: model(**inputs)`.

    The model computes with the kernel that it has, so its outputs stay the same to the bit. `layers` are numbers,
    or names as `Captured.layers` has them (`0.1` is the second call of 0); by default all. `values` keeps values
    too. `tokens` are the labels of one sequence, without padding, which is cut off. The steps of generate() become
    one sequence; otherwise the last run of the model counts."""
    transformers = importlib.import_module("transformers")
    if not isinstance(model, transformers.PreTrainedModel):
        raise CaptureError("a capture is of a model of transformers, such as pipeline.model, not "
                           f"{type(model).__name__}")
    masking = importlib.import_module("transformers.masking_utils")
    recorder = Recorder(model, layers, values)
    captured = Captured(recorder.layers, tokens)
    kernels = {}  # of each part of the model that has a configuration of its own
    for part in model.modules():
        if isinstance(part, transformers.PreTrainedModel) and not any(part.config is p.config for p in kernels):
            kernels[part] = part.config._attn_implementation

    for kernel in set(kernels.values()):
        if kernel not in MASKS:
            raise CaptureError(f"the model computes with {kernel!r}, whose masks a capture cannot read; load it with "
                               "attn_implementation='sdpa'")
        transformers.AttentionInterface.register(f"attnd-{kernel}", recorder.function(kernel))
        transformers.AttentionMaskInterface.register(f"attnd-{kernel}", getattr(masking, MASKS[kernel]))
    hook = model.register_forward_pre_hook(lambda *_: recorder.counts.clear())
    try:
        for part, kernel in kernels.items():
            part.set_attn_implementation(f"attnd-{kernel}")
        if model.config._attn_implementation != f"attnd-{kernels[model]}":
            raise CaptureError(f"{type(model).__name__} does not let its attention be replaced, so it cannot be "
                               "captured; send its hidden states to attnd instead")
        yield captured
    finally:
        hook.remove()
        for part, kernel in kernels.items():
            part.set_attn_implementation(kernel)

    if not recorder.layers or recorder.missing:
        raise CaptureError(recorder.reason())


class Recorder:
    """The attention function of a captured model."""

    def __init__(self, model, layers, values):
        self.model, self.values, self.layers, self.called, self.masks = model, values, {}, {}, []
        self.counts = {}  # calls of each layer in one run of the model: albert's layers are one module
        layers = [layers] if isinstance(layers, (int, str)) else layers
        self.wanted = None if layers is None else {str(layer) for layer in layers}
        self.missing = set(self.wanted or ())
        self.names = {id(module): name for name, module in model.named_modules()}

    def reason(self):
        """Returns why nothing was captured."""
        if self.called:
            return f"no layer has a name of {sorted(self.missing)}; the model called {', '.join(self.called)}"
        return (f"{type(self.model).__name__} never called its attention function: either the model did not run in "
                "the block, or its family does not use AttentionInterface; send its hidden states to attnd instead")

    def function(self, kernel):
        """Returns the function to register, which calls the model's own kernel."""
        def attend(module, query, key, value, attention_mask, **options):
            path = self.names.get(id(module), type(module).__name__)
            layer = layer_name(path, self.model.config)
            count = self.counts[layer] = self.counts.get(layer, -1) + 1
            layer += f".{count}" if count else ""
            self.called[layer] = None  # a set in order
            names = {layer, layer.split(".")[0]}
            if self.wanted is None or names & self.wanted:
                self.missing -= names
                self.record(layer, path, module, (query, key, value), attention_mask, kernel, options)
            return own_kernel(kernel, module)(module, query, key, value, attention_mask, **options)
        return attend

    def record(self, layer, path, module, rows, mask, kernel, options):
        query, key, value = (to_numpy(tensor.transpose(1, 2)) for tensor in rows)  # [B, T, H, D]
        causal = options.get("is_causal")
        causal = getattr(module, "is_causal", True) if causal is None else causal
        visible, bias = self.read_mask(mask, bool(kernel == "sdpa" and causal and query.shape[1] > 1))
        bias = add_bias(bias, options.get("position_bias"))
        found = []
        for item in range(len(query)):
            request = {"scale": float(options.get("scaling") or query.shape[-1] ** -0.5)}
            if options.get("softcap") is not None:
                request["softcap"] = float(options["softcap"])
            if options.get("s_aux") is not None:
                request["sinks"] = to_numpy(options["s_aux"]).reshape(-1)
            tensors = query[item], key[item], value[item] if self.values else None
            masks = [each if isinstance(each, (bool, type(None))) else each[min(item, len(each) - 1)]
                     for each in (visible, bias)]
            found.append(request | cut(*tensors, *masks, is_self=not CROSS.search(path)))
        before = self.layers.get(layer)
        self.layers[layer] = [join(*pair) for pair in zip(before, found)] if before and len(before) == len(found) \
            else found

    def read_mask(self, mask, is_causal):
        """Returns which keys are visible, booleans [B, H or 1, Tq, Tk] or whether the mask is causal, and what is
        added to scores. Layers share a mask, so the last ones are kept."""
        if mask is None:
            return is_causal, None
        for known, result in self.masks:
            if known is mask:
                return result
        array = to_numpy(mask)
        result = array, None
        if array.dtype != bool:
            array = to_float(array)
            visible = array > -1e30 if array.min() < -1e30 else array > -6e4  # float16 has -65504
            result = visible, None if not np.any(array[visible]) else np.where(visible, array, 0)
        self.masks = [*self.masks[-3:], (mask, result)]
        return result


def own_kernel(kernel, module):
    """Returns the function that a layer of transformers would call."""
    if kernel != "eager":
        return importlib.import_module("transformers").AttentionInterface()[kernel]
    found = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if found is None:
        raise CaptureError(f"{type(module).__module__} has no eager_attention_forward; load the model with "
                           "attn_implementation='sdpa'")
    return found


def layer_name(path, config):
    """Returns the name that attnd has for a layer: `3`, `text.3`, `encoder.3`, `decoder.3.cross`."""
    number = re.search(r"\.(\d+)(\.|$)|^(\d+)\.", path)
    name = (number[1] or number[3]) if number else path
    towers = {"encoder": "encoder", "decoder": "decoder"} if config.is_encoder_decoder else {}
    if len(config.sub_configs) > 1 or "text_config" in config.sub_configs:
        towers |= {"vision": "vision", "visual": "vision", "audio": "audio", "text": "text", "language": "text"}
    before = path[:number.start()] if number else ""
    tower = next((short + "." for word, short in towers.items() if word in before), "")
    return tower + name + (".cross" if CROSS.search(path) else "")


def cut(queries, keys, values, visible, bias, is_self):
    """Returns the fields of one sequence [T, H, D] without its padding. `visible` is [H or 1, Tq, Tk], or
    whether the mask is causal. A mask that causal and window explain is sent as these, any other as bias."""
    num_queries, num_keys = len(queries), len(keys)
    if isinstance(visible, bool):  # sdpa aligns at the first key, and later ones are not seen
        num_keys = min(num_queries, num_keys) if visible else num_keys
        words, rows, columns = {"causal": visible}, slice(None), slice(num_keys)
    else:
        words, rows, columns = explain(visible, is_self)
    request = {"queries": queries[rows], "keys": keys[columns]} | words
    if values is not None:
        request["values"] = values[columns]
    if bias is not None:
        bias = bias[..., rows if bias.shape[-2] > 1 else slice(None), columns]
    if "bias" in words:
        bias = words["bias"] if bias is None else np.where(np.isneginf(words["bias"]), -np.inf, bias)
    if bias is not None and np.any(bias):
        request["bias"] = np.asarray(bias, np.float32)
    if request["causal"] and len(request["queries"]) != len(request["keys"]):
        shift = len(request["keys"]) - len(request["queries"])
        request["positions"] = np.arange(len(request["queries"])) + shift
    return request


def explain(visible, is_self):
    """Returns the words for a mask [H or 1, Tq, Tk], and the rows and columns that are not padding. In
    self-attention the last query is the last key."""
    num_queries, num_keys = visible.shape[-2:]
    seen = np.flatnonzero(visible.any(axis=(0, 1)))
    if seen.size == 0:
        return {"causal": False, "bias": np.where(visible, 0, -np.inf)}, slice(None), slice(None)
    shift, end = num_keys - num_queries, seen[-1] + 1
    for start in sorted({0, seen[0]}):
        rows = slice(max(start - shift, 0), max(end - shift, 1)) if is_self and shift >= 0 else slice(None)
        inner = visible[:, rows, start:end]
        words = find_words(inner, rows.start + shift - start if rows.start is not None else 0)
        if words is not None:
            break
    else:
        words = {"causal": False, "bias": np.where(inner, 0, -np.inf)}
    return words, rows, slice(start, end)


def find_words(visible, shift):
    """Returns causal and window if these explain a mask [H or 1, Tq, Tk] whose query i is at i + shift."""
    if visible.all():
        return {"causal": False}
    distance = np.arange(visible.shape[-2])[:, None] + shift - np.arange(visible.shape[-1])
    is_causal = not visible[:, distance < 0].any()
    farthest = int(np.abs(distance[visible.any(axis=0)]).max(initial=0))
    for window in (None, farthest + is_causal) if farthest + is_causal else (None,):
        expected = distance >= 0 if is_causal else np.ones_like(distance, bool)
        if window is not None:  # attnd's: the last W positions, or at most W away on both sides
            expected &= distance < window if is_causal else np.abs(distance) <= window
        if (visible == expected).all():
            return {"causal": is_causal} | ({"window": window} if window else {})
    return None


def join(before, after):
    """Returns two calls as one where the second is the next step of generate(): it has the keys of the first, or
    those that a window has left of them, and its own. In cross attention all keys are the same."""
    num_kept, step = len(after["keys"]) - len(after["queries"]), len(after["queries"]) == 1
    if step and np.array_equal(before["keys"], after["keys"]) and "bias" not in before:
        return after | {"queries": np.concatenate([before["queries"], after["queries"]])}

    num_before, window = len(before["keys"]), after.get("window")
    if step and 0 < num_kept < num_before:
        window = len(after["keys"])
    is_causal = all(call["causal"] or len(call["queries"]) == 1 for call in (before, after))
    is_window = before.get("window") == window or "window" not in before and num_before <= (window or 0)
    is_next = 0 < num_kept <= num_before and np.array_equal(before["keys"][-num_kept:], after["keys"][:num_kept])
    if not (is_causal and is_window and is_next) or "bias" in before or "bias" in after:
        return after

    joined = after | {name: np.concatenate([before[name], after[name][num_kept:]])
                      for name in ("keys", "values") if name in after}
    joined["queries"] = np.concatenate([before["queries"], after["queries"]])
    first = before.get("positions", np.arange(num_before)[-len(before["queries"]):])
    joined["positions"] = np.append(first, np.arange(len(joined["keys"]))[-len(after["queries"]):])
    return joined | {"causal": True} | ({"window": window} if window else {})


def add_bias(bias, other):
    """Returns the sum of two biases that may be None; `other` is a tensor."""
    other = None if other is None else to_float(to_numpy(other))
    return other if bias is None else bias if other is None else bias + other


def to_numpy(tensor):
    """Returns a tensor as an array; bfloat16 by its bits."""
    tensor = tensor.detach().cpu().contiguous()
    if str(tensor.dtype) == "torch.bfloat16":
        return tensor.view(importlib.import_module("torch").uint16).numpy().view(BFLOAT16)
    array = tensor.numpy()
    return array.astype("<f4") if array.dtype == np.float64 else array


def to_float(array):
    """Returns float32; bfloat16 is its upper half."""
    if array.dtype == BFLOAT16:
        return (array.view("<u2").astype("<u4") << 16).view("<f4")
    return np.asarray(array, np.float32)


# Beside vLLM


def read_hidden_states(path, ids, num_hidden_layers=None):
    """Returns the hidden states [tokens, width] of a file of vLLM by layer, and its token ids. `ids` are those
    of its configuration, `eagle_aux_hidden_state_layer_ids`, in that order: the file does not have them. Each
    goes to the layer of that number, served with pre_norm=true."""
    tensors, _ = read_safetensors(path, lock=True)
    hidden = tensors.get("hidden_states")
    if hidden is None or hidden.ndim != 3 or "token_ids" not in tensors:
        raise CaptureError(f"{path} is no file of vLLM, which has hidden_states [tokens, layers, width] and "
                           f"token_ids: it has {describe(tensors)}")
    if hidden.shape[1] != len(ids):
        raise CaptureError(f"{path} has {hidden.shape[1]} layers, but ids has {len(ids)}")
    if num_hidden_layers is not None and max(ids) >= num_hidden_layers:
        raise CaptureError(f"id {max(ids)} is what leaves the last layer, and enters none; ids are below "
                           f"{num_hidden_layers}")
    if len(hidden) < len(tensors["token_ids"]):
        raise CaptureError(f"{path} has {len(hidden)} rows, but {len(tensors['token_ids'])} token_ids: the first part of "
                           "the prompt came from the prefix cache; start vllm with --no-enable-prefix-caching")
    return {number: hidden[:, place] for place, number in enumerate(ids)}, tensors["token_ids"]


def read_vllm_hook(run):
    """Returns a Captured for each request that vLLM-Hook wrote into a run's folder, or for each pass where the
    files do not say which passes belong together. The ranks of several GPUs become one."""
    folders = sorted(pathlib.Path(run).glob("tp_rank_*"), key=lambda path: int(path.name.split("_")[-1]))
    if not folders:
        raise CaptureError(f"{run} has no folder tp_rank_0; vLLM-Hook makes it in the folder of a run")
    ranks = [read_rank(folder, len(folders)) for folder in folders]
    captured = []
    for same in zip(*ranks):
        layers = {layer: [dict(same[0][layer][0])] for layer in same[0]}
        for layer, (request,) in layers.items():
            for name in ("queries", "keys"):
                request[name] = np.concatenate([rank[layer][0][name] for rank in same], axis=1)
        captured.append(Captured(layers))
    return captured


def read_rank(folder, num_ranks):
    """Returns for each request or pass of one rank its layers."""
    if not (folder / "qk.safetensors").exists():
        raise CaptureError(f"{folder} has no qk.safetensors; set VLLM_HOOK_USE_SAFETENSORS=1 for vLLM-Hook, which "
                           "writes a pickle otherwise")
    tensors, _ = read_safetensors(folder / "qk.safetensors")
    sidecar = json.loads((folder / "qk.json").read_text())
    num_heads = sidecar["config"]["num_attention_heads"] // num_ranks
    found = []
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


def passes(sidecar, queries, keys):
    """Returns the queries, keys and positions of each pass, or of each request where it is known."""
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


def read_safetensors(path, lock=False):
    """Returns the tensors and the metadata of a file; with `lock` once its writer has finished."""
    with contextlib.ExitStack() as stack:
        guard = pathlib.Path(f"{path}.lock")
        if lock and guard.exists():
            fcntl.flock(stack.enter_context(guard.open()), fcntl.LOCK_SH)
        data = pathlib.Path(path).read_bytes()
    try:
        size, = struct.unpack_from("<Q", data)
        metadata = json.loads(data[8:8 + size]).get("__metadata__", {})
        return from_safetensors(bytearray(data)), metadata
    except (struct.error, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise CaptureError(f"{path} is not safetensors that this program reads: it begins with {data[:8]!r} and has "
                           f"{len(data)} bytes") from error


def describe(tensors):
    """Returns the names and shapes of what a file has."""
    shapes = [f"{name} {list(tensor.shape)}" for name, tensor in tensors.items()]
    return ", ".join(shapes[:8]) + (", ..." if len(shapes) > 8 else "") or "no tensors"
