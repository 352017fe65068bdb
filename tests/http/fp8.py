# SPDX-License-Identifier: Apache-2.0
"""Folders whose attention is stored in FP8 (E4M3), in each form that is published; and their twins,
which have the same numbers in float32."""

import json
import re

import numpy as np

from safetensors_file import as_stored, read_safetensors, write_safetensors

# The numbers of codes 0 to 126; 127 is NaN, and the highest bit the sign.
CODES = np.array([np.ldexp(8 * (code >= 8) + code % 8, max(code // 8, 1) - 10) for code in range(127)], np.float32)
WEIGHT = re.compile(r"(att|mixer)[\w.]*\.(?!\w*(norm|bias|embed|conv))\w+\.weight$", re.I)
GROUP = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False}


def groups(**weights):
    return {"quant_method": "compressed-tensors", "format": "float-quantized", "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": GROUP | weights}}}


# What config.json says, how the names of scales end, their type, how they lie, and rows and columns of a
# block, where 0 is all of them. `shape` is what becomes of ceil(R / rows) x ceil(C / columns) scales.
FORMS = {
    "block": ({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [24, 16]},
              "_scale_inv", "F32", lambda scales: scales, (24, 16)),
    "large block": ({"quant_method": "fp8", "fmt": "float8_e4m3fn", "weight_block_size": [128, 128]},
                    "_scale_inv", "BF16", lambda scales: scales, (128, 128)),
    "static": ({"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None},
               "_scale_inv", "BF16", lambda scales: scales[0, 0], (0, 0)),
    "ue8m0": ({"quant_method": "fp8", "scale_fmt": "ue8m0", "weight_block_size": [16, 16]},
              "_scale_inv", "F8_E8M0", lambda scales: scales, (16, 16)),
    "channel": (groups(strategy="channel"), "_scale", "BF16", lambda scales: scales, (1, 0)),
    "row": (groups(strategy="channel"), "_scale", "F16", lambda scales: scales[:, 0], (1, 0)),
    "tensor": ({"quant_method": "modelopt", "quant_algo": "FP8"}, "_scale", "F32", lambda scales: scales[0], (0, 0)),
    "mxfp8": (groups(strategy="group", group_size=32) | {"format": "mxfp8-quantized"},
              "_scale", "U8", lambda scales: scales, (1, 32)),
}


def encode(numbers):
    """Returns the codes of the nearest numbers that FP8 has."""
    codes = np.searchsorted((CODES[1:] + CODES[:-1]) / 2, np.abs(numbers)).astype(np.uint8)
    return codes | (np.signbit(numbers).astype(np.uint8) << 7)


def decode(codes):
    return np.copysign(CODES[codes & 127], np.where(codes & 128, -1, 1)).astype(np.float32)


def make_scales(weight, dtype, block):
    """Returns the scales of a matrix as they are stored, and the scale of each of its numbers."""
    rows, columns = (size or whole for size, whole in zip(block, weight.shape))
    grid = [range(0, weight.shape[0], rows), range(0, weight.shape[1], columns)]
    most = np.array([[np.abs(weight[i:i + rows, j:j + columns]).max() for j in grid[1]] for i in grid[0]])
    scales = np.maximum(most, 1e-6).astype(np.float32) / np.float32(448)
    if dtype in ("U8", "F8_E8M0"):
        stored = np.ceil(np.log2(scales)).astype(int) + 127
        scales = np.ldexp(np.float32(1), stored - 127)
    else:
        stored = scales = as_stored(scales, dtype)
    return stored, np.repeat(np.repeat(scales, rows, 0), columns, 1)[:weight.shape[0], :weight.shape[1]]


def read_tensors(folder):
    return {name: tensor for path in sorted(folder.glob("model*.safetensors"))
            for name, tensor in read_safetensors(path).items()}


def make_fp8(tensors, form):
    """Returns the tensors with the attention's matrices in FP8, the types of all, and the twin's tensors."""
    quantization, ending, dtype, shape, block = FORMS[form]
    stored, twin = {}, dict(tensors)
    types = dict.fromkeys(tensors, "F32")
    for name, weight in tensors.items():
        stored[name] = weight
        if weight.ndim != 2 or not WEIGHT.search(name):
            continue
        scales, each = make_scales(weight, dtype, block)
        stored[name] = encode(weight / each)
        twin[name] = decode(stored[name]) * each
        stored[name + ending] = shape(scales)
        stored[name.removesuffix("weight") + "input_scale"] = np.float32(0.5)
        types |= {name: "F8_E4M3", name + ending: dtype, name.removesuffix("weight") + "input_scale": "F32"}
    assert len(stored) > len(tensors)
    return stored, types, twin


def write_folder(folder, config, tensors, types="F32"):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", tensors, types)


def write_fp8(source, form, target):
    """Writes a folder of the data in that form, and beside it its twin. Returns both."""
    config = json.loads((source / "config.json").read_text())
    stored, types, twin = make_fp8(read_tensors(source), form)
    write_folder(target / "fp8", config | {"quantization_config": FORMS[form][0]}, stored, types)
    write_folder(target / "twin", config, twin)
    return target / "fp8", target / "twin"
