# SPDX-License-Identifier: Apache-2.0
"""A closed loop of requests by `attnd-bench http`."""

import json
import subprocess

WARM_SECONDS = 1
TIMEOUT_MS = 60_000


def run_loop(program, url, requests, connections, seconds):
    """Returns the report of a closed loop, in which every request was served."""
    command = [program, "http", url, "--requests", requests, "--closed", connections, "--seconds",
               seconds, "--warmup", 0, "--timeout-ms", TIMEOUT_MS, "--json"]
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if result.returncode != 0:
        raise RuntimeError(result.stderr.strip())
    report = json.loads(result.stdout)
    if report["statuses"].keys() != {"200"} or report["requests"] != report["statuses"]["200"]:
        raise RuntimeError(f"not all requests were served: {result.stdout.strip()}")
    return report


def put_load(program, server, form, inputs, connections, seconds):
    """Returns figures of one turn: requests a second, and milliseconds. CPU time is divided by all
    requests, with those that end after the turn. A percentile of too few is None."""
    body, headers = form.encode(inputs)
    (server.folder / "body").write_bytes(body)
    requests = server.folder / "requests"
    requests.write_text(json.dumps({
        "path": form.path, "body_file": "body", "content_type": headers["Content-Type"],
        "headers": {name: text for name, text in headers.items() if name != "Content-Type"}}))
    run_loop(program, server.url, requests, connections, WARM_SECONDS)
    before = server.cpu_seconds()
    report = run_loop(program, server.url, requests, connections, seconds)
    used = server.cpu_seconds() - before
    return {"rate": report["served_per_s"], "p50": report["latency_ms"]["p50"],
            "p99": report["latency_ms"]["p99"], "cpu": used / report["requests"] * 1e3}
