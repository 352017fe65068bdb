# SPDX-License-Identifier: Apache-2.0
"""Tests of the containers of deploy/kubernetes/proxy, by the Docker engine. Its DNS has the name that the
cluster's would have, and the containers have the variables of the manifests."""

import os
import tempfile

from clients import Golden
from engine import Service, wait_for
from manifests import KEY, find, pod_of, variables_of


class Proxy(Service):
    """`with Proxy(rendered, images) as proxy:` runs one attnd behind HAProxy."""

    def __init__(self, rendered, images):
        super().__init__(rendered.docker)
        self.documents, self.images = rendered.documents["proxy"], images
        self.headers = {"Authorization": f"Bearer {KEY}"}
        self.name_of_pods = self.variables("attnd-proxy")["ATTND_NAME"].replace("$(NAMESPACE)", "default")

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        os.chmod(self.folder.name, 0o755)
        with open(os.path.join(self.folder.name, "keys"), "w", encoding="ascii") as file:
            file.write(f"test:{KEY}\n")
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self):
        self.run_docker("network", "create", "--subnet", self.subnet, self.project)
        self.run("attnd", self.images.attnd, self.variables("attnd"), f"--network-alias={self.name_of_pods}",
                 f"--volume={self.folder.name}:/secrets:ro", f"--volume={self.folder.name}:/models:ro")
        self.run("proxy", self.images.proxy, {"ATTND_NAME": self.name_of_pods},
                 f"--publish=127.0.0.1:{self.port}:8080")

    def __exit__(self, *_):
        for name in ("attnd", "proxy"):
            self.run_docker("rm", "--force", f"{self.project}-{name}", check=False)
        self.run_docker("network", "rm", self.project, check=False)
        self.folder.cleanup()

    def container(self, deployment):
        container, = pod_of(find(self.documents, "Deployment", deployment))["containers"]
        return container

    def variables(self, deployment):
        return variables_of(self.container(deployment))

    def run(self, name, image, variables, *options):
        variables = [f"--env={key}={value}" for key, value in variables.items()]
        self.run_docker("run", "--detach", f"--name={self.project}-{name}", f"--network={self.project}", "--read-only",
                        "--cap-drop=ALL", "--security-opt=no-new-privileges", *variables, *options, image)

    def print_logs(self):
        for name in ("attnd", "proxy"):
            print(self.run_docker("logs", f"{self.project}-{name}", check=False))


def test_proxy_finds_pods_by_the_headless_service(proxy):
    service = find(proxy.documents, "Service", "attnd-pods")
    assert service["spec"]["clusterIP"] == "None"
    assert proxy.name_of_pods == "attnd-pods.default.svc.cluster.local"
    path = proxy.container("attnd-proxy")["readinessProbe"]["httpGet"]["path"]
    assert wait_for(lambda: proxy.get(path)[0] == 200, 30), proxy.get(path)


def test_golden_case_passes_through_the_proxy(proxy):
    Golden().check(proxy)
    assert proxy.served_by(1) == {"attnd1"}
