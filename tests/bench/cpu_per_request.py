# SPDX-License-Identifier: Apache-2.0
"""cpu_per_request.py ATTND: CPU time of the server for one self-attention of (1,128,768), 12 heads,
in JSON and in safetensors, compared with `attnd-bench` for the same layer in the same run.

The formats take turns on one connection, with one worker. Time is utime + stime of the process."""
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import requests

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/http"))
from library import bench_command  # noqa: E402
from safetensors_file import make_safetensors, write_safetensors  # noqa: E402

ROUNDS, EACH, WARM = 5, 40, 20
WIDTH, HEADS, TOKENS = 768, 12, 128


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def bench(attnd):
    """Returns the median time of the layer alone in ms."""
    report = json.loads(subprocess.run(
        [*bench_command(attnd), "--shape", f"1,{TOKENS},{WIDTH},{HEADS}", "--workers", "1",
         "--seconds", "1", "--json"], check=True, capture_output=True, text=True).stdout)
    return next(r["median_ms"] for r in report["results"] if (r["name"], r["precision"]) == ("native", "f32"))


def main():
    attnd = sys.argv[1]
    alone = [bench(attnd)]
    generator = np.random.default_rng(3)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "layer.safetensors"
        write_safetensors(path, {f"W_{name}.weight": generator.standard_normal(
            (WIDTH, WIDTH)).astype("f4") / WIDTH**.5 for name in "qkvo"})
        x = generator.standard_normal((1, TOKENS, WIDTH)).astype("f4")
        rows = ",".join(f"[{','.join(map(str, row))}]" for row in x[0])
        formats = {"JSON, as Python writes doubles": (
                     "application/json", json.dumps({"queries": x.tolist()}).encode()),
                 "JSON, shortest float32": (
                     "application/json", f'{{"queries":[[{rows}]]}}'.encode()),
                 "safetensors": ("application/vnd.safetensors", make_safetensors({"queries": x}))}
        server = subprocess.Popen(
            [attnd, "--model", f"m={path},num_heads={HEADS}", "--workers", "1",
             "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            url = re.search(r"http://\S+", server.stdout.readline())[0] + "/v1/attention"
            session = requests.Session()
            spent = {name: [] for name in formats}
            for turn in range(ROUNDS + 1):
                for name, (content_type, body) in formats.items():
                    before = cpu_seconds(server.pid)
                    for _ in range(EACH if turn else WARM):
                        reply = session.post(url, data=body, headers={"Content-Type": content_type})
                        assert reply.status_code == 200, reply.text
                    if turn:
                        spent[name].append((cpu_seconds(server.pid) - before) / EACH)
        finally:
            server.terminate()
            server.wait()
        fastest = min(alone + [bench(attnd)])
        print(f"attnd-bench, the lower of two medians: {fastest:.2f} ms")
        for name, seconds in spent.items():
            mean = np.mean(seconds) * 1e3
            print(f"{name}, {len(formats[name][1])} bytes: {mean:.2f} ms, {mean / fastest:.2f}x "
                  f"(rounds {', '.join(f'{s * 1e3:.2f}' for s in seconds)})")


main()
