# SPDX-License-Identifier: Apache-2.0
"""deploy/prometheus: the alerts, what docs/operate.md says of them, and what tests/deploy/rules_test.yml
tests.

    PROMTOOL    Prometheus's promtool (the one in PATH); without it three tests are skipped"""

import json
import os
import re
import shutil
import subprocess

import pytest
import yaml

from server import ROOT

PAGE = (ROOT / "docs/operate.md").read_text()
CONFIG = ROOT / "deploy/prometheus/prometheus.yml"
TESTS = ROOT / "tests/deploy/rules_test.yml"
GROUPS = yaml.safe_load((ROOT / "deploy/prometheus/rules.yml").read_text())["groups"]
RULES = [rule for group in GROUPS for rule in group["rules"]]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}

PROMTOOL = os.environ.get("PROMTOOL") or shutil.which("promtool")
needs_promtool = pytest.mark.skipif(not PROMTOOL, reason="promtool (Debian: prometheus) is missing")


def run_promtool(*arguments):
    done = subprocess.run([PROMTOOL, *arguments], text=True, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def metrics_of(alert):
    """The metrics in an alert's expression, without the suffixes of histograms."""
    names = re.findall(r"\b(?:attnd|process)_\w+", alert["expr"])
    return {re.sub(r"_(?:bucket|sum|count)$", "", name) for name in names}


@needs_promtool
def test_promtool_is_content_with_the_shipped_configuration():
    assert f"{len(RULES)} rules found" in run_promtool("check", "config", CONFIG)


@needs_promtool
def test_promtool_is_content_with_the_page(tmp_path):
    (config,) = re.findall(r"^```yaml\n(scrape_configs:.*?)^```$", PAGE, re.M | re.S)
    (tmp_path / "prometheus.yml").write_text(config)
    run_promtool("check", "config", tmp_path / "prometheus.yml")


def dashboard_queries():
    panels = json.loads((ROOT / "deploy/grafana/attnd.json").read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


@needs_promtool
def test_promtool_is_content_with_the_dashboard(tmp_path):
    """With values for what Grafana puts in."""
    queries = [query.replace("$job", "attnd").replace("$__rate_interval", "5m") for query in dashboard_queries()]
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(queries)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(queries)} rules found" in run_promtool("check", "rules", tmp_path / "rules.yml")


def test_dashboard_asks_for_metrics_that_the_page_explains():
    """test_metrics.py compares the page with GET /metrics."""
    known = set(re.findall(r"`((?:attnd|process)_\w+)`", PAGE))
    asked = {re.sub(r"_(?:bucket|sum|count)$", "", name)
             for query in dashboard_queries() for name in re.findall(r"\b(?:attnd|process)_\w+", query)}
    assert len(asked) > 15 and asked <= known


def test_rules_of_kubernetes_are_made_by_the_line_of_the_page():
    """Without the part that applies them."""
    (line,) = re.findall(r"^(\{ cat .*) \| kubectl apply -f -$", (ROOT / "docs/kubernetes.md").read_text(), re.M)
    made = subprocess.run(["sh", "-c", line], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    document = yaml.safe_load(made)
    assert (document["apiVersion"], document["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert document["spec"] == {"groups": GROUPS}


@needs_promtool
def test_alerts_fire_and_are_quiet_on_recorded_series():
    run_promtool("test", "rules", TESTS)


def test_each_alert_says_how_bad_it_is_and_what_to_do():
    for name, alert in ALERTS.items():
        assert alert["for"] and alert["labels"]["severity"] in ("critical", "warning", "info"), name
        assert alert["annotations"].keys() == {"summary", "description"}, name


def test_each_alert_fires_in_a_test_of_its_own_with_the_labels_that_it_prints():
    tests = yaml.safe_load(TESTS.read_text())["tests"]
    assert [test["name"] for test in tests] == [*ALERTS]
    for test in tests:
        samples = [sample for check in test["promql_expr_test"] for sample in check["exp_samples"]]
        assert samples, test["name"]
        for labels in {sample["labels"] for sample in samples}:
            assert f'alertname="{test["name"]}"' in labels
            for label in re.findall(r"\$labels\.(\w+)", str(ALERTS[test["name"]]["annotations"])):
                assert f'{label}="' in labels, f"{test['name']} prints {label}"


def test_page_names_the_alerts_of_each_metric():
    rows = re.findall(r"^\| `((?:attnd|process)_\w+)` \| .+ \| (.+) \|$", PAGE, re.M)
    for metric, cell in rows:
        expected = {name for name, alert in ALERTS.items() if metric in metrics_of(alert)}
        assert set(re.findall(r"`(Attnd\w+)`", cell)) == expected != set(), metric
    of_up = set(re.findall(r"^\| `(Attnd\w+)` \|", PAGE, re.M))
    assert of_up == {name for name, alert in ALERTS.items() if not metrics_of(alert)}
