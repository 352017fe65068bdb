# SPDX-License-Identifier: Apache-2.0
"""attnd-bench: whether it measures what it reports, not how fast it is."""

import ctypes
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from checkpoints import random_tensors, write_layer
from folders import FOLDERS, copy_layers
from openblas import needs_openblas
from safetensors_file import write_safetensors
from server import run_bench, skip_without

pytestmark = needs_openblas  # else there is no attnd-bench
ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/bench"))

import library


def run_once(*options):
    """Runs every contender in one round: most tests need no more."""
    result = run_bench("--seconds", 0, *options)
    assert result.returncode == 0, result
    return result.stdout


def bench(*options):
    return [json.loads(line) for line in run_once("--json", *options).splitlines()]


def test_second_has_more_rounds_than_none():
    options = ("--shape", "1,3,8,2", "--engine", "native", "--json")
    result = run_bench("--seconds", 1, *options)
    assert result.returncode == 0 and json.loads(result.stdout)["rounds"] >= 5, result
    assert bench(*options)[0]["rounds"] == 1


def test_layer_is_timed_with_every_engine_and_the_baseline():
    reports = bench("--shape", "2,8,16,4", "--shape", "1,3,8,2,5", "--workers", 2)
    assert [(r["sequences"], r["query_len"], r["key_len"], r["width"], r["heads"])
            for r in reports] == [(2, 8, 8, 16, 4), (1, 3, 5, 8, 2)]
    for report in reports:
        assert [r["name"] for r in report["results"]] == ["native", "openblas"]
        assert report["threads"] == 2 and report["rounds"] == 1 and report["peak_gflops"] > 0
        for result in report["results"]:
            assert 0 < result["min_ms"] <= result["median_ms"] <= result["max_ms"]
        assert report["results"][-1]["over_baseline"] == 1


def test_share_of_the_peaks_is_that_of_its_own_kernels():
    report, = bench("--shape", "1,64,64,4", "--workers", 1)
    for result in report["results"]:
        for share, peak in (("of_peak", "peak_gflops"), ("of_loaded_peak", "loaded_peak_gflops")):
            assert result[share] == pytest.approx(result["gflops"] / report[peak], rel=0.5), result


def test_operations_are_counted_with_and_without_the_mask():
    dense, = bench("--shape", "2,8,16,4", "--engine", "native")
    assert dense["dense_gflop"] == dense["done_gflop"] == pytest.approx(
        (2 * 4 * 16 * 16 * 16 + 4 * 2 * 8 * 8 * 16) * 1e-9)
    causal, = bench("--shape", "1,8,16,4", "--part", "attention", "--causal", "--weights")
    assert causal["done_gflop"] == pytest.approx(4 * 36 * 16 * 1e-9)


ATTENTION_ONLY = {"read_gb_per_s", "by_head", "gb_per_s", "of_reading"}


def test_attention_is_compared_with_reading_its_keys_and_values():
    report, = bench("--shape", "2,3,128,2,1024", "--part", "attention")
    assert report["read_gb_per_s"] > 0 and report["rounds"] == 1
    for result in report["results"]:
        bytes_read = result["gb_per_s"] * result["median_ms"] * 1e6
        assert bytes_read == pytest.approx(2 * 2 * 1024 * 128 * 4, rel=1e-3)
        assert result["of_reading"] > 0


@pytest.mark.parametrize("causal, pairs", [([], 3 * 1024), (["--causal"], 1022 + 1023 + 1024)])
def test_dot_product_is_compared_with_reading_and_counts_its_pairs(causal, pairs):
    """With a causal mask, the queries are the last ones."""
    report, = bench("--shape", "2,3,128,4,1024", "--part", "dot-product", "--kv-heads", "2", *causal)
    assert (report["heads"], report["key_heads"], report["head_size"]) == (4, 2, 32)
    assert report["done_gflop"] == pytest.approx(2 * 4 * 2 * pairs * (32 + 32) * 1e-9)
    result, = report["results"]
    bytes_read = result["gb_per_s"] * result["median_ms"] * 1e6
    assert bytes_read == pytest.approx(2 * 2 * 1024 * 64 * 4, rel=1e-3) and result["of_peak"] > 0


@pytest.mark.parametrize("part", ["layer", "projection"])
def test_other_parts_are_not_compared_with_reading(part):
    report, = bench("--shape", "1,3,8,2", "--part", part)
    assert not ATTENTION_ONLY & (report.keys() | report["results"][0].keys())


# Heads of 32 numbers are whole panels of every instruction set, heads of 20 of none.
@pytest.mark.parametrize("width,options,by_head", [
    (64, [], True), (40, [], False),
    (64, ["--precision", "f32", "--engine", "openblas"], False)])
def test_report_says_how_keys_and_values_lie(width, options, by_head):
    options = ["--shape", f"1,3,{width},2,300", "--part", "attention", *options]
    report, = bench(*options)
    for result in report["results"]:
        assert result["by_head"] == (by_head and result["name"] == "native")


def test_scratch_is_enough_for_every_contender():
    # The strided keys and values of openblas are gathered; those of native are not.
    report, = bench("--shape", "1,512,64,1", "--workers", 8)
    assert len(report["results"]) == 2


@pytest.mark.parametrize("shape", ["", "1", "1,2,3", "1,2,9,2", "1,2,8,0", "0,2,8,2", "-1,2,8,2",
                                   "1,2,8,2,3,4", "1,2,", "a,b,c,d"])
def test_malformed_shape_exits_2(shape):
    result = run_bench("--shape", shape)
    assert result.returncode == 2 and "--shape" in result.stderr, result


def test_layer_of_a_file_is_timed_with_its_own_sizes(tmp_path):
    path = tmp_path / "layer.safetensors"
    write_layer(path, num_heads=2, head_size=4, query_size=6, key_size=10)
    report, = bench("--model", f"own={path}", "--shape", "1,3,5")
    assert {key: report[key] for key in ("model", "sequences", "query_len", "key_len", "width",
                                         "heads", "key_heads", "head_size", "causal")} == {
        "model": "own", "sequences": 1, "query_len": 3, "key_len": 5, "width": 6, "heads": 2,
        "key_heads": 2, "head_size": 4, "causal": False}
    assert [r["name"] for r in report["results"]] == ["native", "openblas"]
    projections = 3 * 6 * 8 + 2 * 5 * 10 * 8 + 3 * 8 * 8
    assert report["dense_gflop"] == report["done_gflop"] == pytest.approx(
        (2 * projections + 4 * 3 * 5 * 8) * 1e-9)


def test_every_layer_of_a_folder_is_timed_with_its_own_mask(tmp_path):
    shapes = ["--shape", "2,5", "--shape", "1,2,7", "--shape", "1,5,8,2"]
    options = ["--model", f"g={copy_layers('gpt2', tmp_path, 3)},layers=0,2", "--part", "attention"]
    reports = bench(*options, *shapes, "--engine", "native")
    assert [r.get("model") for r in reports] == ["g.0", "g.2", "g.0", "g.2", None]
    assert [r["causal"] for r in reports] == [True] * 4 + [False]
    # The last two queries of seven keys attend to six and seven of them.
    pairs = [2 * 15, 2 * 15, 6 + 7, 6 + 7]
    assert [r["done_gflop"] for r in reports[:4]] == pytest.approx(
        [4 * 48 * count * 1e-9 for count in pairs])


def test_shared_key_heads_and_windows_are_counted():
    options = ["--model", f"g={FOLDERS / 'gemma2'},layers=0", "--engine", "native"]
    layer, = bench(*options, "--shape", "1,7")
    assert {key: layer[key] for key in ("width", "heads", "key_heads", "head_size", "window")} == {
        "width": 48, "heads": 4, "key_heads": 2, "head_size": 16, "window": 5}
    projections, pairs = 2 * 7 * 48 * 64 + 2 * 7 * 48 * 32, 1 + 2 + 3 + 4 + 5 + 5 + 5
    assert layer["dense_gflop"] == pytest.approx((2 * projections + 4 * 7 * 7 * 64) * 1e-9)
    assert layer["done_gflop"] == pytest.approx((2 * projections + 4 * pairs * 64) * 1e-9)
    assert [r["name"] for r in layer["results"]] == ["native"]  # and no baseline

    # The last query attends to five of its seven keys, in two heads that are read once.
    query, = bench(*options, "--shape", "1,1,7", "--part", "attention")
    native, = query["results"]
    assert query["done_gflop"] == pytest.approx(4 * 5 * 64 * 1e-9)
    assert native["gb_per_s"] * native["median_ms"] * 1e6 == pytest.approx(5 * 2 * 32 * 4, rel=1e-3)


def test_gates_are_counted():
    report, = bench("--model", f"g={FOLDERS / 'qwen3_5_text'}", "--shape", "1,7", "--engine", "native")
    projections, pairs = 7 * 48 * (3 * 128 + 2 * 64), 7 * 8 / 2  # of queries, gates, outputs; keys, values
    assert report["done_gflop"] == pytest.approx((2 * projections + 4 * pairs * 128) * 1e-9)


def test_precision_of_a_model_overrides_the_option():
    folder = f"g={FOLDERS / 'gpt2'},layers=0"
    skip_without("--precision", "bf16")
    report, = bench("--model", folder + ",precision=bf16", "--shape", "1,3")
    assert [r["precision"] for r in report["results"]] == ["bf16", "f32", "f32"]
    report, = bench("--model", folder + ",precision=f32", "--shape", "1,3", "--precision", "bf16")
    assert [r["precision"] for r in report["results"]] == ["f32", "f32"]


def test_additive_scoring_is_counted(tmp_path):
    path = tmp_path / "additive.safetensors"
    write_layer(path, num_heads=2, head_size=4, query_size=6, additive_size=3)
    options = ["--model", f"a={path}", "--shape", "1,3", "--part", "attention"]
    report, = bench(*options)
    assert [r["name"] for r in report["results"]] == ["native", "openblas"]
    assert report["done_gflop"] == pytest.approx(2 * 9 * 2 * (3 + 4) * 1e-9)


def test_model_that_cannot_be_timed_says_why(tmp_path):
    path = tmp_path / "heads.safetensors"
    write_safetensors(path, random_tensors(np.random.default_rng(1), "wrapper", 2, 4))
    folder = f"g={FOLDERS / 'gpt2'}"
    for options, code, words in [
            (["--shape", "1,8"], 2, "no WIDTH and HEADS"),
            (["--part", "dot-product", "--shape", "1,8"], 2, "which --part dot-product and stored need"),
            (["--part", "dot-product", "--shape", "1,8,8,4", "--kv-heads", "3"], 1, "not a multiple"),
            (["--kv-heads", "2"], 2, "--kv-heads is for --part dot-product"),
            (["--model", "g", "--shape", "1,8"], 2, "--model"),
            (["--model", "g=missing", "--shape", "1,8"], 1, "missing"),
            (["--model", folder + ",context_length=4", "--shape", "1,8"], 1, "context length"),
            (["--model", f"h={path}", "--shape", "1,8", "--part", "projection"], 1,
             "h has no output projection")]:
        result = run_bench(*options)
        assert result.returncode == code and words in result.stderr, result
        assert result.stderr.count("\n") == 1 and not result.stdout, result


def test_help_says_how_to_read_the_report():
    result = run_bench("--help")
    assert result.returncode == 0 and "multiply-add peak" in result.stdout, result
    for option in ("shape", "part", "workers", "engine", "precision"):
        assert f"\n  --{option}" in result.stdout, option
    assert "ATTND_" not in result.stdout
    assert run_bench("--version").stdout.startswith("attnd-bench ")
    for words in (["--listen", "x"], ["file"], ["--seconds", "3601"]):
        result = run_bench(*words)
        assert result.returncode == 2 and result.stderr.startswith("attnd-bench: "), result


def test_text_report_has_the_fields_of_json():
    options = ("--shape", "1,4,8,2", "--part", "attention")
    report, = bench(*options)
    head, *rows = run_once(*options).splitlines()
    assert [field.split(" ")[0] for field in head.split(", ")] == [
        name for name, value in report.items() if not isinstance(value, list)]
    assert [row.split() for row in (rows[0], rows[2])] == [list(report["peaks"][0]), list(report["results"][0])]
    assert [row.split()[0] for row in rows[3:]] == ["native", "openblas"]


# --- tests/bench, which calls the library by copies of its structs ---

TYPES = {"size_t": ctypes.c_size_t, "bool": ctypes.c_bool, "double": ctypes.c_double,
         "attn_reductions": library.Reductions}


def read_members(name):
    """Returns name and type of the members of a struct of the headers."""
    text = "".join(path.read_text() for path in (ROOT / "include/attnd").glob("*.h"))
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    body = re.search(rf"typedef struct {name} {{(.*?)}} {name};", text, re.DOTALL)[1]
    for declaration in body.split(";")[:-1]:
        kind, declarators = re.fullmatch(r"(?:const )?(?:struct )?(\w+) (.*)", " ".join(declaration.split())).groups()
        for declarator in declarators.split(", "):
            member, count = re.fullmatch(r"\*?(\w+)(?:\[(\w+)\])?", declarator).groups()
            words = re.search(rf"#define {count} +(\d+)", text)  # of an array of integers
            if declarator.startswith("*"):
                yield member, ctypes.c_char_p if kind == "char" else ctypes.c_void_p
            elif kind != "char":
                member_type = TYPES.get(kind, ctypes.c_int)
                yield member, member_type * int(words[1]) if words else member_type


@pytest.mark.parametrize("name,structure", [
    ("attn_engine_options", library.Engine), ("attn_reductions", library.Reductions),
    ("attn_request", library.Request),
    ("attn_result", library.Result), ("attn_sizes", library.Sizes)])
def test_structs_of_the_comparisons_are_those_of_the_headers(name, structure):
    assert structure._fields_ == list(read_members(name))
