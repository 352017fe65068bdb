# SPDX-License-Identifier: Apache-2.0
"""tests/bench/served_peers.py: what it asks, compares and reports, not how fast anything is."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from openblas import needs_openblas
from server import BINARY

pytestmark = needs_openblas  # else there is no attnd-bench
ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/bench"))

environment = dict(os.environ)
import served_peers
os.environ.update(environment)  # the scripts of tests/bench remove settings of BLAS

from formats import encode_json
from served_load import put_load
from served_report import choose_settings, draw_served, served_markdown
from servers import KINDS, Files, Server, Setting


@pytest.fixture(params=served_peers.CASES)
def served(request, tmp_path):
    """Returns attnd with the layer of a case, as the script starts it, and the problem."""
    case = served_peers.CASES[request.param]
    problem = served_peers.make_case_problem(case)
    files = Files(served_peers.write_layer(problem, tmp_path), None, {}, case.batch, BINARY, tmp_path)
    server = Server(KINDS[0], files, Setting(1, 1), tmp_path / "attnd")
    yield server, problem
    server.stop()


def test_every_format_of_attnd_agrees_with_float64(served):
    server, problem = served
    for form in server.formats:
        entry = served_peers.compare(server, form, [problem, served_peers.fill_with_ones(problem)])
        assert "failed" not in entry and entry["difference"] < 1e-5, entry
    while server.cpu_seconds() == 0:  # it is counted in hundredths of a second
        served_peers.compare(server, server.formats[0], [problem])
    pss, rss = server.memory()
    assert 1e6 < pss <= rss < 1e9


@pytest.mark.parametrize("served", ["row"], indirect=True)
def test_load_is_put_on_every_format(served):
    server, problem = served
    inputs = served_peers.list_inputs(problem)
    for form in server.formats:
        server.wait(form, inputs)
        figures = put_load(BINARY.with_name("attnd-bench"), server, form, inputs, 2, 1)
        assert figures["rate"] > 0 and 0 < figures["p50"] < 1000 and figures["cpu"] > 0, figures
    wrong = server.formats[0]._replace(path="/v1/missing")
    with pytest.raises(RuntimeError, match="not all requests were served"):
        put_load(BINARY.with_name("attnd-bench"), server, wrong, inputs, 2, 1)


def test_server_with_another_layer_is_not_timed(served):
    server, problem = served
    weights = problem.weights | {"o": problem.weights["o"] * np.float32(1.001)}
    entry = served_peers.compare(server, server.formats[0], [problem._replace(weights=weights)])
    assert "differs from float64" in entry["failed"], entry


def test_numbers_in_json_are_the_shortest():
    values = np.array([0.1, 1 / 3, 1e-7], np.float32)
    body, _ = encode_json({"queries": values, "valid_lens": np.array([3], np.int32)})
    assert body == b'{"queries":[0.1,0.33333334,1e-07],"valid_lens":[3]}'


def make_entry(server, workers, *rates):
    rounds = [{"rate": rate, "p50": 1.5, "p99": None, "cpu": 0.25} for rate in rates]
    return {"server": server, "format": "JSON", "workers": workers, "rounds": rounds, "pss": 2e6,
            "rss": 3e6, "difference": 1e-7}


def test_report_has_the_better_setting_and_ratios_within_rounds():
    case = {"title": "one row: (1,1,768)", "connections": 4, "results": [
        make_entry("attnd", 1, 900, 90, 900), make_entry("attnd", 2, 1000, 100, 1000),
        make_entry("Peer", 1, 500, 10, 250), make_entry("Peer", 2, 400, 10, 200),
        {"server": "Other", "unavailable": "it is missing"},
        {"server": "Third", "format": "JSON", "failed": "it lied"}]}
    chosen = choose_settings(case)
    assert {name: entry["workers"] for (name, _), entry in chosen.items()} == {"attnd": 2, "Peer": 1}
    report = {"machine": "M", "date": "D", "rounds": 3, "versions": ["peer 1"], "cases": [case]}
    text = served_markdown(report)
    assert "| attnd | JSON | 2 | 1,000 |  | 1.50 ms | - | 0.250 ms | 2 MB | 3 MB |" in text, text
    assert "| Peer | JSON | 1 | 250 | 4.0x |" in text, text
    assert "Not timed: Other: it is missing." in text and "FAILED: Third: it lied." in text, text
    case["results"][2]["server"] = case["results"][3]["server"] = "Triton"  # which has a colour
    assert ">4.00</text>" in draw_served(report)
