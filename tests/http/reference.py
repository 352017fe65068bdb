# SPDX-License-Identifier: Apache-2.0
"""Multi-head attention in float64, written from its definition (docs/protocol.md) and not from
the daemon's code. It is slow, computes one query at a time, and is meant to be read.

B sequences, H heads, Tq queries, Tk keys, D head size. Linear weights are [out, in].
"""

from dataclasses import dataclass

import numpy as np


@dataclass
class Linear:
    weight: np.ndarray  # [out, in]
    bias: np.ndarray | None = None  # [out]

    def __call__(self, rows):
        result = rows @ self.weight.T
        return result if self.bias is None else result + self.bias


@dataclass
class Head:
    query: Linear  # [D, query_size]
    key: Linear  # [D, key_size]
    value: Linear  # [D, value_size]


@dataclass
class Layer:
    heads: list[Head]
    output: Linear | None  # [out_size, H*D]; None: the heads' outputs, concatenated
    causal: bool = False
    additive: tuple | None = None  # W_q [A, D], W_k [A, D], w_v [A]

    @property
    def sizes(self):
        """query_size, key_size, value_size"""
        head = self.heads[0]
        return tuple(linear.weight.shape[1] for linear in (head.query, head.key, head.value))


@dataclass
class Result:
    outputs: np.ndarray  # [Tq, out_size]
    weights: np.ndarray  # [H, Tq, Tk]
    heads: np.ndarray  # [Tq, H, D], after head_mask
    lse: np.ndarray  # [Tq, H]; -inf without a visible key


def log_sum_exp(scores):
    return scores.max() + np.log(np.exp(scores - scores.max()).sum())


def attend_head(head, additive, queries, keys, values, visible, bias, _plain):
    """Returns outputs [Tq, D], weights [Tq, Tk] and lse [Tq] of one head. `visible` [Tq, Tk] says
    which keys a query may attend to, and `bias` [Tq, Tk] is added to the scores. A query without a
    visible key attends to all keys equally."""
    q, k, v = head.query(queries), head.key(keys), head.value(values)
    weights, lse = np.zeros((len(q), len(k))), np.full(len(q), -np.inf)
    for i, row in enumerate(visible):
        if not row.any():
            weights[i] = 1 / len(k)
            continue
        if additive is None:
            scores = k[row] @ q[i] / np.sqrt(q.shape[1])
        else:
            from_query, from_key, score = additive
            scores = np.tanh(from_query @ q[i] + k[row] @ from_key.T) @ score
        scores = scores + bias[i, row]
        lse[i] = log_sum_exp(scores)
        weights[i, row] = np.exp(scores - lse[i])
    return weights @ v, weights, lse


class Exact:
    """The arithmetic of compute()."""
    attend_head = staticmethod(attend_head)

    @staticmethod
    def project(linear, rows):
        return linear(rows)


def no_mask(lens):
    """attnd refuses lengths of queries that are all 0 or 1, with a 1, as a mask: returns zeros for such."""
    rows = [lens] if np.ndim(lens[0]) == 0 else lens
    return lens if max(np.max(row) for row in rows) != 1 else [np.zeros_like(row).tolist() for row in lens]


def visible_keys(valid_lens, positions, key_positions, causal, window, prefix=0):
    """Returns [Tq, Tk]. valid_lens [Tq] counts keys, whatever their positions are, and so does `prefix`,
    the first keys, which `causal` does not hide."""
    visible = np.arange(len(key_positions))[None, :] < valid_lens[:, None]
    distance = positions[:, None] - key_positions[None, :]
    if causal:
        visible &= (distance >= 0) | (np.arange(len(key_positions)) < prefix)
    if window:
        visible &= distance < window if causal else np.abs(distance) <= window
    return visible


def compute(layer, queries, keys, values, valid_lens=None, causal=None, head_mask=None,
            positions=None, key_positions=None, window=None, arithmetic=Exact, prefix=0, bias=0):
    """Computes one sequence: queries [Tq, query_size] and so on; valid_lens is None, a number or
    [Tq], positions are None or [Tq] and [Tk]. `bias` is a number, or [Tk] up to [H, Tq, Tk], whose
    -inf hides a key."""
    queries, keys, values = (np.asarray(x, np.float64) for x in (queries, keys, values))
    num_queries, num_keys = len(queries), len(keys)
    lens = np.broadcast_to(num_keys if valid_lens is None else valid_lens, (num_queries,))
    visible = visible_keys(
        lens, np.asarray(range(num_queries) if positions is None else positions, np.int64),
        np.asarray(range(num_keys) if key_positions is None else key_positions, np.int64),
        layer.causal if causal is None else causal, window or 0, prefix)
    bias = np.broadcast_to(bias, (len(layer.heads), num_queries, num_keys))
    plain = positions is None and key_positions is None and not window
    results = [arithmetic.attend_head(head, layer.additive, queries, keys, values, visible & (added > -np.inf), added,
                                      plain) for head, added in zip(layer.heads, bias)]
    factors = np.ones(len(layer.heads)) if head_mask is None else head_mask
    heads = [factor * outputs for factor, (outputs, _, _) in zip(factors, results)]
    concatenated = np.concatenate(heads, axis=1)
    return Result(arithmetic.project(layer.output, concatenated) if layer.output else concatenated,
                  np.stack([weights for _, weights, _ in results]), np.stack(heads, axis=1),
                  np.stack([lse for _, _, lse in results], axis=1))


def attend(layer, *arguments, **options):
    """Returns outputs and weights of one sequence; see compute()."""
    result = compute(layer, *arguments, **options)
    return result.outputs, result.weights


def each_sequence(request):
    """Returns what compute() takes for each sequence of a batched request, the body of
    POST /v1/attention."""
    keys = request.get("keys", request["queries"])
    values = request.get("values", keys)

    def each(field):
        """Returns what every sequence has of a field: one list stands for all of them."""
        value = request.get(field)
        if value is None or (field != "valid_lens" and not isinstance(value[0], list)):
            return [value] * len(keys)
        return value

    positions = each("positions")
    key_positions = each("key_positions")
    if "keys" not in request and request.get("key_positions") is None:
        key_positions = positions
    return [(q, k, v, lens, request.get("causal"), request.get("head_mask"), own, of_keys,
             request.get("window"))
            for q, k, v, lens, own, of_keys in zip(request["queries"], keys, values,
                                                   each("valid_lens"), positions, key_positions)]


def each_bias(request, count):
    """Returns what each sequence adds to its scores, for its bias or attn_mask: 0, or [Tk] up to [H, Tq, Tk]."""
    bias = request.get("attn_mask", request.get("bias"))
    if bias is None:
        return [0] * count
    bias = np.array(bias)
    if bias.dtype == bool:
        bias = np.where(bias, 0, -np.inf)
    else:
        bias = np.where(bias == None, -np.inf, bias).astype(np.float64)  # noqa: E711 (of each number)
    return np.broadcast_to(bias, (count, *bias.shape[1:])) if bias.ndim == 4 else [bias] * count


def compute_request(layer, request, arithmetic=Exact):
    """Computes a batched request. Returns a Result for each sequence."""
    sequences = each_sequence(request)
    biases = each_bias(request, len(sequences))
    prefixes = request.get("prefix_lens") or [0] * len(sequences)
    return [compute(layer, *sequence, arithmetic, prefix, bias)
            for sequence, prefix, bias in zip(sequences, prefixes, biases)]


def attend_request(layer, request):
    """Returns outputs and weights of each sequence of a batched request."""
    return [(result.outputs, result.weights) for result in compute_request(layer, request)]


def layer_from_tensors(tensors, num_heads=None, causal=None):
    """Returns the layer that the tensors of a checkpoint describe, in any of the layouts."""
    tensors = {name: np.asarray(tensor, np.float64) for name, tensor in tensors.items()}

    def linear(name):
        return Linear(tensors[name + ".weight"], tensors.get(name + ".bias"))

    def split(query, key, value):
        """Returns H heads from projections that hold their heads one after the other. Those of keys
        and values may be fewer, which neighbours share."""
        size = len(query.weight) // num_heads

        def rows(projection, h):
            first = h * (len(projection.weight) // size) // num_heads * size
            at = slice(first, first + size)
            bias = None if projection.bias is None else projection.bias[at]
            return Linear(projection.weight[at], bias)
        return [Head(rows(query, h), rows(key, h), rows(value, h)) for h in range(num_heads)]

    additive = None
    if "attention.w_v.weight" in tensors:
        additive = (tensors["attention.W_q.weight"], tensors["attention.W_k.weight"],
                    tensors["attention.w_v.weight"].reshape(-1))

    if "W_o.weight" in tensors:  # d2l
        heads, output = split(linear("W_q"), linear("W_k"), linear("W_v")), linear("W_o")
    elif "in_proj_weight" in tensors or "q_proj_weight" in tensors:  # torch
        if "in_proj_weight" in tensors:
            weights = np.split(tensors["in_proj_weight"], 3)
        else:
            weights = [tensors[letter + "_proj_weight"] for letter in "qkv"]
        biases = (np.split(tensors["in_proj_bias"], 3) if "in_proj_bias" in tensors
                  else [None] * 3)
        heads, output = split(*map(Linear, weights, biases)), linear("out_proj")
    elif "qkv.weight" in tensors or "c_attn.weight" in tensors:  # timm, nanogpt
        packed, output = (linear("qkv"), linear("proj")) if "qkv.weight" in tensors else (linear("c_attn"), linear("c_proj"))
        if "c_attn.weight" in tensors:
            causal = True if causal is None else causal
            if packed.weight.shape[0] < packed.weight.shape[1]:  # [in, out]
                packed.weight, output.weight = packed.weight.T, output.weight.T
        biases = [None] * 3 if packed.bias is None else np.split(packed.bias, 3)
        heads = split(*map(Linear, np.split(packed.weight, 3), biases))
    elif "W_query.weight" in tensors:  # llms_from_scratch
        causal = True if causal is None else causal
        heads = split(linear("W_query"), linear("W_key"), linear("W_value"))
        output = linear("out_proj")
    elif "heads.0.W_query.weight" in tensors:  # llms_from_scratch, wrapper
        causal = True if causal is None else causal
        heads, output = [], None
        while f"heads.{len(heads)}.W_query.weight" in tensors:
            prefix = f"heads.{len(heads)}."
            heads.append(Head(*(linear(prefix + x) for x in ("W_query", "W_key", "W_value"))))
    else:  # two-stage: a shared projection, then one more for each head
        heads, output = [], linear("W_O")
        while f"heads.{len(heads)}.W_Q.weight" in tensors:
            prefix = f"heads.{len(heads)}."
            heads.append(Head(*(Linear(tensors[f"{prefix}{x}.weight"] @ tensors[f"{x}.weight"])
                                for x in ("W_Q", "W_K", "W_V"))))
    return Layer(heads, output, bool(causal), additive)
