# SPDX-License-Identifier: Apache-2.0
"""Tests of the Deployment as a pod of podman, which ignores start-up and readiness probes. So the tests ask
them as the kubelet would, with the paths, ports, periods and thresholds of the manifest."""

import copy
import http.client
import json
import os
import shutil
import signal
import ssl
import tempfile
import threading
import time

from clients import Golden
from deploy_test import make_secrets
from engine import DIRECT, ROOT, wait_for
from manifests import KEY, find, pod_of, read_text, variables_of
from podman import Probe

DEMO = os.path.join(ROOT, "src", "weights", "demo", "journey.safetensors")


class Pod:
    """The pod that the tests share, and what they make others of."""

    def __init__(self, podman, rendered, image):
        self.podman, self.documents = podman, rendered.documents
        podman.load(rendered.docker, image, "localhost/attnd:latest")
        podman.create_secret("attnd", {"keys": f"test:{KEY}"})
        self.specification = pod_of(find(rendered.documents["base"], "Deployment"))
        self.container, = self.specification["containers"]
        self.name = f"attnd-pod-0-{self.container['name']}"
        self.address = None

    def deployment(self, overlay):
        """Returns a copy of the overlay's Deployment."""
        return copy.deepcopy(find(self.documents[overlay], "Deployment"))

    def play_one_node(self):
        folder = os.path.join(self.podman.folder, "models")
        os.makedirs(folder)
        os.mkdir(os.path.join(folder, "lost+found"), mode=0o700)  # of a new file system
        os.chmod(shutil.copy(DEMO, os.path.join(folder, "mine.safetensors")), 0o644)
        deployment = self.deployment("one-node")
        volume, = [v for v in pod_of(deployment)["volumes"] if v["name"] == "models"]
        volume["hostPath"]["path"] = folder
        self.podman.play([deployment])
        self.find_address()

    def folder_of_claim(self):
        return self.podman.run("volume", "inspect", "--format", "{{.Mountpoint}}", "attnd-models")

    def find_address(self):
        infra = json.loads(self.podman.run("pod", "inspect", "attnd-pod-0"))["InfraContainerID"]
        network, = self.podman.inspect(infra)["NetworkSettings"]["Networks"].values()
        self.address = network["IPAddress"]

    def print_logs(self):
        print(*self.podman.logs(self.name), sep="\n")

    def probe(self, name):
        return Probe(name, self.container, self.address)

    def state(self):
        return self.podman.inspect(self.name)["State"]

    def events(self, message):
        """Returns what the pod's attnd has logged under this message."""
        lines = [json.loads(line) for line in self.podman.logs(self.name)]
        return [line for line in lines if line["message"] == message]

    def ask(self, method, path, body=None, key=KEY, port=8080):
        connection = http.client.HTTPConnection(self.address, port, timeout=20)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            connection.request(method, path, body, {**headers, "Content-Type": "application/json"})
            reply = connection.getresponse()
            return reply.status, reply.read().decode()
        finally:
            connection.close()

    def post(self, path, body):
        """As Stack.post()."""
        status, text = self.ask("POST", path, json.dumps(body))
        return status, {}, json.loads(text)


def test_pod_is_ready_in_the_time_that_probes_allow(pod):
    pod.play_one_node()
    started = pod.probe("startupProbe").wait_for_success()
    ready = pod.probe("readinessProbe").wait_for_success()
    print(f"     started after {started:.1f} s, ready {ready:.1f} s later")


def test_pod_serves_its_models_to_who_has_a_key(pod):
    assert pod.ask("GET", "/v1/models", key=None)[0] == 401
    status, reply = pod.ask("GET", "/v1/models")
    names = {model["name"] for model in json.loads(reply)["models"]}
    assert status == 200 and {"mine", "journey"} <= names, reply
    Golden().check(pod)


def test_ports_of_one_node_are_published_on_loopback_alone(pod):
    published = pod.podman.run("port", "--all").splitlines()
    assert published and all(" -> 127.0.0.1:" in line for line in published), published
    for port in (8080, 9090):
        assert DIRECT.open(f"http://127.0.0.1:{port}/v2/health/ready", timeout=20).status == 200


def test_pod_runs_without_privileges(pod):
    with open(f"/proc/{pod.state()['Pid']}/status", encoding="utf-8") as file:
        fields = dict(line.split(":\t", 1) for line in file.read().splitlines() if ":\t" in line)
    assert fields["Uid"].split() == fields["Gid"].split() == ["65532"] * 4, fields
    assert int(fields["CapBnd"], 16) == 0 and fields["NoNewPrivs"] == "1" and fields["Seccomp"] == "2", fields
    with open(f"/proc/{pod.state()['Pid']}/mounts", encoding="utf-8") as file:
        options = {line.split()[1]: line.split()[3].split(",")[0] for line in file}
    assert options["/"] == options["/models"] == options["/secrets"] == "ro", options


def test_limits_decide_workers_and_memory(pod):
    limits = pod.container["resources"]["limits"]
    event, = [event for event in pod.events("listening") if "workers" in event]
    assert event["workers"] == int(limits["cpu"]), event
    assert event["max_memory"] == int(limits["memory"].removesuffix("Gi")) * 2 ** 30 // 2, event


def test_liveness_of_one_node_is_asked_within_the_container(pod):
    pod.podman.run("healthcheck", "run", pod.name)


def test_metric_of_the_autoscaler_is_at_the_admin_port(pod):
    _, text = pod.ask("GET", "/metrics", port=9090)
    for name in ("sum", "count"):
        assert f'attnd_request_queue_seconds_{name}{{route="/v1/attention"}}' in text


def test_stuck_process_fails_liveness_and_starts_anew(pod):
    liveness = pod.probe("livenessProbe")
    assert liveness.ask()
    os.kill(pod.state()["Pid"], signal.SIGSTOP)
    assert wait_for(lambda: not liveness.ask(), 30)  # a thread of it may run on for a moment
    found = liveness.wait_for_failure()
    grace = pod.container["livenessProbe"]["terminationGracePeriodSeconds"]
    pod.podman.run("stop", "--time", str(grace), pod.name)
    pod.podman.run("pod", "start", "attnd-pod-0")
    pod.find_address()
    started = pod.probe("startupProbe").wait_for_success()
    pod.probe("readinessProbe").wait_for_success()
    print(f"     found after {found:.1f} s, serves {started:.1f} s after its restart")


class Client(threading.Thread):
    """Opens a new connection for each request. `requests` are when each began, and whether it was served."""

    def __init__(self, pod):
        super().__init__()
        self.pod, self.requests, self.ends = pod, [], threading.Event()
        self.start()

    def run(self):
        golden = json.dumps(Golden().request)
        while not self.ends.wait(0.05):
            began = time.monotonic()
            try:
                served = self.pod.ask("POST", "/v1/attention", golden)[0] == 200
            except (OSError, http.client.HTTPException):
                served = False
            self.requests.append((began, served))


def send_slowly(pod, seconds, ret_status):
    """Sends a request whose body ends after so long."""
    body = json.dumps(Golden().request).encode()
    connection = http.client.HTTPConnection(pod.address, 8080, timeout=20)
    connection.putrequest("POST", "/v1/attention")
    connection.putheader("Authorization", f"Bearer {KEY}")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body[:100])
    time.sleep(seconds)
    connection.send(body[100:])
    ret_status.append(connection.getresponse().status)


def test_stop_serves_until_all_have_heard_of_it(pod):
    """The kubelet's part is `podman stop`: SIGTERM, and SIGKILL after terminationGracePeriodSeconds."""
    variables = variables_of(pod.container)
    delay, grace = int(variables["ATTND_READINESS_DELAY"]), int(variables["ATTND_GRACE"])
    killed = pod.specification["terminationGracePeriodSeconds"]
    readiness, liveness = pod.probe("readinessProbe"), pod.probe("livenessProbe")
    client, late = Client(pod), []
    stop = threading.Thread(target=pod.podman.run, args=("stop", "--time", str(killed), pod.name))
    stop.start()
    try:
        while readiness.ask():
            assert stop.is_alive(), "ready until it ended"
            time.sleep(0.05)
        began = time.monotonic()
        slow = threading.Timer(delay - 2 - readiness.timeout, send_slowly, (pod, 4 + readiness.timeout, late))
        slow.start()
        heard = readiness.wait_for_failure()
        assert readiness.period * readiness.threshold + readiness.timeout < delay
        assert liveness.ask(), "a pod that drains is not stuck"
        stop.join()
        took = time.monotonic() - began
        slow.join()
    finally:
        client.ends.set()
        client.join()
    lost = [at - began for at, served in client.requests if at < began + delay - 2 and not served]
    served = [at - began for at, served in client.requests if served]
    print(f"     not ready for {heard:.1f} s when the kubelet knew, served until {max(served):.1f} s, "
          f"ended after {took:.1f} s; {len(served)} requests")
    assert not lost, f"requests were lost {lost} s after SIGTERM"
    assert max(served) > heard, "nothing was served after the kubelet knew"
    assert late == [200], f"the request that was under way got {late}"
    assert pod.state()["ExitCode"] == 0 and delay <= took < delay + grace <= killed - 5, took


def without_crash(deployment):
    """Returns the Deployment. podman 4.3 crashes where `optional` is left out."""
    for volume in pod_of(deployment)["volumes"]:
        if "secret" in volume:
            volume["secret"]["optional"] = False
    return deployment


def message_of_pod(pod, deployment):
    """Plays a Deployment whose pod ends with an error, and returns its last line: the pod's message."""
    pod.podman.remove_pods()
    pod_of(deployment)["restartPolicy"] = "Never"  # its log would go on
    pod.podman.play([without_crash(deployment)])
    assert wait_for(lambda: pod.state()["Status"] == "exited", 20), pod.podman.logs(pod.name)
    assert pod.state()["ExitCode"] in (1, 2)
    line = pod.podman.logs(pod.name)[-1]
    print("    ", line)
    assert len(line) < 2048  # what the kubelet keeps
    return json.loads(line)["reason"]


def test_wrong_option_is_the_message_of_the_pod(pod):
    deployment = pod.deployment("base")
    for entry in pod_of(deployment)["containers"][0]["env"]:
        if entry["name"] == "ATTND_GRACE":
            entry["value"] = "soon"
    pod.podman.run("volume", "create", "attnd-models")
    assert "ATTND_GRACE" in message_of_pod(pod, deployment)


def test_unreadable_model_in_the_claim_is_the_message_of_the_pod(pod):
    os.chmod(shutil.copy(DEMO, os.path.join(pod.folder_of_claim(), "private.safetensors")), 0o600)
    reason = message_of_pod(pod, pod.deployment("base"))
    assert "private.safetensors: cannot be opened by user 65532" in reason and "chmod a+r" in reason, reason


def test_pod_with_a_certificate_speaks_tls(pod):
    with tempfile.TemporaryDirectory() as folder:
        make_secrets(folder, KEY)
        certificate, key = (read_text(os.path.join(folder, name)) for name in ("cert.pem", "key.pem"))
    pod.podman.create_secret("attnd-tls", {"tls.crt": certificate, "tls.key": key})
    pod.podman.remove_pods()
    os.remove(os.path.join(pod.folder_of_claim(), "private.safetensors"))
    pod.podman.play([without_crash(pod.deployment("tls"))])
    pod.find_address()
    pod.probe("startupProbe").wait_for_success()
    context = ssl.create_default_context(cadata=certificate)
    context.check_hostname = False  # the pod's address is a new one each time
    connection = http.client.HTTPSConnection(pod.address, 8080, timeout=20, context=context)
    connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {KEY}"})
    assert connection.getresponse().status == 200
