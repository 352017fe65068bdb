# SPDX-License-Identifier: Apache-2.0
"""Runs pods by `podman kube play`, and probes them as the kubelet would."""

import ctypes
import http.client
import json
import os
import shutil
import subprocess
import tempfile
import time

import yaml

from engine import NoEngine, output_of

HERE = os.path.dirname(os.path.abspath(__file__))
CLONE_NEWNET = 0x40000000


def call_libc(name, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        raise NoEngine(f"{name}: {os.strerror(ctypes.get_errno())}")


class Podman:
    """`with Podman() as podman:` has storage of its own, and this thread meanwhile a network of its own. So
    ports and rules of the machine's packet filter stay as they are."""

    def __init__(self):
        if os.geteuid() != 0:
            raise NoEngine("podman needs root here")
        for program in ("podman", "runc", "netavark", "catatonit"):
            if not (shutil.which(program) or os.path.exists(f"/usr/lib/podman/{program}")):
                raise NoEngine(f"{program} is not installed")
        self.folder = tempfile.mkdtemp(prefix="attnd-podman.")
        # crun does not run where versions 1 and 2 of cgroups are mixed; runc does.
        self.command = ["podman", "--cgroup-manager=cgroupfs", "--events-backend=none",
                        f"--runtime={HERE}/runc-without-limits.py",
                        *(f"--{option}={self.folder}/{option}"
                          for option in ("root", "runroot", "tmpdir", "network-config-dir"))]

    def __enter__(self):
        self.network_of_machine = os.open("/proc/self/ns/net", os.O_RDONLY)
        try:
            call_libc("unshare", CLONE_NEWNET)
            output_of("ip", "link", "set", "lo", "up")
            self.run("network", "create", "attnd")
        except (NoEngine, RuntimeError, subprocess.TimeoutExpired) as error:
            self.__exit__()
            raise NoEngine(f"podman makes no network: {error}") from error
        return self

    def __exit__(self, *_):
        try:
            self.remove_pods()
        finally:
            call_libc("setns", self.network_of_machine, CLONE_NEWNET)
            os.close(self.network_of_machine)
            subprocess.run(["umount", f"{self.folder}/root/overlay"], capture_output=True)
            shutil.rmtree(self.folder)

    def run(self, *arguments, check=True, timeout=120):
        return output_of(*self.command, *arguments, check=check, timeout=timeout)

    def inspect(self, container):
        return json.loads(self.run("container", "inspect", container))[0]

    def logs(self, container):
        """Returns the lines of both streams."""
        done = subprocess.run([*self.command, "logs", container], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=60)
        return done.stdout.splitlines()

    def load(self, docker, image, name):
        """Takes an image of the Docker engine, without a registry, under a name of its own."""
        path = os.path.join(self.folder, "image.tar")
        output_of(docker, "save", "--output", path, image, timeout=300)
        loaded = self.run("load", "--quiet", "--input", path, timeout=300).split()[-1]
        os.remove(path)
        self.run("tag", loaded, name)
        try:
            self.run("run", "--rm", "--network=none", name, "--version")
        except RuntimeError as error:
            raise NoEngine(f"podman runs no container: {error}") from error

    def create_secret(self, name, data):
        """podman 4.3 keeps the whole document, and does not decode base64."""
        path = os.path.join(self.folder, "secret.yaml")
        with open(path, "w", encoding="utf-8") as file:
            yaml.safe_dump({"data": data}, file)
        self.run("secret", "create", name, path)

    def play(self, documents):
        path = os.path.join(self.folder, "play.yaml")
        with open(path, "w", encoding="utf-8") as file:
            yaml.safe_dump_all(documents, file)
        self.run("kube", "play", "--network=attnd", path)

    def remove_pods(self):
        """A container that podman starts anew right now cannot be removed yet."""
        for _ in range(20):
            self.run("pod", "rm", "--all", "--force", "--time", "0", check=False)
            if not self.run("pod", "ps", "--quiet"):
                return
            time.sleep(0.5)
        raise RuntimeError("podman does not remove its pods")


class Probe:
    """A probe of a container's manifest, asked as the kubelet asks it."""

    def __init__(self, name, container, address):
        probe = container[name]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        self.address, self.port = address, ports[probe["httpGet"]["port"]]
        self.path = probe["httpGet"]["path"]
        self.period, self.timeout = probe["periodSeconds"], probe["timeoutSeconds"]
        self.threshold = probe["failureThreshold"]

    def ask(self):
        """Returns whether it succeeds."""
        connection = http.client.HTTPConnection(self.address, self.port, timeout=self.timeout)
        try:
            connection.request("GET", self.path)
            return 200 <= connection.getresponse().status < 400
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def wait_for_success(self):
        """Returns the seconds until it succeeds. Fails where the kubelet would give up."""
        return self.wait_for(True, 1, self.threshold)

    def wait_for_failure(self):
        """Returns the seconds until it has failed so often in a row that the kubelet acts. It must not succeed again."""
        return self.wait_for(False, self.threshold, self.threshold)

    def wait_for(self, expected, in_a_row, most):
        began, seen = time.monotonic(), 0
        for number in range(most):
            time.sleep(max(0, began + number * self.period - time.monotonic()))
            seen = seen + 1 if self.ask() == expected else 0
            if seen == in_a_row:
                return time.monotonic() - began
        raise AssertionError(f"{self.path}: not {in_a_row} times {expected} in a row of {most}")
