# SPDX-License-Identifier: Apache-2.0
"""Tests deploy/docker-compose.yml as a user would start it (see run.sh). The tests run in the order of
this file."""

import json
import os
import re
import shutil
import struct
import subprocess
import tempfile
import time

from clients import GOLDEN_CASE, clients_that_expect_right_replies
from engine import ROOT, wait_for


def test_proxy_becomes_ready(stack):
    assert wait_for(lambda: stack.get("/v2/health/ready")[0] == 200, 60), "no 200 in 60 s"


def test_prometheus_is_added_to_replicas_that_run(stack):
    before = stack.containers()
    stack.files.append("docker-compose.prometheus.yml")
    stack.run_compose("up", "-d", "--build")
    prometheus, = stack.containers("prometheus")
    assert sorted(stack.containers()) == sorted([*before, prometheus])


def test_every_container_becomes_healthy(stack):
    def all_healthy():
        return all(stack.inspect(c)["State"]["Health"]["Status"] == "healthy"
                   for c in stack.containers())
    assert len(stack.containers("attnd")) >= 2
    assert wait_for(all_healthy, 60), "unhealthy after 60 s"


def test_golden_case_passes_through_the_proxy(stack):
    GOLDEN_CASE.check(stack)


def test_more_than_one_replica_replies(stack):
    assert wait_for(lambda: len(stack.served_by()) >= 2, 15), f"only {stack.served_by()}"
    print("     replies from", *sorted(stack.served_by()))


def test_only_proxy_and_prometheus_are_published_and_only_on_loopback(stack):
    published = stack.containers("proxy") + stack.containers("prometheus")
    for container in stack.containers():
        ports = stack.inspect(container)["NetworkSettings"]["Ports"] or {}
        bound = [b["HostIp"] for bindings in ports.values() for b in bindings or []]
        expected = ["127.0.0.1"] if container in published else []
        assert bound == expected, f"{container[:12]} is published on {bound}"


def test_containers_run_without_privileges(stack):
    for container in stack.containers():
        status = stack.run_docker("exec", container, "cat", "/proc/1/status")
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert "0" not in fields["Uid"].split(), f"runs as uid {fields['Uid']}"
        assert int(fields["CapBnd"], 16) == 0, f"may gain capabilities {fields['CapBnd']}"


def test_containers_gain_no_privileges(stack):
    for container in stack.containers():
        status = stack.run_docker("exec", container, "cat", "/proc/1/status")
        assert re.search(r"^NoNewPrivs:\t1$", status, re.M), status


def test_root_file_system_is_read_only(stack):
    for container in stack.containers():
        options = next(line.split()[3] for line in
                       stack.run_docker("exec", container, "cat", "/proc/mounts").splitlines()
                       if line.split()[1] == "/")
        assert options.split(",")[0] == "ro", f"/ is mounted {options.split(',')[0]}"


def test_memory_and_processors_are_limited(stack):
    for container in stack.containers():
        host = stack.inspect(container)["HostConfig"]
        assert host["Memory"] > 0 and host["NanoCpus"] > 0, "no limit"


def test_metrics_are_at_the_admin_address_of_each_replica_alone(stack):
    assert stack.get("/metrics")[0] == 404
    proxy, = stack.containers("proxy")
    for container in stack.containers("attnd"):
        network, = stack.inspect(container)["NetworkSettings"]["Networks"].values()
        metrics = stack.run_docker(
            "exec", proxy, "bash", "-c",
            f"exec 3<>/dev/tcp/{network['IPAddress']}/9090 && "
            "printf 'GET /metrics HTTP/1.1\\r\\nHost: a\\r\\nConnection: close\\r\\n\\r\\n' >&3 && cat <&3")
        assert " 200 " in metrics.splitlines()[0] and "attnd_models 4" in metrics, metrics


def test_prometheus_sees_every_replica_and_has_every_alert(stack):
    networks = [stack.inspect(container)["NetworkSettings"]["Networks"].values()
                for container in stack.containers("attnd")]
    seen = {f"{network['IPAddress']}:9090" for network, in networks} | {"proxy:8405"}
    with open(os.path.join(ROOT, "deploy", "prometheus", "rules.yml"), encoding="utf-8") as file:
        alerts = sorted(re.findall(r"- alert: (\w+)", file.read()))

    def sees_all():
        targets = (stack.ask_prometheus("targets") or {}).get("activeTargets", [])
        return {target["labels"]["instance"] for target in targets if target["health"] == "up"} == seen

    def find_rules():
        groups = (stack.ask_prometheus("rules?type=alert") or {}).get("groups", [])
        return [rule for group in groups for rule in group["rules"]]

    assert wait_for(sees_all, 60), stack.ask_prometheus("targets")
    assert sorted(rule["name"] for rule in find_rules()) == alerts
    assert wait_for(lambda: all(rule["health"] == "ok" for rule in find_rules()), 30), find_rules()


def test_replicas_trust_their_network_and_limit_each_client(stack):
    for container in stack.containers("attnd"):
        details = stack.inspect(container)
        variables = dict(word.split("=", 1) for word in details["Config"]["Env"])
        assert variables["ATTND_TRUSTED_PROXY"] == stack.subnet
        assert int(variables["ATTND_MAX_PER_CLIENT"]) > 0
        network, = details["NetworkSettings"]["Networks"].values()
        assert network["IPAddress"].rsplit(".", 1)[0] == stack.subnet.rsplit(".", 1)[0], network


def test_model_that_only_its_owner_can_read_says_what_to_do(stack):
    """Python's safetensors writes such files; root runs this test, and 65532 the container."""
    image = stack.inspect(stack.containers("attnd")[0])["Image"]
    demo = os.path.join(ROOT, "src", "weights", "demo", "journey.safetensors")
    with tempfile.TemporaryDirectory() as folder:
        model = shutil.copy(demo, folder)
        os.chmod(folder, 0o755)

        def check_config():
            return stack.run_docker("run", "--rm", "-v", f"{folder}:/models:ro", image,
                                    "--check-config", "--insecure-listen", "--model-dir", "/models")

        os.chmod(model, 0o600)
        try:
            check_config()
            refusal = "nothing was refused"
        except RuntimeError as error:
            refusal = str(error)
        assert "journey.safetensors: cannot be opened by user 65532" in refusal, refusal
        assert "chmod a+r" in refusal, refusal
        os.chmod(model, 0o644)
        assert "configuration ok: 1 model" in check_config()


def make_secrets(folder, key):
    """Writes keys, a certificate of 127.0.0.1 and its key, which user 65532 can read."""
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
                    "-nodes", "-days", "2", "-subj", "/CN=attnd", "-addext", "subjectAltName=IP:127.0.0.1",
                    "-keyout", f"{folder}/key.pem", "-out", f"{folder}/cert.pem"],
                   check=True, capture_output=True)
    with open(f"{folder}/keys", "w", encoding="ascii") as file:
        file.write(f"test:{key}\n")
    os.chmod(folder, 0o755)
    for name in ("keys", "key.pem", "cert.pem"):
        os.chmod(f"{folder}/{name}", 0o644)


def is_healthy(stack, container):
    return stack.inspect(container)["State"]["Health"]["Status"] == "healthy"


def test_image_without_keys_needs_consent(stack):
    image = stack.inspect(stack.containers("attnd")[0])["Image"]
    try:
        stack.run_docker("run", "--rm", image, "--demo", "--check-config")
        refusal = "nothing was refused"
    except RuntimeError as error:
        refusal = str(error)
    assert "--api-key-file" in refusal and "--insecure-listen" in refusal, refusal
    stack.run_docker("run", "--rm", image, "--demo", "--check-config", "--insecure-listen")


def test_image_is_small_and_says_what_it_is(stack):
    revision = "0123456789abcdef0123456789abcdef01234567"
    default = stack.inspect(stack.containers("attnd")[0])["Image"]
    image = stack.run_docker("build", "--quiet", "-f", f"{ROOT}/deploy/Dockerfile", "--build-arg",
                             f"REVISION={revision}", ROOT)
    try:
        labels = {name: stack.inspect(name)["Config"]["Labels"] for name in (default, image)}
        version = stack.run_docker("run", "--rm", image, "--version").split()[1]
        size = stack.inspect(image)["Size"] / 1e6
    finally:
        stack.run_docker("rmi", image)
    print(f"     {size:.1f} MB")
    assert size <= 130
    assert [value["org.opencontainers.image.revision"] for value in labels.values()] == ["unknown", revision]
    label, = {value["org.opencontainers.image.version"] for value in labels.values()}
    assert version == f"{label}{'.' if '+' in label else '+'}g{revision[:12]}"


def test_health_speaks_tls_where_there_is_no_admin_address(stack):
    image = stack.inspect(stack.containers("attnd")[0])["Image"]
    with tempfile.TemporaryDirectory() as folder:
        make_secrets(folder, "0123456789abcdef")
        container = stack.run_docker(
            "run", "--detach", "--read-only", "-v", f"{folder}:/secrets:ro", "-e", "ATTND_TLS_CERT=/secrets/cert.pem",
            "-e", "ATTND_TLS_KEY=/secrets/key.pem", "-e", "ATTND_API_KEY_FILE=/secrets/keys", image, "--demo")
        try:
            assert wait_for(lambda: is_healthy(stack, container), 60), stack.run_docker("logs", container)
        finally:
            stack.run_docker("rm", "--force", container)


def test_keys_and_tls_file_serves_and_rotates(stack):
    """Its health check asks the admin address."""
    with tempfile.TemporaryDirectory() as folder, stack.beside("keys-and-tls.yml", folder) as other:
        make_secrets(folder, "old-0123456789abcdef")
        other.up()
        container, = stack.run_docker("ps", "-q", "--no-trunc", "--filter",
                                      f"label=com.docker.compose.project={other.project}").split()
        assert wait_for(lambda: is_healthy(stack, container), 60), stack.run_docker("logs", container)
        first = other.certificate()
        assert other.status_of("old-0123456789abcdef") == 200
        make_secrets(folder, "new-0123456789abcdef")
        assert other.status_of("new-0123456789abcdef") == 401
        other.run("kill", "-s", "HUP", "attnd")
        assert wait_for(lambda: other.status_of("new-0123456789abcdef") == 200, 10)
        assert other.status_of("old-0123456789abcdef") == 401
        assert other.certificate() != first
        assert wait_for(lambda: is_healthy(stack, container), 30)


def test_replica_that_ends_after_a_reload_is_started_again(stack):
    """As a crash would: the process ends without Docker's doing."""
    stack.run_compose("kill", "-s", "HUP", "attnd")
    victim = stack.containers("attnd")[0]
    stack.run_docker("exec", victim, "sh", "-c", "kill -TERM 1")
    assert wait_for(lambda: stack.inspect(victim)["RestartCount"] == 1 and is_healthy(stack, victim), 60)


def test_service_goes_on_when_a_replica_is_killed(stack):
    victim = stack.containers("attnd")[0]
    with clients_that_expect_right_replies(stack, a_replica_dies=True):
        time.sleep(1)
        stack.run_docker("kill", victim)
        time.sleep(4)
    assert not stack.inspect(victim)["State"]["Running"]


def test_replica_that_comes_back_is_used_again(stack):
    stopped = set(stack.containers("attnd", all_states=True)) - set(stack.containers("attnd"))
    for container in stopped:
        stack.run_docker("start", container)
    assert wait_for(lambda: len(stack.served_by()) >= 2, 30), f"only {stack.served_by()}"


def test_scaling_up_needs_no_restart(stack):
    with clients_that_expect_right_replies(stack):
        stack.run_compose("up", "-d", "--no-recreate", "--scale", "attnd=3")
        assert wait_for(lambda: len(stack.served_by()) >= 3, 30), f"only {stack.served_by()}"


def make_capture(number):
    """Returns a file of one layer with two keys, of other numbers for each `number`."""
    header = {"__metadata__": {"layers": '["0"]'},
              "0.queries": {"dtype": "F32", "shape": [1, 1, 2], "data_offsets": [0, 8]},
              "0.keys": {"dtype": "F32", "shape": [2, 1, 2], "data_offsets": [8, 24]}}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + struct.pack("<6f", 1, 0.5, number, 1, 2, 3)


def ask_capture(stack, name, file):
    """Returns the replica that replied, and the weights. A capture that its replica does not have is put."""
    for _ in range(100):
        status, headers, reply = stack.post(f"/v1/captures/{name}/attention", {"need": ["weights"]})
        if status == 200:
            return headers["X-Served-By"], reply["attention_weights"]
        if status == 404 and "Unknown capture" in reply:
            stack.put(f"/v1/captures/{name}", file)
        time.sleep(0.1)
    raise AssertionError(f"{name}: {status} {reply}")


def test_captures_stay_with_their_replica_and_come_back(stack):
    files = {f"capture-{number}": make_capture(number) for number in range(16)}

    def ask_all():
        return {name: ask_capture(stack, name, file) for name, file in files.items()}

    assert wait_for(lambda: ask_all() == ask_all(), 30), "names move"
    first = ask_all()
    assert len({replica for replica, _ in first.values()}) >= 2, "all names are at one replica"
    for service in ("attnd", "proxy"):
        stack.run_docker("restart", stack.containers(service)[0])
        again = {name: weights for name, (_, weights) in ask_all().items()}
        assert again == {name: weights for name, (_, weights) in first.items()}, f"after {service}"


def test_stopping_a_replica_loses_no_request_and_exits_0(stack):
    replica = stack.containers("attnd")[0]
    with clients_that_expect_right_replies(stack):
        time.sleep(1)
        stack.run_docker("stop", "--time", "20", replica)
        time.sleep(2)
    state = stack.inspect(replica)["State"]
    assert state["ExitCode"] == 0, f"exit code {state['ExitCode']}"


def test_proxy_stops_with_exit_0(stack):
    proxy, = stack.containers("proxy")
    stack.run_docker("stop", "--time", "20", proxy)
    assert stack.inspect(proxy)["State"]["ExitCode"] == 0


def test_down_leaves_nothing_behind(stack):
    stack.remove()
    assert not stack.containers(all_states=True), "containers are left"
    assert not stack.networks(), "networks are left"
