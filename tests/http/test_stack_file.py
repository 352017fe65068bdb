# SPDX-License-Identifier: Apache-2.0
"""deploy/stack.yml says the same as deploy/docker-compose.yml, but for what Swarm spells in another way."""

import re

import pytest
import yaml

from server import ROOT

COMPOSE = yaml.safe_load((ROOT / "deploy/docker-compose.yml").read_text())
STACK = yaml.safe_load((ROOT / "deploy/stack.yml").read_text())
SERVICES = sorted(COMPOSE["services"])

# What `docker stack deploy` refuses or ignores; `deploy` has the first three.
COMPOSE_ONLY = {"cpus", "mem_limit", "pids_limit", "restart", "build", "depends_on", "security_opt"}
STACK_ONLY = {"secrets"}
# Said of each on its own line: the image, what is published, the models' folder, and `deploy`.
DIFFERENT = {"image", "ports", "volumes", "deploy", "environment"}


def bytes_of(size):
    return int(size[:-1]) * {"m": 1 << 20, "g": 1 << 30}[size[-1].lower()]


def without_variables(environment):
    """Returns what the environment of a service is where no variable is set: ${NAME:-VALUE} is VALUE."""
    return {key: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value) for key, value in environment.items()}


def test_both_have_the_same_services_and_networks():
    assert sorted(STACK["services"]) == SERVICES
    for name, network in COMPOSE["networks"].items():
        assert {"driver": "overlay", **network} == STACK["networks"][name]
    assert STACK["networks"].keys() == COMPOSE["networks"].keys()


@pytest.mark.parametrize("name", SERVICES)
def test_both_say_the_same_of_a_service(name):
    compose, stack = COMPOSE["services"][name], STACK["services"][name]
    assert not COMPOSE_ONLY & stack.keys()
    assert {key: stack[key] for key in stack.keys() - STACK_ONLY - DIFFERENT} \
        == {key: compose[key] for key in compose.keys() - COMPOSE_ONLY - DIFFERENT}


@pytest.mark.parametrize("name", SERVICES)
def test_both_set_the_same_limits(name):
    compose, deploy = COMPOSE["services"][name], STACK["services"][name]["deploy"]
    limits = deploy["resources"]["limits"]
    assert float(limits["cpus"]) == compose["cpus"]
    assert bytes_of(limits["memory"]) == bytes_of(compose["mem_limit"])
    assert limits["pids"] == compose["pids_limit"]


def test_both_start_with_the_same_number_of_replicas():
    number = COMPOSE["services"]["attnd"]["deploy"]["replicas"]
    assert STACK["services"]["attnd"]["deploy"]["replicas"] == f"${{ATTND_REPLICAS:-{number}}}"


def test_replicas_have_the_same_environment_but_for_keys():
    """The port of the stack is open to other machines, and that of compose is not."""
    compose, stack = (without_variables(file["services"]["attnd"]["environment"]) for file in (COMPOSE, STACK))
    assert compose.items() - stack.items() == {("ATTND_INSECURE_LISTEN", "true")}
    assert stack.items() - compose.items() == {("ATTND_API_KEY_FILE", "/run/secrets/keys")}


def test_proxy_finds_an_address_of_each_replica():
    stack = STACK["services"]
    assert {service["deploy"]["endpoint_mode"] for service in stack.values()} == {"dnsrr"}
    assert [port["mode"] for port in stack["proxy"]["ports"]] == ["host"]
    assert 'server-template attnd 16 "${ATTND_NAME-attnd}:8080"' in (ROOT / "deploy/haproxy.cfg").read_text()
