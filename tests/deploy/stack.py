# SPDX-License-Identifier: Apache-2.0
"""Runs the compose files of deploy/ as projects on the engine that runs."""

import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
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
            return docker
    raise NoEngine("`docker info` fails")


def find_compose(docker):
    for compose in ([docker, "compose"], ["docker-compose"]):
        if succeeds(*compose, "version"):
            return compose
    raise NoEngine("neither `docker compose` nor `docker-compose` is installed")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Stack:
    """`with Stack() as stack:` runs the project and always removes it at the end."""

    def __init__(self):
        self.docker = find_docker()
        self.compose = find_compose(self.docker)
        # An engine can reply and still be unable to run a container, e.g. inside a sandbox.
        try:
            output_of(self.docker, "run", "--rm", BASE_IMAGE, "true", timeout=300)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            raise NoEngine(f"the engine cannot run a container: {error}") from error
        self.project = f"attnd-test-{os.getpid()}"
        # Not the default range, which a project that runs already may have.
        self.subnet = f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250}.0/24"
        # Files of deploy/ that are one project, as `-f` names them.
        self.files = ["docker-compose.yml"]
        self.prometheus_port = free_port()
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.removed = False

    def __enter__(self):
        # SIGTERM must still remove the containers, so it unwinds like an error.
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
        files = [word for name in self.files for word in ("-f", os.path.join(ROOT, "deploy", name))]
        command = [*self.compose, "-p", self.project, *files, *arguments]
        print("$", *command, flush=True)
        environment = dict(os.environ, ATTND_PORT=str(self.port), ATTND_SUBNET=self.subnet,
                           ATTND_PROMETHEUS_PORT=str(self.prometheus_port),
                           ATTND_CAPTURE_MEMORY="64MiB", PYTHONUNBUFFERED="1")
        # Compose prints to both streams; one stream keeps its lines in order.
        done = subprocess.run(command, env=environment, stderr=subprocess.STDOUT)
        if check and done.returncode != 0:
            raise RuntimeError(f"compose {arguments[0]} failed with {done.returncode}")

    def beside(self, file, secrets):
        return OneServer(self, file, secrets)

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

    def ask_prometheus(self, path):
        """Returns the data of a reply of its HTTP API, or None where nothing replies yet."""
        url = f"http://127.0.0.1:{self.prometheus_port}/api/v1/{path}"
        status, _, reply = self.request(urllib.request.Request(url))
        return reply["data"] if status == 200 else None

    def post(self, path, body):
        return self.request(urllib.request.Request(
            self.url + path, data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"}))

    def put(self, path, body):
        return self.request(urllib.request.Request(self.url + path, data=body, method="PUT"))

    def request(self, request):
        """Returns (status, headers, parsed body), with status 0 where nothing replies. Every request
        opens a new connection, so the proxy chooses a replica each time."""
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


class OneServer:
    """`with OneServer(stack, FILE, SECRETS) as server:` removes what up() starts: a single attnd with
    TLS and keys, by a compose file of deploy/."""

    def __init__(self, stack, file, secrets):
        self.project, self.port = f"{stack.project}-tls", free_port()
        self.command = [*stack.compose, "-p", self.project, "-f", os.path.join(ROOT, "deploy", file)]
        self.environment = dict(os.environ, ATTND_SECRETS=secrets, ATTND_PORT=str(self.port),
                                ATTND_ADMIN_PORT=str(free_port()))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        subprocess.run([*self.command, "down", "--volumes", "--rmi", "local"], env=self.environment)

    def run(self, *arguments):
        subprocess.run([*self.command, *arguments], env=self.environment, check=True,
                       stderr=subprocess.STDOUT)

    def up(self):
        self.run("up", "-d", "--build")

    def certificate(self):
        return ssl.get_server_certificate(("127.0.0.1", self.port))

    def status_of(self, key):
        context = ssl.create_default_context(cadata=self.certificate())
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=20, context=context)
        connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})
        return connection.getresponse().status


def wait_for(condition, seconds):
    """Polls until condition() holds. Returns False when it does not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True
