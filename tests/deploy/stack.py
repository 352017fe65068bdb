# SPDX-License-Identifier: Apache-2.0
"""One compose project of deploy/docker-compose.yml on the engine that answers."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
COMPOSE_FILE = os.path.join(ROOT, "deploy", "docker-compose.yml")
BASE_IMAGE = "debian:bookworm-slim"

# Loopback requests never go through a proxy that is set for the machine.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class NoEngine(Exception):
    """No container can run here; the text says why."""


def output_of(*command, check=True, timeout=60):
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip()


def answers(*command):
    try:
        return subprocess.run(command, capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def find_docker():
    """The client to call. Distributions install to /usr/bin; another, newer one may come first
    on PATH and lack compose and buildx."""
    for docker in ("/usr/bin/docker", shutil.which("docker")):
        if docker and answers(docker, "info"):
            return docker
    raise NoEngine("`docker info` does not answer")


def find_compose(docker):
    for compose in ([docker, "compose"], ["docker-compose"]):
        if answers(*compose, "version"):
            return compose
    raise NoEngine("neither `docker compose` nor `docker-compose` is installed")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Stack:
    """`with Stack() as stack:` runs the project and removes it on every way out."""

    def __init__(self):
        self.docker = find_docker()
        self.compose = find_compose(self.docker)
        # An engine can answer and still be unable to run anything, inside a sandbox for one.
        try:
            output_of(self.docker, "run", "--rm", BASE_IMAGE, "true", timeout=300)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            raise NoEngine(f"the engine cannot run a container: {error}") from error
        self.project = f"attnd-test-{os.getpid()}"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.removed = False

    def __enter__(self):
        # A kill from outside must still remove the containers: let it unwind like an error.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        try:
            self.run_compose("up", "-d", "--build")
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            self.run_compose("logs", "--tail", "40", check=False)
        if not self.removed:
            self.remove(check=False)

    def remove(self, check=True):
        self.run_compose("down", "--volumes", "--rmi", "local", "--remove-orphans", check=check)
        self.removed = True

    def run_compose(self, *arguments, check=True):
        command = [*self.compose, "-p", self.project, "-f", COMPOSE_FILE, *arguments]
        print("$", *command, flush=True)
        environment = dict(os.environ, ATTND_PORT=str(self.port), PYTHONUNBUFFERED="1")
        # Compose's own chatter goes to one place and in order.
        done = subprocess.run(command, env=environment, stderr=subprocess.STDOUT)
        if check and done.returncode != 0:
            raise RuntimeError(f"compose {arguments[0]} failed with {done.returncode}")

    def run_docker(self, *arguments, check=True):
        return output_of(self.docker, *arguments, check=check)

    def containers(self, service=None, all_states=False):
        filters = ["--filter", f"label=com.docker.compose.project={self.project}"]
        if service:
            filters += ["--filter", f"label=com.docker.compose.service={service}"]
        states = ["-a"] if all_states else []
        return self.run_docker("ps", "-q", "--no-trunc", *states, *filters).split()

    def inspect(self, container):
        return json.loads(self.run_docker("inspect", container))[0]

    def networks(self):
        return self.run_docker("network", "ls", "-q", "--filter",
                               f"label=com.docker.compose.project={self.project}").split()

    def get(self, path):
        return self.request(urllib.request.Request(self.url + path))

    def post(self, path, body):
        return self.request(urllib.request.Request(
            self.url + path, data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"}))

    def request(self, request):
        """(status, headers, parsed body); status 0 where nothing answers. Every request opens a
        connection of its own, so the proxy chooses a replica each time."""
        try:
            with DIRECT.open(request, timeout=20) as reply:
                return reply.status, reply.headers, json.load(reply)
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read().decode(errors="replace")
        except OSError as error:
            return 0, {}, str(error)

    def served_by(self, requests=40):
        """The replicas that answer, by the proxy's name for each."""
        return {self.get("/v1/models")[1].get("X-Served-By") for _ in range(requests)} - {None}


def wait_for(condition, seconds):
    """Polls until condition() holds; False when it never does."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True
