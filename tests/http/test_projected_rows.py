# SPDX-License-Identifier: Apache-2.0
"""Folders whose queries, keys or values are normed, clipped, rotated or multiplied in a way of their
own, compared with the definition in float64: options that no folder of tests/data/hf has."""

import json

import numpy as np
import pytest

from folders import refusal_of
from safetensors_file import write_safetensors
from server import Server

H, KV, D, E, T = 4, 2, 8, 32, 9
PROJ = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
BERT = ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense")


def norm(x, weight=1.0, centred=False, eps=1e-5, axes=-1):
    x = x - x.mean(axes, keepdims=True) if centred else x
    return x / np.sqrt((x * x).mean(axes, keepdims=True) + eps) * weight


def rotate(x, base=10000.0, interleaved=False, sign=1, turning=None):
    """Rotates [T, heads, size] to positions 0, 1, ..."""
    size = x.shape[-1]
    frequencies = base ** (-2 * np.arange(size // 2) / size)
    frequencies[size // 2 if turning is None else turning:] = 0
    angles = sign * np.arange(len(x))[:, None, None] * frequencies
    pairs = (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(0, size // 2), slice(size // 2, None))
    first, second = x[..., pairs[0]], x[..., pairs[1]]
    turned = np.empty_like(x)
    turned[..., pairs[0]] = first * np.cos(angles) - second * np.sin(angles)
    turned[..., pairs[1]] = second * np.cos(angles) + first * np.sin(angles)
    return turned


def attend(queries, keys, values, scale, causal=True, window=T):
    """Returns the heads' outputs [T, H * size]."""
    group = queries.shape[1] // keys.shape[1]
    keys, values = np.repeat(keys, group, axis=1), np.repeat(values, group, axis=1)
    scores = np.einsum("ihd,jhd->hij", queries, keys) * scale
    distance = np.arange(T)[:, None] - np.arange(T)
    scores[:, (distance < 0) & causal | (distance >= window)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("hij,jhd->ihd", weights, values).reshape(T, -1)


class Layer:
    """Random tensors of a layer, and its rows projected in float64."""

    def __init__(self, rng, path, names=PROJ, heads=KV, size=D, bias=False):
        self.rng, self.path, self.names, self.tensors = rng, path, names, {}
        self.counts, self.size = (H, heads, heads), size
        for name, count in zip(names, self.counts + (None,)):
            shape = (E, H * size) if count is None else (count * size, E)
            self.add(name, shape, 0.4)
            if bias:
                self.add(name, shape[:1], 0.4, "bias")

    def add(self, name, shape, scale=1.0, kind="weight"):
        tensor = (self.rng.standard_normal(shape) * scale).astype(np.float32)
        self.tensors[f"{self.path}{name}.{kind}"] = tensor
        return tensor.astype(np.float64)

    def apply(self, which, x):
        name = self.path + self.names[which]
        bias = self.tensors.get(f"{name}.bias", np.zeros(1, np.float32))
        return x @ self.tensors[f"{name}.weight"].astype(np.float64).T + bias

    def project(self, x):
        return [self.apply(i, x).reshape(T, count, self.size) for i, count in enumerate(self.counts)]


def cohere(rng, layer, x, **options):
    """Layer norms with weights of each head, or a tensor for each, before the rotation."""
    q, k, v = layer.project(x)
    if "use_qk_norm" in options:
        weights = [layer.add(f"self_attn.{name}_norm", (count, D)) for name, count in (("q", H), ("k", KV))]
    else:
        weights = [np.array([layer.add(f"self_attn.{name}_layernorm.norms.{h}", (D,)) for h in range(count)])
                   for name, count in (("q", H), ("k", KV))]
    q, k = (norm(rows, weight, centred=True) for rows, weight in zip((q, k), weights))
    turned = [rotate(rows[..., :options["part"]], interleaved=options["interleaved"]) for rows in (q, k)]
    q, k = (np.concatenate([first, rows[..., options["part"]:]], -1) for first, rows in zip(turned, (q, k)))
    return attend(q, k, v, D ** -0.5)


def olmoe(rng, layer, x):
    q, k, v = layer.project(x)
    q = norm(q, layer.add("self_attn.q_norm", (H * D,)).reshape(H, D), axes=(1, 2))
    k = norm(k, layer.add("self_attn.k_norm", (KV * D,)).reshape(KV, D), axes=(1, 2))
    q, k, v = (np.clip(rows, -0.6, 0.6) for rows in (q, k, v))
    return attend(rotate(q), rotate(k), v, D ** -0.5)


def hunyuan(rng, layer, x):
    q, k, v = layer.project(x)
    base = 10000 * 50 ** (D / (D - 2))
    q = norm(rotate(q, base), layer.add("self_attn.query_layernorm", (D,)))
    k = norm(rotate(k, base), layer.add("self_attn.key_layernorm", (D,)))
    return attend(q, k, v, D ** -0.5)


def nanochat(rng, layer, x):
    q, k, v = layer.project(x)
    q, k = (norm(rotate(rows, sign=-1), eps=1e-6) for rows in (q, k))
    return attend(q, k, v, D ** -0.5)


def ministral3(rng, layer, x):
    q, k, v = layer.project(x)
    factor = 1 + 0.3 * np.log(1 + np.arange(T) // 4)
    return attend(rotate(q, 1e6) * factor[:, None, None], rotate(k, 1e6), v, D ** -0.5)


def roformer(rng, layer, x):
    return attend(*(rotate(rows, interleaved=True) for rows in layer.project(x)), D ** -0.5, causal=False)


@pytest.fixture
def rng():
    return np.random.default_rng(20261125)


def write_folder(folder, config, layers):
    folder.mkdir()
    sizes = {"num_attention_heads": H, "num_key_value_heads": KV, "head_dim": D, "hidden_size": E,
             "num_hidden_layers": len(layers)}
    (folder / "config.json").write_text(json.dumps(sizes | config))
    tensors = {}
    for layer in layers:
        tensors |= layer.tensors
    write_safetensors(folder / "model.safetensors", tensors, "F32")


def assert_layer(server, model, x, heads, outputs, **body):
    """Compares outputs and heads of a layer with what they are."""
    reply = server.attention({"model": model, "queries": x.tolist(), "need": ["outputs", "heads"]} | body).json()
    assert "heads" in reply, reply
    for key, want in ("heads", heads), ("outputs", outputs):
        got = np.array(reply[key]).reshape(want.shape)
        assert np.abs(got - want).max() <= 2e-5 * np.abs(want).max(), (model, key)


@pytest.mark.parametrize("config, compute, names, options", [
    ({"model_type": "cohere", "use_qk_norm": True, "rope_theta": 10000}, cohere, PROJ,
     {"use_qk_norm": True, "interleaved": True, "part": D}),
    ({"model_type": "stablelm", "qk_layernorm": True, "partial_rotary_factor": 0.5}, cohere, PROJ,
     {"interleaved": False, "part": D // 2}),
    ({"model_type": "olmoe", "clip_qkv": 0.6}, olmoe, PROJ, {}),
    ({"model_type": "hunyuan_v1_dense", "max_position_embeddings": 4, "rope_scaling":
      {"type": "dynamic", "alpha": 50, "factor": 1}}, hunyuan, PROJ, {}),
    ({"model_type": "nanochat", "rms_norm_eps": 1e-6}, nanochat, PROJ, {}),
    ({"model_type": "ministral3", "rope_parameters":
      {"rope_type": "default", "rope_theta": 1e6, "llama_4_scaling_beta": 0.3,
       "original_max_position_embeddings": 4}}, ministral3, PROJ, {}),
    ({"model_type": "roformer", "rotary_value": True}, roformer, BERT, {}),
], ids=lambda value: value["model_type"] if isinstance(value, dict) and "model_type" in value else "")
def test_rows_become_what_the_family_makes_of_them(config, compute, names, options, rng, tmp_path):
    bert = names is BERT
    heads = H if bert else KV
    layer = Layer(rng, "encoder.layer.0." if bert else "model.layers.0.", names, heads, D, bias=bert)
    x = rng.standard_normal((T, E)).astype(np.float32)
    want = compute(rng, layer, x.astype(np.float64), **options)
    write_folder(tmp_path / "m", config, [layer])
    behind = ",pre_norm=false" if config["model_type"] == "nanochat" else ""  # others have no norm in their files
    with Server("--model", f"m={tmp_path / 'm'}{behind}") as server:
        assert_layer(server, "m.0", x, want, layer.apply(3, want))


def gemma4_layer(layer, keys_from, x, keys, full, window):
    """Layer `layer` attends to keys that the projections of layer `keys_from` make of `keys`."""
    size, turn = layer.size, {"base": 1e6, "turning": layer.size // 8} if full else {}
    q = layer.apply(0, x).reshape(T, H, size)
    raw = keys_from.apply(1, keys).reshape(T, -1, size)
    v = raw if full else keys_from.apply(2, keys).reshape(T, -1, size)
    weights = [of.tensors[f"{of.path}self_attn.{name}_norm.weight"].astype(np.float64)
               for of, name in ((layer, "q"), (keys_from, "k"))]
    q, k = (rotate(norm(rows, weight, eps=1e-6), **turn) for rows, weight in zip((q, raw), weights))
    return attend(q, k, norm(v, eps=1e-6), 1, window=T if full else window)


def test_layers_of_gemma4_borrow_keys_that_may_be_values(rng, tmp_path):
    layers = [Layer(rng, f"model.layers.{i}.", heads=1 if i % 2 else KV, size=16 if i % 2 else D) for i in range(4)]
    for i, layer in enumerate(layers):
        for name in "qk":
            layer.add(f"self_attn.{name}_norm", (layer.size,))
        if i % 2:
            del layer.tensors[f"{layer.path}self_attn.v_proj.weight"]
    config = {"model_type": "gemma4_text", "attention_k_eq_v": True, "global_head_dim": 16, "sliding_window": 3,
              "num_global_key_value_heads": 1, "num_kv_shared_layers": 2, "layer_types":
              ["sliding_attention", "full_attention"] * 2}
    write_folder(tmp_path / "m", config, layers)
    x, keys = rng.standard_normal((2, T, E)).astype(np.float32)
    with Server("--model", f"m={tmp_path / 'm'}") as server:
        for i, layer in enumerate(layers):
            of_layer = keys if i >= 2 else x
            want = gemma4_layer(layer, layers[i % 2], x.astype(float), of_layer.astype(float), i % 2 == 1, 3)
            body = {"keys": keys.tolist(), "positions": list(range(T))} if i >= 2 else {}
            assert_layer(server, f"m.{i}", x, want, layer.apply(3, want), **body)
            assert server.get(f"/v1/models/m.{i}").json()["kind"] == ("borrowed" if i >= 2 else "self")
        problem = server.attention({"model": "m.3", "queries": x.tolist()})
        assert problem.status_code == 400 and "keys was left out" in problem.json()["detail"]


def test_missing_norm_of_a_head_is_refused(rng, tmp_path):
    layer = Layer(rng, "model.layers.0.", heads=KV)
    for name, count in ("q", H), ("k", KV):
        for h in range(count - (name == "q")):
            layer.add(f"self_attn.{name}_layernorm.norms.{h}", (D,))
    write_folder(tmp_path / "m", {"model_type": "stablelm", "qk_layernorm": True,
                                  "partial_rotary_factor": 0.5}, [layer])
    assert "has none beside it for head 3" in refusal_of("--model", f"m={tmp_path / 'm'}")


@pytest.mark.parametrize("head", [0, 1])
def test_biases_of_norms_of_heads_are_refused(head, rng, tmp_path):
    layer = Layer(rng, "model.layers.0.", heads=KV)
    for name, count in ("q", H), ("k", KV):
        for h in range(count):
            layer.add(f"self_attn.{name}_layernorm.norms.{h}", (D,))
    norm = f"model.layers.0.self_attn.q_layernorm.norms.{head}"
    layer.tensors[f"{norm}.bias"] = layer.tensors[f"{norm}.weight"]
    write_folder(tmp_path / "m", {"model_type": "stablelm", "qk_layernorm": True,
                                  "partial_rotary_factor": 0.5}, [layer])
    assert f"{norm}.bias'" in refusal_of("--model", f"m={tmp_path / 'm'}")
