# SPDX-License-Identifier: Apache-2.0
"""Queries and keys of a model of transformers while it runs. docs/inspect.md shows its use."""

import contextlib
import importlib
import re
import sys

import numpy as np

from ._files import CaptureError
from ._masks import cut
from ._runs import join
from ._tensors import add_bias, to_float, to_numpy
from .captured import Captured

MASKS = {"sdpa": "sdpa_mask", "eager": "eager_mask"}  # the mask of each kernel that can be captured
CROSS = re.compile("cross|encoder_attn|encdec", re.I)


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
