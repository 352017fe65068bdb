# SPDX-License-Identifier: Apache-2.0
"""Runs deploy/stack.yml on a swarm whose only machine is the engine that runs."""

import os
import shutil
import subprocess
import sys
import tempfile

from engine import BASE_IMAGE, ROOT, NoEngine, Service, wait_for

STACK_FILE = os.path.join(ROOT, "deploy", "stack.yml")
MODEL = os.path.join(ROOT, "src", "weights", "demo", "journey.safetensors")
KEY = "0123456789abcdef"
BRIDGE = "docker_gwbridge"  # a swarm makes it and leaves it behind


class Swarm(Service):
    """`with Swarm(docker, images) as swarm:` makes the swarm, deploys the stack, and always removes
    both."""

    def __init__(self, docker, images):
        super().__init__(docker)
        self.images = images
        self.headers = {"Authorization": f"Bearer {KEY}"}
        self.secret = f"{self.project}-keys"

    def __enter__(self):
        self.refuse_engine_of_others()
        self.had_bridge = BRIDGE in self.run_docker("network", "ls", "--format", "{{.Name}}").split()
        self.models = tempfile.mkdtemp()
        try:
            self.run_docker("swarm", "init", "--advertise-addr", "127.0.0.1", "--listen-addr", "127.0.0.1:2377")
            self.try_overlay()
            subprocess.run([self.docker, "secret", "create", self.secret, "-"], input=f"test:{KEY}\n",
                           text=True, check=True, stdout=subprocess.DEVNULL)
            os.chmod(self.models, 0o755)
            shutil.copy(MODEL, os.path.join(self.models, "mine.safetensors"))
            self.deploy(self.images.attnd)
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            self.print_logs()
        self.remove(check=False)
        self.run_docker("swarm", "leave", "--force", check=False)
        if not self.had_bridge:
            self.run_docker("network", "rm", BRIDGE, check=False)
        shutil.rmtree(self.models)

    def refuse_engine_of_others(self):
        """When an engine leaves its swarm, all containers lose the networks that are attachable, as
        those of docker-compose 1.29 are."""
        if self.run_docker("info", "--format", "{{.Swarm.LocalNodeState}}") != "inactive":
            raise NoEngine("it is in a swarm already")
        networks = self.run_docker("network", "ls", "-q").split()
        attachable = self.run_docker("network", "inspect", "--format",
                                     "{{if .Attachable}}{{.Name}}{{end}}", *networks).split()
        if attachable:
            raise NoEngine(f"its containers would lose {', '.join(attachable)} when it leaves the swarm")

    def try_overlay(self):
        """Some kernels have no VXLAN, of which networks of several machines are made."""
        network = f"{self.project}-try"
        try:
            self.run_docker("network", "create", "--driver", "overlay", "--attachable", network)
            self.run_docker("run", "--rm", "--network", network, BASE_IMAGE, "true")
        except RuntimeError as error:
            raise NoEngine(f"it cannot make an overlay network: {error}") from error
        finally:
            self.run_docker("network", "rm", network, check=False)

    def deploy(self, image):
        """Makes the services what the file says, with this image of attnd."""
        command = [self.docker, "stack", "deploy", "--resolve-image", "never", "-c", STACK_FILE, self.project]
        print("$", *command, flush=True)
        environment = dict(os.environ, ATTND_IMAGE=image, ATTND_PROXY_IMAGE=self.images.proxy,
                           ATTND_PORT=str(self.port), ATTND_SUBNET=self.subnet,
                           ATTND_MODELS=self.models, ATTND_KEYS=self.secret)
        done = subprocess.run(command, env=environment, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            raise RuntimeError(f"docker stack deploy failed with {done.returncode}")

    def remove(self, check=True):
        """`docker stack rm` fails while a task that was just updated holds the network, so it is repeated."""
        def is_gone():
            self.run_docker("stack", "rm", self.project, check=False)
            return not self.containers(all_states=True) and not self.networks()

        gone = wait_for(is_gone, 60)
        if check and not gone:
            raise RuntimeError("docker stack rm left containers or networks")

    def logs(self, service):
        """Returns what its tasks wrote, also those that have ended."""
        command = [self.docker, "service", "logs", "--tail", "40", f"{self.project}_{service}"]
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout

    def print_logs(self):
        for service in ("attnd", "proxy"):
            print(self.run_docker("service", "ps", "--no-trunc", f"{self.project}_{service}", check=False))
            print(self.logs(service), flush=True)

    def label(self, service=None):
        if service:
            return f"com.docker.swarm.service.name={self.project}_{service}"
        return f"com.docker.stack.namespace={self.project}"

    def update_state(self):
        """Returns how far the last update of attnd is, as `docker service inspect` says, or ""."""
        return self.run_docker("service", "inspect", f"{self.project}_attnd", "--format",
                               "{{if .UpdateStatus}}{{.UpdateStatus.State}}{{end}}")
