# SPDX-License-Identifier: Apache-2.0
"""What a model of transformers computes its attention with, kept while it runs: docs/inspect.md shows its use."""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from ._arrays import Array, to_array, widen
from ._errors import CaptureError
from ._masks import causal_ranges, to_ranges
from ._runs import Call, Layer, Run, Runs
from .captured import Captured

MASKS = {"sdpa": "sdpa_mask", "eager": "eager_mask"}  # the mask of each kernel that can be captured
CROSS = re.compile("cross|encoder_attn|encdec", re.I)
OLDEST = (4, 56)  # transformers
NUM_MARKS = 8  # numbers of a key by which it is known again


class CaptureWarning(UserWarning):
    """What a capture has, but not where one would look for it first."""


@contextlib.contextmanager
def capture(model: Any, layers: int | str | Iterable[int | str] | None = None, values: bool = False,
            tokens: Iterable[str] | None = None, tokenizer: Any = None) -> Iterator[Captured]:
    """Keep what goes into the attention of a model of transformers while the block runs.

    ``with attnd.capture(model, layers=[8, 14]) as c: model(**inputs)``. The model computes with the kernel that
    it has, so its outputs stay the same to the bit. What `generate()` computes step by step becomes one sequence
    for each row of the batch; what does not continue is a run of its own, in `Captured.runs`, with a warning.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Of transformers 4.56 or newer; bert and its kin need 5. It computes with sdpa or eager.
    layers : list of int or str, optional
        Numbers, or names as `Captured.layers` has them (``0.1`` is the second call of 0, -1 the last layer);
        by default all.
    values : bool
        Keeps values, too, so that `heads` can be asked for.
    tokens : list of str, optional
        Labels of one sequence, without padding, which is cut off.
    tokenizer : optional
        Makes labels of the ids of every forward pass, by its `decode`.

    Raises
    ------
    CaptureError
        If the model cannot be captured, or nothing was.
    """
    transformers = importlib.import_module("transformers")
    check_model(model, transformers)
    recorder = Recorder(model, layers, values)
    captured = Captured({}, None if tokens is None else list(tokens))
    captured.tokenizer = tokenizer
    captured.source = functools.partial(fill, captured, recorder, goes_on=True)
    with recording(model, recorder, transformers, importlib.import_module("transformers.masking_utils")):
        yield captured

    if not recorder.was_kept or recorder.missing:
        raise CaptureError(recorder.reason())
    fill(captured, recorder, goes_on=False)
    captured.source = None
    for text in warnings_of(recorder.runs.all, len(captured.runs)):
        warnings.warn(text, CaptureWarning, stacklevel=3)


@contextlib.contextmanager
def recording(model: Any, recorder: Recorder, transformers: Any, masking: Any) -> Iterator[None]:
    """Let a model compute with the functions of a recorder while the block runs."""
    parts = [part for part in model.modules() if isinstance(part, transformers.PreTrainedModel)]
    kernels: dict[Any, str] = {}  # of each part of the model that has a configuration of its own
    for part in parts:
        if not any(part.config is known.config for known in kernels):
            kernels[part] = part.config._attn_implementation
    for kernel in set(kernels.values()):
        if kernel not in MASKS:
            raise CaptureError("the model is being captured already; end that block first" if kernel.startswith("attnd-") else
                               f"the model computes with {kernel!r}, whose masks a capture cannot read; load it with "
                               "attn_implementation='sdpa'")
        transformers.AttentionInterface.register(f"attnd-{kernel}", recorder.function(kernel))
        transformers.AttentionMaskInterface.register(f"attnd-{kernel}", getattr(masking, MASKS[kernel]))

    hooks = [model.register_forward_pre_hook(untraced(recorder.begin_forward)),
             model.register_forward_hook(untraced(recorder.end_forward))]
    hooks += [part.register_forward_pre_hook(untraced(recorder.note_ids), with_kwargs=True) for part in parts]
    model.generate_batch = refuse_batching  # an attribute of the object, which hides the method
    try:
        for part, kernel in kernels.items():
            part.set_attn_implementation(f"attnd-{kernel}")
        if model.config._attn_implementation != f"attnd-{kernels[model]}":
            raise CaptureError(f"{type(model).__name__} of transformers {transformers.__version__} does not let its "
                               "attention be replaced, so it cannot be captured (bert and its kin can from 5 on); "
                               "send its hidden states to attnd instead")
        yield
    finally:
        del model.generate_batch
        for hook in hooks:
            hook.remove()
        for part, kernel in kernels.items():
            part.set_attn_implementation(kernel)


def check_model(model: Any, transformers: Any) -> None:
    """Raise the error of a model that cannot be captured."""
    version = tuple(int(number) for number in re.findall(r"\d+", transformers.__version__)[:2])
    if version < OLDEST:
        raise CaptureError(f"transformers is {transformers.__version__}, but a capture needs 4.56 or newer, and 5 for bert "
                           "and its kin; pip install -U transformers")
    if type(model).__name__ == "OptimizedModule" or not isinstance(model, transformers.PreTrainedModel) \
            and hasattr(model, "get_base_model"):
        inner = "model._orig_mod" if hasattr(model, "_orig_mod") else "model.get_base_model()"
        raise CaptureError(f"model is a {type(model).__name__}, which wraps the model that runs; capture {inner}")
    if not isinstance(model, transformers.PreTrainedModel):
        raise CaptureError("a capture is of a model of transformers, such as pipeline.model, not "
                           f"{type(model).__name__}")


def refuse_batching(*_: Any, **__: Any) -> None:
    """Stand in for generate_batch() of a captured model."""
    raise CaptureError("generate_batch() computes with kernels of its own, which a capture cannot read; use generate()")


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that torch.compile() does not look into."""
    torch = sys.modules.get("torch")
    return function if torch is None else torch.compiler.disable(function)


def fill(captured: Captured, recorder: Recorder, goes_on: bool) -> None:
    """Give a capture the requests of all runs, with arrays of its own where the model goes on to write into theirs."""
    if not recorder.finish():
        return
    runs: list[Captured] = []
    for run in recorder.runs.all:
        requests = run.make_requests()
        own = Captured(copy.deepcopy(requests) if goes_on else requests, captured.tokens)
        own.tokenizer = captured.tokenizer
        if own.layers:
            runs.append(own)
    captured.replace(runs)


def warnings_of(runs: list[Run], num_runs: int) -> Iterator[str]:
    """Yield what a user of the last run should know of the others, with layers and numbers."""
    total: dict[str, int] = {}
    last: dict[str, Layer] = {}
    for run in runs:
        for name, layer in run.layers.items():
            if "queries" in layer.rows:
                total[name] = total.get(name, 0) + layer.num_calls
                last[name] = layer
    for (others, count), names in grouped({name: (total[name] - last[name].num_calls, total[name]) for name in last}):
        if others:
            yield (f"{names}: {others} of {count} calls do not continue in the last run, which is what a capture is "
                   f"asked about; c.runs has all {num_runs} runs")
    for (dropped,), names in grouped({name: (layer.num_dropped,) for name, layer in last.items()}):
        if dropped:
            yield f"{names}: {dropped} rows were taken back by a later call, as drafts that are rejected, and are not kept"
    num_reordered = max((run.num_reordered for run in runs), default=0)
    if num_reordered:
        yield (f"{say_layers(last)}: the sequences changed places in {num_reordered} calls, as beams do; sequence i is the "
               "beam that was at place i in the end, which generate() need not return; num_beams=1 has one sequence")


def grouped(facts: dict[str, tuple[int, ...]]) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yield each fact once, with the layers that share it."""
    for fact in dict.fromkeys(facts.values()):
        yield fact, say_layers(name for name, own in facts.items() if own == fact)


def say_layers(names: Iterable[str]) -> str:
    """Return `layers 0, 1`, with the first and the last of many."""
    names = list(names)
    text = ", ".join(names if len(names) < 7 else [*names[:3], "...", names[-1]])
    return f"layer{'s' if len(names) > 1 else ''} {text}"


class Recorder:
    """The attention function of a captured model."""

    def __init__(self, model: Any, layers: Any, values: bool) -> None:
        self.model, self.values, self.runs = model, values, Runs()
        self.called: dict[str, None] = {}  # a set in order
        self.was_kept = self.is_changed = False
        self.ids: Array | None = None
        self.masks: list[tuple[Any, tuple[Array, Array | None, int]]] = []
        self.counts: dict[str, int] = {}  # calls of each layer in one run of the model: albert's layers are one module
        layers = [layers] if isinstance(layers, (int, str)) else layers
        self.wanted = None if layers is None else {self.absolute(layer) for layer in layers}
        self.missing = set(self.wanted or ())
        self.names = {id(module): name for name, module in model.named_modules()}
        self.has_cross = any(CROSS.search(name) for name in self.names.values())

    def absolute(self, layer: int | str) -> str:
        """Return the name of a layer, which may be counted from the end."""
        if not isinstance(layer, str) and layer < 0:
            config = getattr(self.model.config, "get_text_config", lambda: self.model.config)()
            layer += getattr(config, "num_hidden_layers", 0)
        return str(layer)

    def reason(self) -> str:
        """Return why nothing was captured."""
        if self.called:
            return f"no layer has a name of {sorted(self.missing)}; the model called {', '.join(self.called)}"
        return (f"{type(self.model).__name__} never called its attention function: either the model did not run in "
                "the block, or its family does not use AttentionInterface; send its hidden states to attnd instead")

    def begin_forward(self, *_: Any) -> None:
        self.runs.finish()
        self.counts.clear()
        self.ids = None

    def end_forward(self, *_: Any) -> None:
        self.runs.finish()

    def note_ids(self, _: Any, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Keep the ids of the tokens that a part of the model gets. Runs after `begin_forward`."""
        ids = options.get("input_ids", inputs[0] if inputs else None)
        if ids is not None and getattr(ids, "ndim", 0) == 2 and "int" in str(ids.dtype):
            self.ids = to_numpy(ids)

    def finish(self) -> bool:
        """Bring runs up to date; return whether they have changed since the last time."""
        self.runs.finish()
        was_changed, self.is_changed = self.is_changed, False
        return was_changed

    def function(self, kernel: str) -> Callable[..., Any]:
        """Return the function to register, which calls the model's own kernel."""
        note = untraced(self.note)

        def attend(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> Any:
            note(module, (query, key, value), attention_mask, kernel, options)
            return own_kernel(kernel, module)(module, query, key, value, attention_mask, **options)
        return attend

    def note(self, module: Any, rows: tuple[Any, Any, Any], mask: Any, kernel: str, options: dict[str, Any]) -> None:
        """Record a call, unless checkpointing of gradients repeats it."""
        torch = sys.modules.get("torch")
        if torch is not None and torch._C._current_graph_task_id() != -1:
            return
        path = self.names.get(id(module), type(module).__name__)
        layer = layer_name(path, self.model.config)
        count = self.counts[layer] = self.counts.get(layer, -1) + 1
        layer += f".{count}" if count else ""
        self.called[layer] = None
        names = {layer, layer.split(".")[0]}
        is_wanted = self.wanted is None or bool(names & self.wanted)
        self.missing -= names
        if is_wanted or self.has_cross or len(rows[0]) > 1:
            self.record(layer, bool(CROSS.search(path)), module, rows, mask, kernel, options, is_wanted)
            self.was_kept = self.is_changed = True

    def record(self, layer: str, is_cross: bool, module: Any, rows: tuple[Any, Any, Any], mask: Any, kernel: str,
               options: dict[str, Any], is_wanted: bool) -> None:
        """Add a call to the runs. Tensors are [B, H, T, D]."""
        query, key, value = rows
        kept = {"keys": key, "values": value} if self.values else {"keys": key}
        num_queries, num_keys = query.shape[2], key.shape[2]
        causal = options.get("is_causal")
        causal = getattr(module, "is_causal", True) if causal is None else causal
        seen, bias, end = self.read_mask(mask, num_queries, num_keys, bool(kernel == "sdpa" and causal and num_queries > 1))

        def read_marks(places: Any) -> Array:
            return to_float(to_numpy(key[:, 0][:, places, :NUM_MARKS]))

        matches, num_past = self.runs.find_matches(layer, num_queries, num_keys, end, is_cross,
                                                   len(self.called) == 1 and len(key) > 1, read_marks)
        own = slice(num_past, num_keys if is_cross else num_past + num_queries)

        def read(places: slice) -> dict[str, Array]:
            found = {name: read_rows(tensor[:, :, places]) for name, tensor in kept.items()} if is_wanted else {}
            return {"marks": read_marks(places), **found}

        call = Call(layer, is_cross, read(own), num_past, lambda: read(slice(num_past)), num_queries, num_keys, matches)
        if self.ids is not None and self.ids.shape == (len(query), num_queries):
            call.ids = self.ids
        if is_wanted:
            call.rows["queries"] = read_rows(query)
            call.mask, call.bias, call.options = seen, add_bias(bias, options.get("position_bias")), \
                read_options(options, query.shape[-1])
        self.runs.calls.append(call)

    def read_mask(self, mask: Any, num_queries: int, num_keys: int, is_causal: bool) -> tuple[Array, Array | None, int]:
        """Return which keys are visible, as `Call.mask` has it, what is added to scores, and the end of visible keys.

        Layers share a mask, so the last ones are kept.
        """
        if mask is None:
            return causal_ranges(num_queries, num_keys, is_causal)[np.newaxis], None, \
                min(num_queries, num_keys) if is_causal else num_keys
        for known, result in self.masks:
            if known is mask:
                return result
        visible, bias = to_numpy(mask), None
        if visible.dtype != bool:
            array = to_float(visible)
            visible = array > -1e30 if array.min() < -1e30 else array > -6e4  # float16 has -65504
            bias = np.where(visible, array, 0) if np.any(array[visible]) else None
        columns = np.flatnonzero(visible.any(axis=(0, 1, 2)))
        end = max(int(columns[-1]) + 1 if columns.size else num_keys, min(num_queries, num_keys))
        ranges = to_ranges(visible)
        result = visible if ranges is None else ranges, bias, end
        self.masks = [*self.masks[-3:], (mask, result)]
        return result


def to_numpy(tensor: Any) -> Array:
    """Return a tensor as an array: bfloat16 by its bits, float64 as float32."""
    array = to_array("a captured tensor", tensor.detach().cpu().contiguous())
    return array.astype("<f4") if array.dtype == np.float64 else array


def to_float(array: Array) -> Array:
    """Return float32, also of bits of bfloat16."""
    return np.asarray(widen(array), np.float32)


def read_rows(tensor: Any) -> Array:
    """Return a tensor [B, H, T, D] as an array [B, T, H, D]."""
    return to_numpy(tensor.transpose(1, 2))


def read_options(options: dict[str, Any], head_size: int) -> dict[str, Any]:
    """Return the options of a request that a layer passes to its attention function."""
    request: dict[str, Any] = {"scale": float(options.get("scaling") or head_size ** -0.5)}
    if options.get("softcap") is not None:
        request["softcap"] = float(options["softcap"])
    if options.get("s_aux") is not None:
        request["sinks"] = to_numpy(options["s_aux"]).reshape(-1)
    return request


def add_bias(bias: Array | None, other: Any) -> Array | None:
    """Return the sum of two biases that may be None; `other` is a tensor."""
    added = None if other is None else to_float(to_numpy(other))
    return added if bias is None else bias if added is None else bias + added


def own_kernel(kernel: str, module: Any) -> Any:
    """Return the function that a layer of transformers would call."""
    if kernel != "eager":
        return importlib.import_module("transformers").AttentionInterface()[kernel]
    function = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if function is None:
        raise CaptureError(f"{type(module).__module__} has no eager_attention_forward; load the model with "
                           "attn_implementation='sdpa'")
    return function


def layer_name(path: str, config: Any) -> str:
    """Return the name that attnd has for a layer: `3`, `text.3`, `encoder.3`, `decoder.3.cross`."""
    number = re.search(r"\.(\d+)(\.|$)|^(\d+)\.", path)
    name = (number[1] or number[3]) if number else path
    towers = {"encoder": "encoder", "decoder": "decoder"} if config.is_encoder_decoder else {}
    if len(config.sub_configs) > 1 or "text_config" in config.sub_configs:
        towers |= {"vision": "vision", "visual": "vision", "audio": "audio", "text": "text", "language": "text"}
    before = path[:number.start()] if number else ""
    tower = next((short + "." for word, short in towers.items() if word in before), "")
    return tower + name + (".cross" if CROSS.search(path) else "")
