# SPDX-License-Identifier: Apache-2.0
"""The servers: how each is started, and what all its processes cost."""

import importlib.metadata
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import requests

from formats import SAFETENSORS_FORMAT, datatype, oip_format, plain_json
from problems import Unavailable

HERE = Path(__file__).resolve().parent
START_SECONDS = 60
STOP_SECONDS = 10


class Files(NamedTuple):
    """The layer, and where to look for programs."""
    model: str  # of --model
    onnx: Path
    inputs: dict  # arrays by name
    batch: int  # how many sequences a server may compute together, if it can
    attnd: Path
    venvs: Path


class Setting(NamedTuple):
    workers: int
    threads: int  # of each worker


def find(files, name, program):
    """Returns a program of the venv `name`."""
    path = files.venvs / name / "bin" / program
    if not path.exists():
        raise Unavailable(f"{path} is missing")
    return path


def attnd_command(files, setting, ports, folder):
    return [files.attnd, "--model", files.model, "--listen", f"127.0.0.1:{ports[0]}",
            "--workers", setting.workers], {}


def fastapi_command(files, setting, ports, folder):
    return [find(files, "fastapi", "uvicorn"), "serve_fastapi:app", "--app-dir", HERE,
            "--port", ports[0], "--workers", setting.workers, "--no-access-log",
            "--log-level", "warning"], {}


def litserve_command(files, setting, ports, folder):
    python = find(files, "litserve", "litserve").with_name("python")
    return [python, HERE / "serve_litserve.py"], {}


def mlserver_command(files, setting, ports, folder):
    (folder / "settings.json").write_text(json.dumps({
        "host": "127.0.0.1", "http_port": ports[0], "grpc_port": ports[1], "metrics_port": ports[2],
        "parallel_workers": setting.workers if setting.workers > 1 else 0, "debug": False}))
    (folder / "model-settings.json").write_text(json.dumps({
        "name": "layer", "implementation": "serve_mlserver.LayerModel",
        "max_batch_size": files.batch if files.batch > 1 else 0, "max_batch_time": 0.002}))
    return [find(files, "mlserver", "mlserver"), "start", folder], {}


def describe(member, name, array):
    """Returns an input or output of Triton's configuration. The first axis is that of batches, and
    each tensor has another, which valid_lens get only on their way."""
    shape = "" if array.ndim > 1 else "reshape { shape: [] }"
    return (f'{member} [{{ name: "{name}" data_type: TYPE_{datatype(array)} '
            f'dims: {list(array.shape[1:]) or [1]} {shape} }}]\n')


def find_stub(home, version):
    """Returns the program that runs model.py, for one version of Python."""
    stub = home / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.exists():
        raise Unavailable(f"nvidia-pytriton has no program for Python {version}")
    output = subprocess.run(["ldd", stub], stdout=subprocess.PIPE, text=True, check=True).stdout
    missing = re.findall(r"(\S+) => not found", output)
    if missing:
        raise Unavailable(f"{stub.name} needs {', '.join(missing)}")
    return stub


def triton_command(files, setting, ports, folder):
    """The backend wants the stub beside it, where nvidia-pytriton would copy it."""
    packages = next(find(files, "triton", "python").parents[1].glob("lib/python3*/site-packages"))
    home, backends = packages / "pytriton/tritonserver", folder / "backends"
    stub = find_stub(home, packages.parent.name.removeprefix("python"))
    shutil.copytree(home / "backends", backends)
    shutil.copy(stub, backends / "python")
    model = folder / "models/layer"
    (model / "1").mkdir(parents=True)
    shutil.copy(HERE / "serve_triton.py", model / "1/model.py")
    (model / "config.pbtxt").write_text(
        f'backend: "python" instance_group [{{ count: {setting.workers} kind: KIND_CPU }}]\n'
        f"max_batch_size: {files.batch} {'dynamic_batching {}' if files.batch > 1 else ''}\n"
        + "".join(describe("input", *item) for item in files.inputs.items())
        + describe("output", "outputs", files.inputs["queries"]))
    return [home / "bin/tritonserver", "--model-repository", folder / "models",
            "--backend-directory", backends, "--http-address", "127.0.0.1",
            "--http-port", ports[0], "--allow-grpc=false", "--allow-metrics=false"], {
                "PYTHONPATH": f"{packages}:{HERE}",
                "LD_LIBRARY_PATH": packages / "nvidia_pytriton.libs"}


class Kind(NamedTuple):
    name: str
    command: object  # returns the arguments and more of the environment, or raises Unavailable
    formats: list


KINDS = [
    Kind("attnd", attnd_command, [plain_json("/v1/attention"), SAFETENSORS_FORMAT,
                                   oip_format("OIP binary")]),
    Kind("FastAPI", fastapi_command, [plain_json("/attention")]),
    Kind("LitServe", litserve_command, [plain_json("/attention")]),
    Kind("MLServer", mlserver_command, [oip_format("JSON")]),
    Kind("Triton", triton_command, [oip_format("JSON", columns=True),
                                    oip_format("OIP binary", columns=True)])]


def list_versions(venvs):
    """Returns the packages of each requirements file as they are installed."""
    versions = []
    for path in sorted(HERE.glob("*.txt")):
        site = [str(each) for each in (venvs / path.stem).glob("lib/python3*/site-packages")]
        wanted = re.findall(r"^([\w-]+)", path.read_text(), re.M)
        versions += [f"{each.name} {each.version}"
                     for each in importlib.metadata.distributions(path=site)
                     if each.name.lower() in wanted]
    return list(dict.fromkeys(versions))


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Server:
    """A running server: all processes of one session. Wait for it before it is used."""

    def __init__(self, kind, files, setting, folder):
        folder.mkdir()
        ports = free_ports(3)
        command, environment = kind.command(files, setting, ports, folder)
        self.name, self.formats, self.setting = kind.name, kind.formats, setting
        self.url, self.folder = f"http://127.0.0.1:{ports[0]}", folder
        environment = {"PYTHONPATH": HERE, "LAYER_FILE": files.onnx, "LAYER_PORT": ports[0],
                       "LAYER_WORKERS": setting.workers, "LAYER_THREADS": setting.threads,
                       **environment}
        with open(folder / "log", "wb") as log:
            self.process = subprocess.Popen(
                list(map(str, command)), cwd=folder, start_new_session=True, stdout=log,
                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env=os.environ | {name: str(value) for name, value in environment.items()})

    def post(self, form, inputs):
        body, headers = form.encode(inputs)
        return requests.post(self.url + form.path, body, headers=headers, timeout=60)

    def ask(self, form, inputs):
        """Returns the outputs."""
        reply = self.post(form, inputs)
        if reply.status_code != 200:
            raise RuntimeError(f"status {reply.status_code}: {reply.text[:200]}")
        return form.decode(reply)

    def wait(self, form, inputs):
        """Returns when the server has replied with status 200."""
        end, last = time.monotonic() + START_SECONDS, ""
        while time.monotonic() < end and self.process.poll() is None:
            try:
                reply = self.post(form, inputs)
                if reply.status_code == 200:
                    return
                last = f"status {reply.status_code}: {reply.text[:200]}"
            except requests.ConnectionError:
                pass
            time.sleep(0.2)
        lines = (self.folder / "log").read_text(errors="replace").strip().split("\n")
        raise RuntimeError(f"did not start: {last or lines[-1][:200]}")

    def processes(self):
        """Yields the folders in /proc of all processes of the session."""
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if os.getsid(int(path.name)) == self.process.pid:
                    yield path
            except ProcessLookupError:
                pass

    def cpu_seconds(self):
        """Returns what all processes have used, with those that they have waited for."""
        ticks = 0
        for path in self.processes():
            fields = (path / "stat").read_text().rsplit(")", 1)[1].split()
            ticks += sum(map(int, fields[11:15]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def memory(self):
        """Returns the bytes of all processes: pages that they share count once, and each time."""
        pss = rss = 0
        for path in self.processes():
            text = (path / "smaps_rollup").read_text()
            pss += int(re.search(r"^Pss: +(\d+)", text, re.M)[1]) * 1024
            rss += int(re.search(r"^Rss: +(\d+)", text, re.M)[1]) * 1024
        return pss, rss

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        for path in self.processes():
            try:
                os.kill(int(path.name), signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()
