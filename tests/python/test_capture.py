# SPDX-License-Identifier: Apache-2.0
"""The capture kit of the package attnd: what it keeps of a model, what it reads, and what it sends."""

import json
import re
import shutil
import sys
import types
import warnings

import numpy as np
import pytest
import safetensors.numpy

from captures import FOLDER, NumpyClient, compute_weights, recorded_layers
from http1 import closed_port
from safetensors_file import make_safetensors, write_safetensors
from server import ROOT

import attnd
from attnd import _masks, _safetensors, recording, vllm
from attnd import BFLOAT16
from attnd._fields import encode
from attnd._safetensors import to_safetensors
from attnd.client import decode_words
from attnd._safetensors import CaptureError
from attnd.captured import Captured, open_capture

RNG = np.random.default_rng(0)
LAYERS = {name: rest for name, *rest in recorded_layers()}
TOLERANCE = 1e-5


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def make_request(num_queries=5, num_keys=5, **options):
    return {"queries": normal(num_queries, 4, 8), "keys": normal(num_keys, 2, 8), "scale": 0.25, "causal": False} | options


@pytest.mark.parametrize("name", LAYERS)
def test_request_of_a_capture_has_the_weights_of_eager_attention(name):
    request, expected, _ = LAYERS[name]
    assert np.abs(compute_weights(**request) - expected).max() < TOLERANCE


@pytest.mark.parametrize("name", LAYERS)
def test_mask_is_sent_as_words_where_these_suffice(name):
    request, _, window = LAYERS[name]
    family = name.split()[0]
    assert request.get("window") == window
    assert ("bias" in request) == (family == "t5" and name != "t5 decoder.0.cross" and name != "t5 decoder.1.cross"
                                   or name in ("llama4_text 0", "llama4_text 2"))
    assert request["causal"] == (family not in ("modernbert", "t5") or name in ("t5 decoder.0", "t5 decoder.1")) \
        or "bias" in request


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("window", [None, 1, 3, 20])
@pytest.mark.parametrize("padding", [(0, 0), (2, 0), (0, 3), (2, 1)])
def test_padding_is_cut_off_whatever_the_mask(padding, window, is_causal):
    before, after = padding
    count = 12 - before - after
    distance = np.arange(12)[:, None] - np.arange(12)
    visible = distance >= 0 if is_causal else np.full((12, 12), True)
    if window:
        visible &= distance < window if is_causal else np.abs(distance) <= window
    visible[:, :before] = visible[:, 12 - after:] = False
    rows = normal(12, 2, 4)
    request = _masks.cut(rows, rows, rows, visible[None], None, is_self=True)
    for name in ("queries", "keys", "values"):
        assert np.array_equal(request[name], rows[before:12 - after])
    expected = {"causal": is_causal} | ({"window": window} if window and window < count else {})
    assert {name: request[name] for name in request if name not in ("queries", "keys", "values")} == expected


def test_mask_that_no_words_explain_is_a_bias():
    visible = RNG.random((3, 6, 6)) < 0.5
    visible |= np.eye(6, dtype=bool)
    request = _masks.cut(*[normal(6, 3, 4)] * 3, visible, None, is_self=True)
    assert np.array_equal(np.isneginf(request["bias"]), ~visible) and not request["causal"]


def test_rows_after_a_cache_are_at_the_last_positions():
    visible = np.tril(np.ones((3, 8), bool), 5)
    request = _masks.cut(normal(3, 2, 4), normal(8, 2, 4), None, visible[None], None, is_self=True)
    assert request["causal"] and request["positions"].tolist() == [5, 6, 7]


def test_padding_of_cross_attention_leaves_every_query():
    visible = np.full((1, 7, 7), True)
    visible[:, :, 5:] = False
    request = _masks.cut(normal(7, 2, 4), normal(7, 2, 4), None, visible, None, is_self=False)
    assert (len(request["queries"]), len(request["keys"]), request["causal"]) == (7, 5, False)


class Tensor(np.ndarray):
    """As much of a tensor as the kit uses."""

    def detach(self):
        return self

    def cpu(self):
        return self

    def contiguous(self):
        return self

    def numpy(self):
        return np.asarray(self)

    def transpose(self, first, second):
        return np.swapaxes(self, first, second)


class Model:
    """A model of two layers, in the part of transformers' interface that a capture uses."""

    def __init__(self, registry, can_set=True):
        self.registry, self.can_set, self.before, self.after = registry, can_set, [], []
        self.config = types.SimpleNamespace(_attn_implementation="sdpa", is_encoder_decoder=False, sub_configs={})
        self.parts = [types.SimpleNamespace(is_causal=True) for _ in range(2)]

    def modules(self):
        return [self, *self.parts]

    def named_modules(self):
        return [("", self), *((f"model.layers.{i}.self_attn", part) for i, part in enumerate(self.parts))]

    def set_attn_implementation(self, name):
        if self.can_set:
            self.config._attn_implementation = name

    def register_forward_pre_hook(self, hook, with_kwargs=False):
        self.before.append(hook if with_kwargs else lambda model, inputs, _: hook(model, inputs))
        return types.SimpleNamespace(remove=self.before.clear)

    def register_forward_hook(self, hook):
        self.after.append(hook)
        return types.SimpleNamespace(remove=self.after.clear)

    def run(self, queries, keys, mask=None, input_ids=None):
        for hook in self.before:
            hook(self, (), {} if input_ids is None else {"input_ids": np.asarray(input_ids).view(Tensor)})
        attend = self.registry[self.config._attn_implementation]
        mask = None if mask is None else mask.view(Tensor)
        outputs = [attend(part, *(rows.view(Tensor) for rows in (queries, keys, keys)), mask, scaling=0.5)
                   for part in self.parts]
        for hook in self.after:
            hook(self, (), outputs)
        return outputs


@pytest.fixture
def registry(monkeypatch):
    """Stands in for transformers, which the tests do not install. Returns its attention functions."""
    functions = {"sdpa": lambda module, query, key, value, mask, **_: (query.sum() + key.sum(), None)}
    masks = {}

    class Interface(dict):
        def __init__(self):
            super().__init__(functions)

    Interface.register = staticmethod(functions.__setitem__)
    transformers, masking = types.ModuleType("transformers"), types.ModuleType("transformers.masking_utils")
    transformers.__version__ = "5.24.0"
    transformers.PreTrainedModel, transformers.AttentionInterface = Model, Interface
    transformers.AttentionMaskInterface = types.SimpleNamespace(register=masks.__setitem__)
    masking.sdpa_mask = masking.eager_mask = object()
    monkeypatch.setitem(sys.modules, "transformers", transformers)
    monkeypatch.setitem(sys.modules, "transformers.masking_utils", masking)
    yield functions
    assert all(masks[name] is masking.sdpa_mask for name in functions if name.startswith("attnd-"))


def test_model_computes_as_before_while_it_is_captured(registry):
    model, rows = Model(registry), (normal(2, 4, 6, 8), normal(2, 2, 6, 8))
    mask = np.tril(np.ones((2, 1, 6, 6), bool))
    mask[1, :, :, :2] = False  # the second sequence has two tokens of padding
    plain = model.run(*rows, mask.view(Tensor))
    with recording.capture(model, layers=[1]) as captured:
        assert model.run(*rows, mask.view(Tensor)) == plain
    assert list(captured.layers) == ["1"] and model.config._attn_implementation == "sdpa" and not model.before and not model.after
    for item, first in ((0, 0), (1, 2)):
        request = captured.request(1, item)
        assert np.array_equal(request["queries"], rows[0][item, :, first:].swapaxes(0, 1))
        assert np.array_equal(request["keys"], rows[1][item, :, first:].swapaxes(0, 1))
        assert (request["scale"], request["causal"], "values" in request) == (0.5, True, False)


@pytest.mark.parametrize("options, run, message", [
    ({}, False, "never called its attention function"),
    ({"layers": 2}, True, r"no layer has a name of \['2'\]; the model called 0, 1"),
    ({"layers": [1, 2]}, True, r"no layer has a name of \['2'\]; the model called 0, 1")])
def test_capture_of_nothing_says_why(registry, options, run, message):
    model = Model(registry)
    with pytest.raises(CaptureError, match=message), recording.capture(model, **options):
        if run:
            model.run(normal(1, 4, 3, 8), normal(1, 2, 3, 8), None)


def test_model_that_refuses_or_has_another_kernel_is_an_error(registry):
    with pytest.raises(CaptureError, match="does not let its attention be replaced"), \
            recording.capture(Model(registry, can_set=False)):
        pass
    with pytest.raises(CaptureError, match="such as pipeline.model, not SimpleNamespace"), \
            recording.capture(types.SimpleNamespace(model=Model(registry))):
        pass
    model = Model(registry)
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(CaptureError, match="'flash_attention_2'.*attn_implementation='sdpa'"), recording.capture(model):
        pass


def test_model_that_is_captured_already_or_old_or_wrapped_says_what_to_do(registry, monkeypatch):
    model, wrapper = Model(registry), type("OptimizedModule", (), {"_orig_mod": None})()
    with recording.capture(model):
        with pytest.raises(CaptureError, match="is being captured already"), recording.capture(model):
            pass
        with pytest.raises(CaptureError, match=r"generate_batch\(\) .*; use generate\(\)"):
            model.generate_batch()
        model.run(normal(1, 4, 3, 8), normal(1, 2, 3, 8))
    with pytest.raises(CaptureError, match="a OptimizedModule, .*; capture model._orig_mod"), recording.capture(wrapper):
        pass
    monkeypatch.setattr(sys.modules["transformers"], "__version__", "4.55.4")
    with pytest.raises(CaptureError, match="transformers is 4.55.4, but a capture needs 4.56"), recording.capture(model):
        pass


def test_error_of_the_model_is_raised_as_it_is(registry):
    with pytest.raises(KeyError), recording.capture(Model(registry)):
        raise KeyError


# Runs


def record(registry, calls, **options):
    """Returns the capture of calls (queries, keys, mask, ids), and the texts of its warnings."""
    model = Model(registry)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with recording.capture(model, **options) as captured:
            for call in calls:
                model.run(*call)
    return captured, [str(each.message) for each in caught]


def cached_steps(rows, lens, window=None, mask=None):
    """Yields calls with a cache: parts of rows [B, H, T, D] of these lengths, and a mask [B, T] of what is no padding."""
    end = 0
    for length in lens:
        first, end = end, end + length
        kept = max(first - window + 1, 0) if window else 0
        seen = np.arange(first, end)[:, None] >= np.arange(kept, end)
        if window:
            seen &= np.arange(first, end)[:, None] - np.arange(kept, end) < window
        seen = seen[None, None] if mask is None else seen & mask[:, None, None, kept:end]
        yield rows[:, :, first:end], rows[:, :, kept:end], seen


def assert_sequence(captured, rows, item=0, first=0, window=None):
    """All layers have one sequence of rows [B, H, T, D] from the first on."""
    for layer in ("0", "1"):
        request = captured.request(layer, item)
        for name in ("queries", "keys"):
            assert np.array_equal(request[name], rows[item, :, first:].swapaxes(0, 1))
        assert {name: request[name] for name in request if name not in ("queries", "keys", "scale", "token_ids")} == \
            {"causal": True, "self_attention": True} | ({"window": window} if window else {})


@pytest.mark.parametrize("lens", [[6, 1, 1, 1], [3, 4, 2], [9]])
@pytest.mark.parametrize("window", [None, 4])
def test_steps_of_a_cache_become_one_sequence(registry, window, lens):
    """With a window, the cache keeps the last keys only."""
    rows = normal(1, 2, 9, 8)
    captured, texts = record(registry, cached_steps(rows, lens, window))
    assert_sequence(captured, rows, window=window)
    assert texts == [] and len(captured.runs) == 1


@pytest.mark.parametrize("lens", [[9, 1, 1, 1], [9]])
def test_left_padding_is_cut_off_in_each_step(registry, lens):
    """One row that does not see the first keys is no window."""
    rows, mask = normal(3, 2, sum(lens), 8), np.ones((3, sum(lens)), bool)
    mask[0, :4] = mask[2, :2] = False
    captured, texts = record(registry, cached_steps(rows, lens, mask=mask))
    for item, first in enumerate((4, 0, 2)):
        assert_sequence(captured, rows, item, first)
    assert texts == []


def test_keys_that_one_step_does_not_see_are_padding(registry):
    rows, seen = normal(1, 2, 9, 8), np.arange(9) >= 4
    captured, _ = record(registry, [(rows[:, :, 8:], rows, seen[None, None, None])])
    request = captured.request(0)
    assert len(request["keys"]) == 5 and "window" not in request and "bias" not in request


def test_room_of_a_static_cache_is_cut_off(registry):
    rows, room, calls = normal(2, 2, 8, 8), np.zeros((2, 2, 12, 8), np.float32), []
    for first, end in ((0, 5), (5, 6), (6, 8)):
        room[:, :, first:end] = rows[:, :, first:end]
        calls.append((rows[:, :, first:end], room.copy(), np.arange(12) <= np.arange(first, end)[:, None]))
    captured, texts = record(registry, [(queries, keys, seen[None, None]) for queries, keys, seen in calls])
    assert_sequence(captured, rows, item=1)
    assert texts == []


def test_rows_of_drafts_that_are_rejected_are_dropped(registry):
    rows, draft = normal(1, 2, 9, 8), normal(1, 2, 3, 8)
    *before, last = cached_steps(rows, [5, 1, 3])
    drafted = np.concatenate([rows[:, :, :6], draft], 2)
    captured, texts = record(registry, [*before, *list(cached_steps(drafted, [6, 3]))[1:], last])
    assert_sequence(captured, rows)
    assert texts == ["layers 0, 1: 3 rows were taken back by a later call, as drafts that are rejected, and are not kept"]


def test_beams_take_what_is_before_them_along(registry):
    rows = normal(3, 2, 8, 8)
    rows[1:, :, :5] = rows[:1, :, :5]  # one prompt
    swapped = rows[[2, 0, 0]].copy()
    swapped[:, :, 7] = normal(3, 2, 8)
    captured, texts = record(registry, [*cached_steps(rows, [5, 1, 1]), *list(cached_steps(swapped, [7, 1]))[1:]])
    for item in range(3):
        assert_sequence(captured, swapped, item)
    assert len(texts) == 1 and texts[0].startswith("layers 0, 1: the sequences changed places in 1 calls, as beams do; ")


def test_texts_in_turns_are_runs_of_their_own(registry):
    """As guidance does: a call may continue the run before the last."""
    first, second = normal(1, 2, 7, 8), normal(1, 2, 5, 8)
    turns = [call for pair in zip(cached_steps(first, [5, 1, 1]), cached_steps(second, [3, 1, 1])) for call in pair]
    captured, texts = record(registry, turns)
    assert texts == ["layers 0, 1: 3 of 6 calls do not continue in the last run, which is what a capture is asked about; "
                     "c.runs has all 2 runs"]
    for run, rows in zip(captured.runs, (first, second)):
        assert_sequence(run, rows)
    assert_sequence(captured, second)


def test_step_costs_the_same_however_long_the_text_is(registry, monkeypatch):
    copied = []
    monkeypatch.setattr(recording, "to_numpy", lambda tensor: (copied.append(tensor.size), np.array(tensor))[1])
    rows = normal(1, 2, 4097, 8)
    record(registry, [(rows[:, :, :64], rows[:, :, :64]), (rows[:, :, 64:65], rows[:, :, :65])])
    short = sum(copied[-8:])
    copied.clear()
    record(registry, [(rows[:, :, :4096], rows[:, :, :4096]), (rows[:, :, 4096:], rows)])
    assert sum(copied[-8:]) < 2 * short < 500


def test_layers_asked_in_the_block_follow_what_the_model_does(registry):
    rows, model = normal(1, 2, 6, 8), Model(registry)
    first, second = cached_steps(rows, [5, 1])
    with recording.capture(model) as captured:
        model.run(*first)
        before = captured.request(0)["keys"]
        model.run(*second)
        assert len(before) == 5 and len(captured.request(0)["keys"]) == 6


def test_labels_are_those_of_the_ids_of_every_step(registry):
    rows, tokenizer = normal(2, 2, 5, 8), types.SimpleNamespace(decode=lambda ids: f"<{ids[0]}>")
    mask = np.ones((2, 5), bool)
    mask[1, :2] = False
    first, second = cached_steps(rows, [4, 1], mask=mask)
    captured, _ = record(registry, [(*first, [[1, 2, 3, 4], [0, 0, 5, 6]]), (*second, [[7], [8]])], tokenizer=tokenizer)
    assert captured.labels(0, 0)[1] == ["<1>", "<2>", "<3>", "<4>", "<7>"]
    assert captured.labels(1, 1) == (["<5>", "<6>", "<8>"],) * 2
    captured, _ = record(registry, cached_steps(rows, [4, 1]), tokens=["a", "b"])
    assert captured.labels(0)[0] == ["a", "b", "2", "3", "4"]


@pytest.mark.parametrize("path, name", [
    ("model.layers.3.self_attn", "3"), ("h.0.attn", "0"), ("encoder.layer.2.attention.self", "2")])
def test_layers_have_the_names_that_attnd_gives_them(path, name):
    config = types.SimpleNamespace(is_encoder_decoder=False, sub_configs={})
    assert recording.layer_name(path, config) == name


@pytest.mark.parametrize("path, name", [
    ("encoder.block.1.layer.0.SelfAttention", "encoder.1"), ("model.decoder.layers.0.encoder_attn", "decoder.0.cross"),
    ("decoder.block.1.layer.1.EncDecAttention", "decoder.1.cross"), ("decoder.layers.1.self_attn", "decoder.1")])
def test_layers_of_encoders_and_decoders_have_the_names_that_attnd_gives_them(path, name):
    config = types.SimpleNamespace(is_encoder_decoder=True, sub_configs={})
    assert recording.layer_name(path, config) == name


# Files


@pytest.mark.parametrize("layout", ["all-tokens", "last-token", "compact"])
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_layouts_of_vllm_hook_have_the_weights_of_eager_attention(layout, num_ranks, tmp_path):
    """Two ranks have half of the heads each."""
    folder = FOLDER / f"vllm-hook/llama-{layout}"
    if num_ranks == 2:
        tensors, _ = _safetensors.read_safetensors(folder / "tp_rank_0/qk.safetensors")
        for rank in range(2):
            (tmp_path / f"tp_rank_{rank}").mkdir()
            shutil.copy(folder / "tp_rank_0/qk.json", tmp_path / f"tp_rank_{rank}")
            write_safetensors(tmp_path / f"tp_rank_{rank}/qk.safetensors",
                              {name: np.split(tensor, 2, axis=-1)[rank] for name, tensor in tensors.items()})
        folder = tmp_path
    requests = vllm.read_vllm_hook(folder)
    assert len(requests) == 2
    assert_weights_of_vllm_hook(requests, "llama", [13, 9] if layout != "last-token" else [1, 1])


def test_head_size_of_vllm_hook_is_that_of_its_tensors():
    """Its first releases wrote hidden_size / num_attention_heads, which is 12 for this model."""
    assert_weights_of_vllm_hook(vllm.read_vllm_hook(FOLDER / "vllm-hook/qwen3-all-tokens"), "qwen3", [13, 9])


def assert_weights_of_vllm_hook(requests, family, lens):
    expected, _ = _safetensors.read_safetensors(FOLDER / f"vllm-hook/{family}-expected.safetensors")
    for number, captured in enumerate(requests):
        assert list(captured.layers) == ["0", "1"]
        for layer in captured.layers:
            request = captured.request(layer)
            wanted = expected[f"{number}.{layer}.weights"][:, request["positions"]]
            assert wanted.shape[1] == lens[number]
            assert np.abs(compute_weights(**request) - wanted).max() < TOLERANCE


@pytest.mark.parametrize("precision, tolerance", [("float32", 1e-5), ("bfloat16", 1e-5)])
def test_hidden_states_of_vllm_go_to_layers_with_their_norm(start_server, precision, tolerance, tmp_path):
    """For bfloat16 the expected weights are those of the rounded states."""
    server = start_server("--model", f"qwen3={ROOT}/tests/data/hf/qwen3")
    source = FOLDER / f"vllm-hidden-states/qwen3-{precision}"
    shutil.copy(f"{source}.safetensors", tmp_path / "request.safetensors")
    (tmp_path / "request.safetensors.lock").touch()
    hidden, tokens = vllm.read_hidden_states(tmp_path / "request.safetensors", [0, 1], num_hidden_layers=2)
    expected, _ = _safetensors.read_safetensors(f"{source}-expected.safetensors")
    assert tokens.dtype == np.int64 and len(tokens) == 13
    for layer, queries in hidden.items():
        outputs, weights = attnd.Client(server.url).attend(f"qwen3.{layer}", queries, need_weights=True)
        assert np.abs(weights - expected[f"{layer}.weights"]).max() < tolerance
        assert np.abs(outputs - expected[f"{layer}.outputs"]).max() < tolerance * np.abs(outputs).max()


def test_saved_capture_is_loaded_as_it_was(tmp_path):
    request = make_request(3, 5, causal=True, positions=np.arange(2, 5), softcap=2.5, window=3, sinks=normal(4),
                           bias=np.where(normal(4, 3, 5) > 1, -np.inf, 0).astype(np.float32))
    request["values"] = (normal(5, 2, 6).view(np.uint32) >> 16).astype(np.uint16).view(BFLOAT16)
    other = make_request()
    Captured({"text.0": [other, request], "7": [other, other]}, ["a", "b"]).save(tmp_path / "file", sequence=1)
    loaded = open_capture(tmp_path / "file")
    assert loaded.tokens == ["a", "b"] and list(loaded.layers) == ["text.0", "7"]
    for layer, wanted in (("text.0", request), (7, other)):
        got = loaded.request(layer)
        assert got.keys() == wanted.keys() | {"self_attention"}
        for name in wanted:
            assert np.array_equal(got[name], wanted[name]) and np.asarray(got[name]).dtype == np.asarray(wanted[name]).dtype


def test_saved_capture_is_read_by_the_safetensors_package(tmp_path):
    Captured({"0": [make_request()]}).save(tmp_path / "file")
    with safetensors.safe_open(tmp_path / "file", "np") as file:
        assert sorted(file.keys()) == ["0.keys", "0.queries"]
        assert file.metadata() == {"0.causal": "false", "0.scale": "0.25", "layers": '["0"]', "tokens": "null"}


def write_hidden(path, **tensors):
    path.write_bytes(to_safetensors(tensors, {}))
    return path


@pytest.mark.parametrize("read, message", [
    (lambda folder: open_capture(write_hidden(folder / "x", a=normal(2, 3))), r"no capture: .* but a \[2, 3\]"),
    (lambda folder: vllm.read_hidden_states(write_hidden(folder / "x", a=normal(2)), [0]),
     r"no capture: .* but a \[2\]"),
    (lambda folder: vllm.read_hidden_states(write_hidden(folder / "x", hidden_states=normal(4, 1, 3)), [0]),
     "no file of vLLM, which has hidden_states and token_ids"),
    (lambda folder: vllm.read_hidden_states(FOLDER / "vllm-hidden-states/qwen3-float32.safetensors", [0]),
     "hidden_states are .*, but ids are 1"),
    (lambda folder: vllm.read_hidden_states(FOLDER / "vllm-hidden-states/qwen3-float32.safetensors", [0, 2], 2),
     "id 2 is what leaves the last layer"),
    (lambda folder: vllm.read_hidden_states(write_hidden(folder / "x", hidden_states=normal(4, 1, 3),
                                                         token_ids=np.arange(6)), [0]),
     "have 4 rows, but there are 6 token_ids: .* start vllm with --no-enable-prefix-caching"),
    (lambda folder: vllm.read_vllm_hook(folder), "has no folder tp_rank_0"),
    (lambda folder: [(folder / "tp_rank_0").mkdir(), vllm.read_vllm_hook(folder)], "VLLM_HOOK_USE_SAFETENSORS=1"),
    (lambda folder: [(folder / "x").write_bytes(b"PK\3\4 pickle"), open_capture(folder / "x")],
     r"is not safetensors, is damaged, .*: it begins with b'PK"),
    (lambda folder: Captured({"3": []}).request(4), "layer 4 was not captured; these were: 3")])
def test_file_of_another_form_says_what_was_found(tmp_path, read, message):
    with pytest.raises(CaptureError, match=message):
        read(tmp_path)


def test_layout_of_vllm_hook_that_is_unknown_says_what_was_found(tmp_path):
    shutil.copytree(FOLDER / "vllm-hook/llama-all-tokens", tmp_path, dirs_exist_ok=True)
    sidecar = tmp_path / "tp_rank_0/qk.json"
    fields = json.loads(sidecar.read_text())
    del fields["k_seq_lens"]
    sidecar.write_text(json.dumps(fields))
    with pytest.raises(CaptureError, match="qk.json has config, layer_order, .*: none of vLLM-Hook's three layouts"):
        vllm.read_vllm_hook(tmp_path)


# Results


def test_attend_returns_numpy_of_the_heads_and_rows_that_one_asks_for():
    request = make_request(values=normal(5, 2, 6))
    captured, client = Captured({"2": [request]}), NumpyClient()
    expected = compute_weights(**request)
    assert np.allclose(captured.attend(2, client=client), expected, atol=1e-6)
    assert np.allclose(captured.attend(2, heads=[3, 0], queries=-1, client=client), expected[[3, 0], -1:], atol=1e-6)
    results = captured.attend(2, need=["received", "heads"], client=client)
    assert {word: array.shape for word, array in results.items()} == {"received": (4, 5), "heads": (5, 4, 6)}


@pytest.mark.parametrize("options, error, message", [
    ({"sequence": 1}, CaptureError, "there is no sequence 1; layer 2 has 1, which begin at 0"),
    ({"need": "heads"}, CaptureError, r"values, which were not kept; use capture\(..., values=True\)")])
def test_attend_that_cannot_says_what_to_do(options, error, message):
    with pytest.raises(error, match=message):
        Captured({"2": [make_request()]}).attend(2, **options)


def test_attend_computes_in_the_process_where_no_client_is_given():
    request = make_request(positions=np.arange(5), causal=True)
    assert np.allclose(Captured({"2": [request]}).attend(2, heads=[1]), compute_weights(**request)[1:2], atol=1e-6)


def test_attend_where_nobody_listens_says_what_to_do():
    with closed_port() as port, pytest.raises(ConnectionError, match=(
            f"no answer from http://127.0.0.1:{port}; start attnd there, or give its address: ")):
        Captured({"2": [make_request()]}).attend(2, client=f"127.0.0.1:{port}")


def test_viewers_get_the_arrays_and_tokens_that_they_take(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # BertViz needs its tensors, where it is installed
    captured = Captured({"0": [make_request()], "1": [make_request()]}, ["a", "b", "c", "d", "e"])
    inputs = captured.bertviz(client=NumpyClient())
    assert [weights.shape for weights in inputs["attention"]] == [(1, 4, 5, 5)] * 2
    assert inputs["tokens"] == captured.tokens
    inputs = captured.circuitsvis(1, client=NumpyClient())
    assert inputs["attention"].shape == (4, 5, 5) and inputs["tokens"] == captured.tokens
    captured.tokens = None
    assert captured.circuitsvis(1, client=NumpyClient())["tokens"] == ["0", "1", "2", "3", "4"]


# dot_product() of the client


def test_dot_product_sends_tensors_and_texts():
    fields = make_request(bias=np.full((1, 5, 5), -np.inf), need=["spans", "top"], spans=[[0, 2], [1, 5]], top_k=2,
                          targets=[None, [0, 1], (2, 3), None, [1, 2]], weights_queries=-1, softcap=None, sinks=normal(4))
    body, _ = encode(fields, False, 3)
    tensors = safetensors.numpy.load(body)
    assert {name: str(tensor.dtype) for name, tensor in tensors.items()} == {
        "queries": "float32", "keys": "float32", "bias": "float32", "sinks": "float32", "spans": "int64",
        "targets": "int64", "weights_queries": "int64"}
    assert tensors["targets"].tolist() == [[0, 0], [0, 1], [2, 3], [0, 0], [1, 2]]
    header = json.loads(body[8:8 + int.from_bytes(body[:8], "little")])
    assert header["__metadata__"] == {"need": "spans,top", "top_k": "2", "causal": "false", "scale": "0.25"}

    sent = json.loads(encode(fields, True, 3)[0])
    assert sent["bias"] == [[[None] * 5] * 5] and sent["need"] == ["spans", "top"] and sent["weights_queries"] == [-1]


@pytest.mark.parametrize("rank, width", [(2, ()), (3, (4,))])
def test_list_of_sequences_is_a_ragged_batch_of_dot_product(rank, width):
    fields = {"queries": [normal(3, *width, 8), normal(5, *width, 8)], "keys": [normal(4, *width, 8), normal(2, *width, 8)],
              "positions": [[0, 1, 2], range(5)], "targets": [[[0, 1]] * 3, [None] * 5], "spans": [[[0, 1]], [[1, 2]]]}
    tensors = safetensors.numpy.load(encode(fields, False, rank)[0])
    assert {name: tensor.shape for name, tensor in tensors.items()} == {
        "queries": (8, *width, 8), "keys": (6, *width, 8), "query_lens": (2,), "key_lens": (2,), "positions": (8,),
        "targets": (8, 2), "spans": (2, 1, 2)}


RESULTS = {  # of three rows and five keys, and of two rows and four keys
    "weights": ("attention_weights", (3, 5), (2, 4)), "scores": ("scores", (3, 5), (2, 4)),
    "spans": ("span_weights", (3, 2), (2, 2)), "top": ("top_weights", (3, 3, 2), (2, 3, 2)),
    "received": ("received", (5,), (4,)), "blocks": ("block_weights", (2, 3), (1, 2))}
OPTIONS = {"queries": [normal(3, 4, 8), normal(2, 4, 8)], "spans": [[0, 1], [1, 2]], "top_k": 2, "block": 2,
           "top_in": [[0, 2], [0, 3], [1, 3]]}


@pytest.mark.parametrize("word", RESULTS)
def test_ragged_reply_is_split_into_sequences(word):
    name, *shapes = RESULTS[word]
    arrays = [normal(4, *shape) for shape in shapes]
    reply = {name: np.concatenate([array.reshape(-1) for array in arrays]),
             "query_lens": np.int64([3, 2]), "key_lens": np.int64([5, 4])}
    if word == "top":
        reply["top_keys"] = reply[name].astype(np.int64)
    types = {name: "I64" if tensor.dtype == np.int64 else "F32" for name, tensor in reply.items()}
    data = bytearray(make_safetensors(reply, types))
    got = decode_words(200, {"Content-Type": "application/vnd.safetensors"}, data, OPTIONS | {"need": [word]}, 3)[word]
    got = got[1] if word == "top" else got
    assert [array.shape for array in got] == [array.shape for array in arrays]
    assert all(np.array_equal(*pair) for pair in zip(got, arrays))


def test_nulls_of_a_reply_are_infinities_and_keys_that_are_none():
    data = json.dumps({"scores": [[[1.5, None]]], "top_keys": [[[1, None]]], "top_weights": [[[0.5, 0]]]}).encode()
    results = decode_words(200, {"Content-Type": "application/json"}, data, {"need": ["scores", "top"]}, 3)
    keys, weights = results["top"]
    assert results["scores"].tolist() == [[[1.5, -np.inf]]] and keys.tolist() == [[[1, -1]]]
    assert keys.dtype == np.int64 and weights.tolist() == [[[0.5, 0]]]


# docs/inspect.md


def test_uses_print_what_the_page_shows(monkeypatch, capsys):
    """Each example is run, and some show what they print."""
    page = (ROOT / "docs/inspect.md").read_text().split("## Thirteen uses")[1]
    examples = re.findall(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", page, re.S)
    assert len(examples) == 14
    monkeypatch.chdir(ROOT)
    names = {}
    for code, shown in examples:
        exec(code, names)
        printed = capsys.readouterr().out
        assert not shown or printed == shown

    assert names["received"].shape == (4, 31) and names["ratio"].shape == (4, 11) and names["pooled"].shape == (4, 31)


def test_spectra_are_those_of_the_maps(monkeypatch):
    """By numpy on the whole maps of the capture that the page uses.

    Maps are transposed: LAPACK leaves a matrix that is upper triangular as it is. Of a lower one it swaps rows, so a
    determinant near 1e-60 keeps only six digits, of which OpenBLAS changes some with the CPU.
    """
    page = (ROOT / "docs/inspect.md").read_text().split("## Thirteen uses")[1]
    monkeypatch.chdir(ROOT)
    names = {}
    for code in re.findall(r"```python\n(.*?)```", page, re.S):
        exec(code, names)

    for head, weights in enumerate(compute_weights(**names["c"].request(1))):
        degrees = [np.mean(weights[j:, j]) for j in range(31)]
        assert np.allclose(names["logs"][head], np.linalg.slogdet(weights.T)[1] / 31, rtol=0, atol=1e-5)
        laplacian = np.sort(np.linalg.eigvals(np.diag(degrees) - weights.T).real)
        assert np.allclose(np.sort(names["eigenvalues"][head]), laplacian, rtol=0, atol=1e-5)
        assert abs(names["largest"][head] - np.linalg.svd(weights, compute_uv=False)[0]) < 1e-4


def test_guard_reranking_and_eviction_are_their_formulas():
    """By loops over the weights of the capture that the page uses."""
    captured = open_capture(ROOT / "docs/examples/tiny-gpt2/capture.safetensors")
    maps = [compute_weights(**captured.request(layer)) for layer in (0, 1)]
    chosen = [maps[0][1], maps[0][3], maps[1][2]]
    guard = np.mean([sum(head[30, :12]) for head in chosen])
    scores = [sum(np.mean([sum(head[i, first:end]) for i in range(20, 31)]) for head in chosen)
              for first, end in ((0, 10), (10, 15), (15, 20))]
    received = [np.mean([maps[1][0][i, j] for i in range(j, 31)]) for j in range(31)]
    page = (ROOT / "docs/inspect.md").read_text()
    assert f"```text\n{guard:.4f}\n```" in page
    assert f"{np.round(np.float32(scores), 4)} {np.argsort(scores)[::-1]}" in page
    assert f"{np.sort(np.argsort(received)[-8:])}" in page
