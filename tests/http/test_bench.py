# SPDX-License-Identifier: Apache-2.0
"""attnd bench: whether it measures what it reports, not how fast it is."""

import json

import pytest

from server import run_attnd


def bench(*options):
    result = run_attnd("bench", "--seconds", 1, "--json", *options)
    assert result.returncode == 0, result
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_layer_is_timed_with_every_engine_and_the_baseline():
    reports = bench("--shape", "2,8,16,4", "--shape", "1,3,8,2,5", "--workers", 2)
    assert [(r["sequences"], r["query_len"], r["key_len"], r["width"], r["heads"])
            for r in reports] == [(2, 8, 8, 16, 4), (1, 3, 5, 8, 2)]
    for report in reports:
        assert [r["name"] for r in report["results"]] == ["native", "openblas", "cblas tiles"]
        assert report["threads"] == 2 and report["rounds"] >= 5 and report["peak_gflops"] > 0
        for result in report["results"]:
            assert 0 < result["min_ms"] <= result["median_ms"] <= result["max_ms"]
        assert report["results"][-1]["over_baseline"] == 1


def test_operations_are_counted_with_and_without_the_mask():
    dense, = bench("--shape", "2,8,16,4", "--engine", "native")
    assert dense["dense_gflop"] == dense["done_gflop"] == pytest.approx(
        (2 * 4 * 16 * 16 * 16 + 4 * 2 * 8 * 8 * 16) * 1e-9)
    half, = bench("--shape", "2,8,16,4", "--part", "attention", "--fill", 50)
    assert half["dense_gflop"] == pytest.approx(4 * 2 * 8 * 8 * 16 * 1e-9)
    assert half["done_gflop"] == pytest.approx(half["dense_gflop"] / 2)
    causal, = bench("--shape", "1,8,16,4", "--part", "attention", "--causal", "--weights")
    assert causal["done_gflop"] == pytest.approx(4 * 36 * 16 * 1e-9)


ATTENTION_ONLY = {"read_gb_per_s", "by_head", "gb_per_s", "of_reading"}


def test_attention_is_compared_with_reading_its_keys_and_values():
    report, = bench("--shape", "2,3,128,2,2048", "--part", "attention", "--fill", 50)
    assert report["read_gb_per_s"] > 0 and report["rounds"] >= 5
    for result in report["results"]:
        bytes_read = result["gb_per_s"] * result["median_ms"] * 1e6
        assert bytes_read == pytest.approx(2 * 2 * 1024 * 128 * 4, rel=1e-3)
        assert result["of_reading"] > 0


@pytest.mark.parametrize("part", ["layer", "projection"])
def test_other_parts_are_not_compared_with_reading(part):
    report, = bench("--shape", "1,3,8,2", "--part", part)
    assert not ATTENTION_ONLY & (report.keys() | report["results"][0].keys())


# Heads of 32 numbers are whole panels of every instruction set, heads of 20 of none.
@pytest.mark.parametrize("width,options,by_head", [
    (64, [], True), (64, ["--strided"], False), (40, [], False),
    (64, ["--precision", "f32", "--engine", "openblas"], False)])
def test_report_says_how_keys_and_values_lie(width, options, by_head):
    options = ["--shape", f"1,3,{width},2,300", "--part", "attention", *options]
    report, = bench(*options)
    for result in report["results"]:
        assert result["by_head"] == (by_head and result["name"] == "native")
    assert report["strided"] == ("--strided" in options)

    text = run_attnd("bench", "--seconds", 1, *options)
    head, *rows = text.stdout.splitlines()
    assert f"keys and values {'by head (native)' if by_head else 'strided'}," in head
    assert [row.split("  ")[1] for row in rows[:2]] == ["multiply-add peak", "read bandwidth"]
    for row in rows[2:]:
        assert row.startswith("  ") and row.endswith(" of reading") and " GB/s" in row, row


def test_scratch_is_enough_for_every_contender():
    # The strided keys and values of openblas are gathered; those of native are not.
    report, = bench("--shape", "1,512,64,1", "--workers", 8)
    assert len(report["results"]) == 3


@pytest.mark.parametrize("shape", ["", "1,2,3", "1,2,9,2", "1,2,8,0", "0,2,8,2", "-1,2,8,2",
                                   "1,2,8,2,3,4", "a,b,c,d"])
def test_malformed_shape_exits_2(shape):
    result = run_attnd("bench", "--shape", shape)
    assert result.returncode == 2 and "--shape" in result.stderr, result


def test_text_report_has_peak_and_ratio():
    result = run_attnd("bench", "--seconds", 1, "--shape", "1,4,8,2")
    assert result.returncode == 0, result
    for word in ("multiply-add peak", "of peak", "cblas tiles"):
        assert word in result.stdout


def test_reading_and_printing_json_is_timed_beside_other_libraries():
    reports = bench("--wire")
    assert [(r["task"], r["results"][1]["name"]) for r in reports] == [
        ("read 17 digits", "jansson"), ("read indented", "jansson"), ("read shortest", "jansson"),
        ("print outputs", "snprintf"), ("print weights", "snprintf")]
    for report in reports:
        assert report["results"][0]["name"] == "attnd" and len(report["results"]) == 2
        assert report["numbers"] == 128 * 768 and report["rounds"] >= 5
        for result in report["results"]:
            assert 0 < result["min_ns"] <= result["ns_per_number"] <= result["max_ns"]
            assert result["mb_per_s"] * result["ns_per_number"] == pytest.approx(
                result["bytes"] / report["numbers"] * 1e3, rel=1e-3)
        ours, other = (result["bytes"] for result in report["results"])
        assert report["bytes"] == ours
        assert ours == other if report["task"].startswith("read") else ours < other, report
        assert report["results"][-1]["over_baseline"] == 1


def test_text_report_of_wire_has_rate_and_ratio():
    result = run_attnd("bench", "--wire", "--seconds", 1)
    assert result.returncode == 0, result
    for word in ("MB/s", "ns a number", "x jansson", "x snprintf", "bytes each"):
        assert word in result.stdout
