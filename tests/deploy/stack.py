# SPDX-License-Identifier: Apache-2.0
"""Runs the compose files of deploy/ as projects on the engine that runs."""

import http.client
import os
import ssl
import subprocess
import sys
import urllib.request

from engine import ROOT, NoEngine, Service, free_port, succeeds


def find_compose(docker):
    for compose in ([docker, "compose"], ["docker-compose"]):
        if succeeds(*compose, "version"):
            return compose
    raise NoEngine("neither `docker compose` nor `docker-compose` is installed")


class Stack(Service):
    """`with Stack(docker) as stack:` runs the project and always removes it at the end."""

    def __init__(self, docker):
        super().__init__(docker)
        self.compose = find_compose(docker)
        # Files of deploy/ that are one project, as `-f` names them.
        self.files = ["docker-compose.yml"]
        self.prometheus_port = free_port()
        self.removed = False

    def __enter__(self):
        try:
            self.run_compose("up", "-d", "--build")
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            self.print_logs()
        if not self.removed:
            self.remove(check=False)

    def print_logs(self):
        self.run_compose("logs", "--tail", "40", check=False)

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

    def label(self, service=None):
        if service:
            return f"com.docker.compose.service={service}"
        return f"com.docker.compose.project={self.project}"

    def ask_prometheus(self, path):
        """Returns the data of a reply of its HTTP API, or None where nothing replies yet."""
        url = f"http://127.0.0.1:{self.prometheus_port}/api/v1/{path}"
        status, _, reply = self.request(urllib.request.Request(url))
        return reply["data"] if status == 200 else None


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
