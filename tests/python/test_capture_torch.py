# SPDX-License-Identifier: Apache-2.0
"""Captures of tiny models of transformers while they generate: every row that is kept is eager attention's."""

import itertools
import warnings

import attnd
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from attnd._errors import CaptureError
from attnd.recording import CaptureWarning, capture
from plain_attention import compute_weights
from server import ROOT

SIZES = dict(vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=8, max_position_embeddings=64, eos_token_id=None, pad_token_id=0, bos_token_id=1)
FAMILIES = {
    "llama": {}, "mistral": {"sliding_window": 6}, "qwen3": {}, "gemma2": {"sliding_window": 6, "query_pre_attn_scalar": 8},
    "gpt_oss": {"sliding_window": 6, "num_local_experts": 2, "num_experts_per_tok": 1},
    "llama4_text": {"attention_chunk_size": 5, "num_local_experts": 2, "num_experts_per_tok": 1, "no_rope_layers": [1, 0],
                    "intermediate_size_mlp": 32, "attn_temperature_tuning": False}}
TOLERANCE = 1e-5


EAGER = ("gemma2", "gpt_oss")  # which have no other kernel


def make(family, kernel="sdpa", **options):
    """Returns a model of random weights, in which attention is not even."""
    torch.manual_seed(3)
    config = transformers.AutoConfig.for_model(family, **SIZES | FAMILIES[family] | options)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager" if family in EAGER else kernel).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                weight *= 8
    return model


def draw_ids(rows=1, length=9, seed=5):
    return torch.from_numpy(np.random.default_rng(seed).integers(2, 64, (rows, length)))


class Tokenizer:
    """Labels ids by themselves."""

    def decode(self, ids):
        return str(ids[0])


def run(captured_model, ids, **options):
    """Returns the capture of a generation, its ids, and the texts of its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with torch.no_grad(), capture(captured_model, tokenizer=Tokenizer()) as found:
            made = captured_model.generate(ids, **{"max_new_tokens": 8, "do_sample": False} | options)
    return found, made, [str(each.message) for each in caught if issubclass(each.category, CaptureWarning)]


def eager_weights(model, ids, mask=None):
    """Returns what eager attention has for whole sequences, by layer."""
    kernel = model.config._attn_implementation
    model.set_attn_implementation("eager")
    places = None if mask is None else (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        result = model(input_ids=ids, attention_mask=mask, position_ids=places, output_attentions=True, use_cache=False)
    model.set_attn_implementation(kernel)
    return [weights.numpy() for weights in result.attentions]


def assert_rows(found, model, ids, masks=None, rows=None):
    """Every layer and sequence has each row of the text but the last, which no step has computed."""
    mask = torch.ones_like(ids) if masks is None else torch.cat([masks, torch.ones_like(ids[:, masks.shape[1]:])], 1)
    expected = eager_weights(model, ids[:, :-1], mask[:, :-1])
    for layer, item in itertools.product(range(len(expected)), range(len(ids))):
        request, start = found.request(layer, item), int((mask[item] == 0).sum())
        assert len(request["queries"]) == (ids.shape[1] - 1 - start if rows is None else rows), (layer, item)
        wanted = expected[layer][item][:, start:, start:]
        weights = compute_weights(**request)
        assert np.abs(weights - wanted[:, -weights.shape[1]:]).max() < TOLERANCE, (layer, item)
    return found


def labels_of(found, layer):
    """Returns the labels of the keys of each sequence."""
    return [found.labels(layer, item)[1] for item in range(len(found.layers[str(layer)]))]


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_generation_is_one_sequence(family, cache):
    model, ids = make(family), draw_ids()
    found, made, texts = run(model, ids, cache_implementation=cache)
    assert made.shape[1] == 17 and texts == []
    assert_rows(found, model, made)
    window = FAMILIES[family].get("sliding_window")
    windows = {found.request(layer).get("window") for layer in found.layers}
    assert windows == ({None} if window is None else {window} if family == "mistral" else {None, window})


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("family, kernel", [(family, kernel) for family in FAMILIES for kernel in ("sdpa", "eager")
                                            if kernel == "eager" or family not in EAGER])
def test_left_padding_of_a_batch_is_cut_off_in_every_step(family, kernel, cache):
    model, ids, mask = make(family, kernel), draw_ids(3), torch.ones(3, 9, dtype=torch.long)
    for item, count in ((0, 4), (2, 2)):
        ids[item, :count] = mask[item, :count] = 0
    found, made, texts = run(model, ids, attention_mask=mask, cache_implementation=cache, max_new_tokens=5)
    assert texts == []
    assert_rows(found, model, made, mask)
    if family in ("llama", "qwen3"):
        assert all("window" not in found.request(layer, item) for layer in (0, 1) for item in range(3))


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt_oss"])
@pytest.mark.parametrize("options", [{"prompt_lookup_num_tokens": 3}, {"assistant_model": None}], ids=["lookup", "assistant"])
def test_drafts_that_are_rejected_are_no_rows(family, options):
    model, ids = make(family), torch.cat([draw_ids(1, 5), draw_ids(1, 5)], 1)
    if "assistant_model" in options:
        options = {"assistant_model": make("llama", num_hidden_layers=1)}
    found, made, texts = run(model, ids, max_new_tokens=20, **options)
    known = torch.tensor([[int(label) for label in found.labels(0)[1]]])  # the last drafts, too
    assert known.shape[1] >= made.shape[1] - 4
    assert torch.equal(known[:, :made.shape[1] - 4], made[:, :known.shape[1]][:, :made.shape[1] - 4])
    assert_rows(found, model, torch.cat([known, known[:, :1]], 1))
    assert texts == [] or "layers 0, 1: " in texts[0] and "rows were taken back by a later call" in texts[0]


@pytest.mark.parametrize("family, num_layers", [("llama", 2), ("mistral", 2), ("gemma2", 2), ("llama", 1)])
@pytest.mark.parametrize("cache", [None, "static"])
def test_beams_have_their_own_past(family, num_layers, cache):
    model = make(family, num_hidden_layers=num_layers)
    found, made, texts = run(model, draw_ids(2), num_beams=3, num_return_sequences=3, cache_implementation=cache)
    assert "changed places" in texts[-1] and len(texts) == 1
    # Whatever the texts of the beams at the last step are, rows are those of the ids that the capture has seen.
    assert len(found.layers["0"]) == 6 and len(found.request(0)["queries"]) == 16
    assert_rows(found, model, torch.tensor([[*map(int, labels), 0] for labels in labels_of(found, num_layers - 1)]))


def test_guidance_is_two_runs():
    model, ids = make("llama"), draw_ids()
    found, made, texts = run(model, ids, guidance_scale=1.5)
    assert len(found.runs) == 2
    assert texts == ["layers 0, 1: 8 of 16 calls do not continue in the last run, which is what a capture is asked about; "
                     "c.runs has all 2 runs"]
    assert_rows(found.runs[0], model, made)
    assert_rows(found.runs[1], model, made[:, 8:])


def make_pair(family):
    """Returns a tiny model with encoder and decoder."""
    torch.manual_seed(3)
    if family == "t5":
        config = transformers.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=32, num_layers=2, num_heads=4, pad_token_id=0,
                                       eos_token_id=None, decoder_start_token_id=0)
        return transformers.T5ForConditionalGeneration(config).eval()
    config = transformers.WhisperConfig(
        vocab_size=64, num_mel_bins=8, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=32, decoder_ffn_dim=32, max_source_positions=10, max_target_positions=32,
        pad_token_id=0, bos_token_id=1, eos_token_id=None, decoder_start_token_id=1, suppress_tokens=None,
        begin_suppress_tokens=None)
    return transformers.WhisperForConditionalGeneration(config).eval()


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("num_beams", [1, 2])
@pytest.mark.parametrize("family", ["t5", "whisper"])
def test_decoders_have_every_step_and_their_cross_attention(family, num_beams, cache):
    model, sources = make_pair(family), draw_ids(2, 7)
    inputs = {"input_ids": sources} if family == "t5" else {"input_features": torch.randn(2, 8, 20)}
    if family == "t5":
        inputs["attention_mask"] = torch.ones_like(sources)
        inputs["attention_mask"][1, 5:] = 0
    with torch.no_grad(), capture(model, tokenizer=Tokenizer()) as found, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = transformers.generation.GenerationMixin.generate(
            model, **inputs, max_new_tokens=6, do_sample=False, num_beams=num_beams, num_return_sequences=num_beams,
            cache_implementation=cache)
    made = torch.tensor([[*map(int, labels), 0] for labels in labels_of(found, "decoder.1")])
    repeated = {name: tensor.repeat_interleave(num_beams, 0) for name, tensor in inputs.items()}
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(**repeated, decoder_input_ids=made[:, :-1], output_attentions=True, use_cache=False)
    for layer, item in itertools.product(range(2), range(len(made))):
        for name, weights in ((f"decoder.{layer}", expected.decoder_attentions), (f"decoder.{layer}.cross", expected.cross_attentions)):
            request = found.request(name, item)
            got, wanted = compute_weights(**request), weights[layer][item].numpy()
            assert got.shape[1] == made.shape[1] - 1 == 6
            assert np.abs(got - wanted[..., :got.shape[2]]).max() < TOLERANCE and not wanted[..., got.shape[2]:].any()


def test_decoder_goes_on_beside_an_encoder_that_runs_again():
    model, sources, texts = make_pair("t5"), draw_ids(2, 7), draw_ids(2, 6)
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught, capture(model) as found:
        past = model(input_ids=sources, decoder_input_ids=texts[:, :4]).past_key_values
        model(input_ids=sources, decoder_input_ids=texts[:, 4:], past_key_values=past)
    assert [str(each.message) for each in caught if issubclass(each.category, CaptureWarning)] == [
        "layers encoder.0, encoder.1: 1 of 2 calls do not continue in the last run, which is what a capture is asked about; "
        "c.runs has all 2 runs"]
    for layer in found.layers:
        assert len(found.request(layer)["queries"]) == (7 if layer.startswith("encoder") else 6)


def test_recomputed_layers_of_checkpointing_are_not_kept_twice():
    model = make("llama").train()
    model.gradient_checkpointing_enable()
    with capture(model) as found:
        model(input_ids=draw_ids(), labels=draw_ids()).loss.backward()
    assert list(found.layers) == ["0", "1"]


def test_last_layer_is_minus_one():
    model = make("llama")
    with torch.no_grad(), capture(model, layers=[-1]) as found:
        model(input_ids=draw_ids())
    assert list(found.layers) == ["1"]


def test_compiled_model_is_captured():
    model, ids = make("llama"), draw_ids()
    model.compile(backend="eager")
    with torch.no_grad(), capture(model) as found:
        model(input_ids=ids)
        model(input_ids=ids)
    assert_rows(found, make("llama"), torch.cat([ids, ids[:, :1]], 1))
    wrapped = torch.compile(make("llama"), backend="eager")
    with pytest.raises(CaptureError, match="capture model._orig_mod"), capture(wrapped):
        pass


def test_one_pass_gives_a_file_of_all(tmp_path):
    """Token ids are there by themselves; a folder's heads are those of the queries and keys."""
    folder = ROOT / "docs/examples/tiny-gpt2"
    model, ids = transformers.AutoModelForCausalLM.from_pretrained(folder), torch.arange(1, 12)[None]
    with torch.no_grad(), capture(model, tokenizer=Tokenizer()) as found:
        found.hidden_states = model(ids, output_hidden_states=True).hidden_states
    found.save(tmp_path / "file")
    loaded = attnd.open(tmp_path / "file")
    assert loaded.token_ids.tolist() == ids[0].tolist() and len(loaded.tokens) == 11 and loaded.hidden_ids == [0, 1, 2]
    rows, given = attnd.load(folder).heads(loaded), loaded.heads()
    for name in ("entropy", "self", "previous", "first", "distance"):
        assert np.allclose(rows[name], given[name], atol=1e-5), name
