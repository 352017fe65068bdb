# SPDX-License-Identifier: Apache-2.0
"""Tests of deploy/kubernetes and docs/kubernetes.md that need no container, beside what kubectl rendered."""

import functools
import os
import re
import shutil
import subprocess
import tempfile

import yaml
from kubernetes_validate import utils

from engine import ROOT
from manifests import (FOLDER, OVERLAYS, blocks_of_page, find, pod_of, read_documents, read_page, read_text,
                       variables_of)

# The fields of custom resources that our files use, as their definitions spell them. kubernetes-validate
# does not know these kinds. What is a pod's is checked as a pod's.
CUSTOM_FIELDS = {
    "PodMonitor": {"jobLabel", "selector", "podMetricsEndpoints", "port", "path", "interval"},
    "ServingRuntime": {"annotations", "supportedModelFormats", "name", "version", "autoSelect",
                       "protocolVersions", "containers", "volumes"},
    "InferenceService": {"predictor", "minReplicas", "maxReplicas", "securityContext",
                         "terminationGracePeriodSeconds", "model", "modelFormat", "name", "version",
                         "runtime", "protocolVersion", "storageUri"},
}
# Each validation reads megabytes of schemas anew.
utils.schema_contents = functools.lru_cache(None)(utils.schema_contents)

POD_FIELDS = ("containers", "volumes", "securityContext", "terminationGracePeriodSeconds")


def haproxy_number(pattern):
    number, = re.findall(pattern, read_text(os.path.join(ROOT, "deploy", "haproxy.cfg")), re.M)
    return int(number)


def seconds_of_haproxy_checks():
    return (haproxy_number(r"default-server .*\binter (\d+)s") * haproxy_number(r"default-server .*\bfall (\d+)")
            + haproxy_number(r"^ *timeout check +(\d+)s"))


def seconds_of_probe(probe):
    return probe["periodSeconds"] * probe["failureThreshold"] + probe["timeoutSeconds"]


def documents_of_page():
    """Returns the page's documents that a cluster takes."""
    return [d for block in blocks_of_page() for d in read_documents(block)
            if "apiVersion" in d and d["kind"] != "Kustomization"]


def validate(document, versions):
    for version in versions:
        try:
            utils.validate(document, version, strict=True)
        except Exception as error:
            raise AssertionError(f"{document['kind']} {document['metadata']['name']}, {version}: {error}") from error


def fields_of(value):
    """Returns the names of all fields of a custom resource, but not those within what is a pod's."""
    if isinstance(value, list):
        return set().union(*map(fields_of, value))
    if not isinstance(value, dict):
        return set()
    inner = (fields_of(child) for name, child in value.items()
             if name not in (*POD_FIELDS, "annotations", "selector"))
    return set(value).union(*inner)


def test_every_document_is_valid_for_every_known_version(rendered):
    versions = utils.all_versions()
    assert len(versions) >= 3, versions
    documents = [*documents_of_page(), *read_documents(read_text(os.path.join(FOLDER, "loader.yaml")))]
    for overlay in OVERLAYS:
        documents += rendered.documents[overlay]
    for document in documents:
        validate(document, versions)
    print(f"     {len(documents)} documents, versions {versions[0]} to {versions[-1]}")


def test_a_mistyped_field_is_found(rendered):
    """The validation can fail."""
    document = yaml.safe_load(yaml.safe_dump(find(rendered.documents["base"], "Deployment")))
    pod_of(document)["terminationGracePeriod"] = 30
    try:
        validate(document, [utils.latest_version()])
    except AssertionError as error:
        assert "terminationGracePeriod" in str(error), error
    else:
        raise AssertionError("nothing was found")


def test_custom_resources_have_known_fields_only(_):
    newest = [utils.latest_version()]
    seen = set()
    for name in ("podmonitor.yaml", "kserve.yaml"):
        for document in read_documents(read_text(os.path.join(FOLDER, name))):
            kind = document["kind"]
            unknown = fields_of(document["spec"]) - CUSTOM_FIELDS[kind]
            assert not unknown, f"{kind}: {unknown}"
            seen.add(kind)
            specification = document["spec"].get("predictor", document["spec"])
            parts = {field: specification[field] for field in POD_FIELDS if field in specification}
            parts.setdefault("containers", [{"name": "predictor", "image": "attnd"}])
            validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": kind.lower()}, "spec": parts}, newest)
    assert seen == set(CUSTOM_FIELDS)


def test_kubectl_has_no_warnings(rendered):
    """It warns of spellings of kustomize that are out of date."""
    assert not any(rendered.warnings.values()), rendered.warnings


def check_names(documents):
    """Asserts that ports, volumes and labels that documents name exist in the same overlay."""
    pods = {d["metadata"]["name"]: d["spec"]["template"] for d in documents if d["kind"] == "Deployment"}

    def selected(labels):
        return [pod for pod in pods.values() if labels.items() <= pod["metadata"]["labels"].items()]

    def ports_of(pod):
        return {port["name"] for container in pod["spec"]["containers"] for port in container["ports"]}

    for document in documents:
        kind, specification = document["kind"], document["spec"] if "spec" in document else {}
        if kind == "Service":
            pod, = selected(specification["selector"])
            assert {port["targetPort"] for port in specification["ports"]} <= ports_of(pod)
        elif kind in ("PodDisruptionBudget", "Deployment"):
            assert len(selected(specification["selector"]["matchLabels"])) == 1
        elif kind == "HorizontalPodAutoscaler":
            assert specification["scaleTargetRef"]["name"] in pods
        elif kind == "NetworkPolicy":
            pod, = selected(specification["podSelector"]["matchLabels"])
            assert {port["port"] for rule in specification["ingress"] for port in rule["ports"]} <= ports_of(pod)
    for pod in pods.values():
        volumes = {volume["name"] for volume in pod["spec"].get("volumes", [])}
        for container in pod["spec"]["containers"]:
            assert {mount["name"] for mount in container.get("volumeMounts", [])} == volumes


def test_names_within_an_overlay_exist(rendered):
    for overlay in OVERLAYS:
        check_names(rendered.documents[overlay])


def test_pods_have_the_same_privileges_as_in_compose(rendered):
    """None: of user, capabilities, file system and API."""
    services = yaml.safe_load(read_text(os.path.join(ROOT, "deploy", "docker-compose.yml")))["services"]
    pods = [pod_of(d) for overlay in OVERLAYS for d in rendered.documents[overlay] if d["kind"] == "Deployment"]
    for service in services.values():
        assert service["read_only"] and service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
    for pod in pods:
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 65532
        container, = pod["containers"]
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                                "capabilities": {"drop": ["ALL"]}}
        assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_a_stop_has_the_time_that_it_needs(rendered):
    """The numbers of the page are those of the manifest and of haproxy.cfg."""
    for overlay in OVERLAYS:
        pod = pod_of(find(rendered.documents[overlay], "Deployment"))
        container, = pod["containers"]
        variables = variables_of(container)
        delay, grace = int(variables["ATTND_READINESS_DELAY"]), int(variables["ATTND_GRACE"])
        killed = pod["terminationGracePeriodSeconds"]
        noticed = seconds_of_probe(container["readinessProbe"])
        checked = seconds_of_haproxy_checks()
        assert delay > noticed and delay > checked, f"{delay}: {noticed}, {checked}"
        assert killed >= delay + grace + 5, f"{killed}: {delay} + {grace} + 5"
        for second in (0, checked, noticed, delay, delay + grace, killed):
            assert f"\n| {second} | " in read_page(), f"the page has no second {second}"
        assert f"{delay} + {grace} + 5 = {killed}" in read_page()


def test_a_stop_of_the_proxy_has_the_time_that_it_needs(rendered):
    pod = pod_of(find(rendered.documents["proxy"], "Deployment", "attnd-proxy"))
    container, = pod["containers"]
    _, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
    assert int(seconds) > seconds_of_probe(container["readinessProbe"])
    stop = haproxy_number(r"^ *hard-stop-after +(\d+)s")
    assert pod["terminationGracePeriodSeconds"] >= int(seconds) + stop + 5


def test_a_stuck_process_is_found_after_the_time_on_the_page(rendered):
    probe = pod_of(find(rendered.documents["base"], "Deployment"))["containers"][0]["livenessProbe"]
    assert f"does not run for {probe['periodSeconds'] * probe['failureThreshold']} seconds" in read_page()


def test_haproxy_has_a_place_for_every_pod(rendered):
    places = set(re.findall(r"^ *server-template attnd (\d+) ",
                            read_text(os.path.join(ROOT, "deploy", "haproxy.cfg")), re.M))
    limit = find(rendered.documents["proxy"], "HorizontalPodAutoscaler")["spec"]["maxReplicas"]
    surge = find(rendered.documents["proxy"], "Deployment")["spec"]["strategy"]["rollingUpdate"]["maxSurge"]
    assert len(places) == 1 and limit + surge <= int(places.pop())


def test_own_overlay_of_the_page_changes_what_it_says(rendered):
    documents = rendered.documents["mine"]
    container, = pod_of(find(documents, "Deployment"))["containers"]
    assert container["image"] == "registry.example.com/attnd:0.1.0"
    assert container["resources"]["limits"] == container["resources"]["requests"] == {"cpu": "4", "memory": "8Gi"}
    # The claim is empty at first, and without any model no pod is ready.
    assert variables_of(container)["ATTND_DEMO"] == "true"
    assert variables_of(container)["ATTND_MODEL_DIR"] == "/models"
    secret, = [d for d in documents if d["kind"] == "Secret"]
    volumes = {volume["name"]: volume for volume in pod_of(find(documents, "Deployment"))["volumes"]}
    assert volumes["secrets"]["secret"]["secretName"] == secret["metadata"]["name"] != "attnd"


def test_commands_of_the_page_change_the_image_of_single_files(_):
    commands = [c for block in blocks_of_page("sh") for c in re.findall(r"^(sed '[^']+' \S+\.yaml) \|", block, re.M)]
    assert len(commands) == 2, commands
    for command in commands:
        changed = subprocess.run(["sh", "-c", command], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        images = re.findall(r"^ *image: (.*)$", changed, re.M)
        assert images == ["registry.example.com/attnd:0.1.0"], f"{command}: {images}"


def test_prometheus_names_the_job_as_the_alerts_do(rendered):
    monitors = read_documents(read_text(os.path.join(FOLDER, "podmonitor.yaml")))
    rules = read_text(os.path.join(ROOT, "deploy", "prometheus", "rules.yml"))
    pods = [document["spec"]["template"] for document in rendered.documents["proxy"] if document["kind"] == "Deployment"]
    jobs = set()
    for monitor in monitors:
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        pod, = [pod for pod in pods if wanted <= pod["metadata"]["labels"].items()]
        jobs.add(pod["metadata"]["labels"][monitor["spec"]["jobLabel"]])
        ports = {port["name"] for container in pod["spec"]["containers"] for port in container["ports"]}
        assert {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]} <= ports
    assert set(re.findall(r'job="(.*?)"', rules)) == jobs


def test_promtool_is_content_with_the_metric_of_the_queue(_):
    promtool = shutil.which("promtool")
    if promtool is None:
        print("     left out: promtool is not installed")
        return
    rule, = [b["rules"][0] for b in map(yaml.safe_load, blocks_of_page()) if b and "rules" in b]
    expression = rule["metricsQuery"].replace("<<.GroupBy>>", "namespace, pod").replace(
        "<<.LabelMatchers>>", 'namespace="attnd"')
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rules.yml")
        with open(path, "w", encoding="utf-8") as file:
            yaml.safe_dump({"groups": [{"name": "page", "rules": [{"record": "a:b", "expr": expression}]}]}, file)
        done = subprocess.run([promtool, "check", "rules", path], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    metric, = re.findall(r"name: \{as: (\w+)\}", read_page())
    assert f"metric: {{name: {metric}}}" in read_page()
