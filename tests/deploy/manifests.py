# SPDX-License-Identifier: Apache-2.0
"""Reads what is in deploy/kubernetes, and lets kubectl render its overlays."""

import os
import re
import shutil
import subprocess
import tempfile

import yaml

from engine import ROOT, output_of

FOLDER = os.path.join(ROOT, "deploy", "kubernetes")
PAGE = os.path.join(ROOT, "docs", "kubernetes.md")
KEY = "0123456789abcdef"  # of the tests
OVERLAYS = ("base", "one-node", "proxy", "tls", "mine")


def read_text(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def read_page():
    return read_text(PAGE)


def blocks_of_page(language="yaml"):
    """Returns the page's blocks of code in this language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", read_page(), re.M | re.S)


def read_documents(text):
    return [document for document in yaml.safe_load_all(text) if document]


def find(documents, kind, name="attnd"):
    document, = [d for d in documents if (d["kind"], d["metadata"]["name"]) == (kind, name)]
    return document


def pod_of(deployment):
    return deployment["spec"]["template"]["spec"]


def variables_of(container):
    return {entry["name"]: entry.get("value") for entry in container["env"]}


# Debian 12's kubectl has a kustomize from before `resources` could be folders.
RENDER = """
apt-get update -qq >&2 && apt-get install -qq -y --no-install-recommends kubernetes-client >&2
exec >/out/log 2>&1
kubectl version --client
for overlay; do
    kubectl kustomize "/in/$overlay" >"/out/$overlay.yaml" 2>"/out/$overlay.stderr" || cat "/out/$overlay.stderr"
done
"""


class Rendered:
    """`with Rendered(docker) as rendered:` has what kubectl of debian:trixie-slim makes of each overlay, and of the
    page's own one, "mine"."""

    def __init__(self, docker):
        self.docker, self.folder = docker, tempfile.mkdtemp(prefix="attnd-rendered.")
        inside, outside = os.path.join(self.folder, "in"), os.path.join(self.folder, "out")
        os.mkdir(outside)
        shutil.copytree(FOLDER, inside)
        os.mkdir(os.path.join(inside, "mine"))
        kustomization, = [b for b in blocks_of_page() if "kind: Kustomization" in b]
        for name, text in (("kustomization.yaml", kustomization), ("keys", f"test:{KEY}\n")):
            with open(os.path.join(inside, "mine", name), "w", encoding="utf-8") as file:
                file.write(text)
        self.name = f"attnd-test-{os.getpid()}-kubectl"
        self.process = subprocess.Popen(
            [self.docker, "run", "--rm", f"--name={self.name}", *os.environ.get("CONTAINER_OPTIONS", "").split(),
             "-v", f"{inside}:/in:ro", "-v", f"{outside}:/out", "debian:trixie-slim",
             "sh", "-ec", RENDER, "sh", *OVERLAYS], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        output_of(self.docker, "rm", "--force", self.name, check=False)
        self.process.wait()
        shutil.rmtree(self.folder)

    def wait(self):
        """Waits for kubectl, and reads `documents` and `warnings` of each overlay."""
        _, errors = self.process.communicate(timeout=300)
        log = os.path.join(self.folder, "out", "log")
        assert os.path.exists(log), f"no kubectl: {errors}"
        print("    ", *read_text(log).splitlines()[:1])
        assert self.process.returncode == 0, read_text(log)
        self.documents, self.warnings = {}, {}
        for overlay in OVERLAYS:
            path = os.path.join(self.folder, "out", overlay)
            self.documents[overlay] = read_documents(read_text(f"{path}.yaml"))
            self.warnings[overlay] = read_text(f"{path}.stderr")
            assert self.documents[overlay], f"{overlay}: {self.warnings[overlay]}"

    def print_logs(self):
        print(*filter(None, self.warnings.values()))
