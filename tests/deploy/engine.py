# SPDX-License-Identifier: Apache-2.0
"""What the parts of tests/deploy share: the engine that runs, the images, and a service on them."""

import contextlib
import json
import os
import random
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BASE_IMAGE = "debian:bookworm-slim"

# Loopback requests must not go through a proxy that is configured for the machine.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class NoEngine(Exception):
    """No container can run here; the text is the reason."""


def output_of(*command, check=True, timeout=60):
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip()


def succeeds(*command):
    try:
        return subprocess.run(command, capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def find_docker():
    """Returns the client to call. Debian installs it in /usr/bin; a newer one without compose and
    buildx may come first on PATH."""
    for docker in ("/usr/bin/docker", shutil.which("docker")):
        if docker and succeeds(docker, "info"):
            break
    else:
        raise NoEngine("`docker info` fails")
    # An engine can reply and still be unable to run a container, e.g. inside a sandbox.
    try:
        output_of(docker, "run", "--rm", BASE_IMAGE, "true", timeout=300)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        raise NoEngine(f"the engine cannot run a container: {error}") from error
    return docker


def free_port():
    """Returns a port that the kernel does not give to clients meanwhile: images may be built first."""
    while True:
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", random.randrange(20000, 32000)))
            return probe.getsockname()[1]


def choose_subnet():
    """Returns one that is not the default, which a project that runs already may have."""
    return f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250}.0/24"


class Images:
    """`with Images(docker) as images:` builds what deploy/ serves with, and removes it at the end.
    Compose builds its own, of the same layers."""

    def __init__(self, docker):
        self.docker, self.names = docker, []

    def __enter__(self):
        deploy = os.path.join(ROOT, "deploy")
        try:
            self.attnd = self.build("one", "-f", os.path.join(deploy, "Dockerfile"), ROOT)
            self.proxy = self.build("proxy", "-f", os.path.join(deploy, "haproxy.Dockerfile"), ROOT)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        output_of(self.docker, "rmi", "--force", *self.names, check=False)

    def build(self, tag, *arguments, **options):
        """Returns the name of the image that `docker build` makes with these arguments."""
        name = f"attnd-test-{os.getpid()}:{tag}"
        self.names.append(name)
        done = subprocess.run([self.docker, "build", "-t", name, *arguments], stderr=subprocess.STDOUT, **options)
        if done.returncode != 0:
            raise RuntimeError(f"docker build {' '.join(arguments)} failed with {done.returncode}")
        return name

    def derive(self, tag, instruction):
        """Returns the name of an image that is attnd's with one more instruction."""
        return self.build(tag, "-", input=f"FROM {self.attnd}\n{instruction}\n", text=True)


class Service:
    """Replicas behind a proxy at `url`. What runs them says which `label(service=None)` its containers
    and networks have."""

    def __init__(self, docker):
        self.docker = docker
        self.project = f"attnd-test-{os.getpid()}"
        self.subnet = choose_subnet()
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.headers = {}  # of every request

    def run_docker(self, *arguments, check=True):
        return output_of(self.docker, *arguments, check=check)

    def containers(self, service=None, all_states=False):
        labels = [self.label(), self.label(service)] if service else [self.label()]
        filters = [word for label in labels for word in ("--filter", f"label={label}")]
        states = ["-a"] if all_states else []
        return self.run_docker("ps", "-q", "--no-trunc", *states, *filters).split()

    def networks(self):
        return self.run_docker("network", "ls", "-q", "--filter", f"label={self.label()}").split()

    def inspect(self, container):
        return json.loads(self.run_docker("inspect", container))[0]

    def get(self, path):
        return self.request(urllib.request.Request(self.url + path))

    def post(self, path, body):
        return self.request(urllib.request.Request(
            self.url + path, data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"}))

    def put(self, path, body):
        return self.request(urllib.request.Request(self.url + path, data=body, method="PUT"))

    def request(self, request):
        """Returns (status, headers, parsed body), with status 0 where nothing replies. Every request
        opens a new connection, so the proxy chooses a replica each time."""
        for name, value in self.headers.items():
            request.add_header(name, value)
        try:
            with DIRECT.open(request, timeout=20) as reply:
                return reply.status, reply.headers, json.load(reply)
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read().decode(errors="replace")
        except OSError as error:
            return 0, {}, str(error)

    def served_by(self, requests=40):
        """Returns the proxy's names of the replicas that reply."""
        return {self.get("/v1/models")[1].get("X-Served-By") for _ in range(requests)} - {None}


def wait_for(condition, seconds):
    """Polls until condition() holds. Returns False when it does not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True
