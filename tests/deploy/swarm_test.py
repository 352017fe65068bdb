# SPDX-License-Identifier: Apache-2.0
"""Tests deploy/stack.yml on a swarm of one machine (see run.sh). The tests run in the order of this
file: first those that hold for deploy/docker-compose.yml too."""

# pylint: disable=unused-import
from deploy_test import (test_proxy_becomes_ready, test_every_container_becomes_healthy,
                         test_golden_case_passes_through_the_proxy, test_more_than_one_replica_replies,
                         test_containers_run_without_privileges, test_root_file_system_is_read_only,
                         test_memory_and_processors_are_limited,
                         test_replicas_trust_their_network_and_limit_each_client)
from clients import clients_that_expect_right_replies
from engine import wait_for


def images_of_replicas(swarm):
    return {swarm.inspect(container)["Config"]["Image"] for container in swarm.containers("attnd")}


def test_requests_need_a_key_of_the_secret(swarm):
    headers, swarm.headers = swarm.headers, {}
    try:
        assert swarm.get("/v1/models")[0] == 401
    finally:
        swarm.headers = headers


def test_models_of_the_machine_are_served(swarm):
    models = swarm.get("/v1/models")[2]["models"]
    assert "mine" in {model["name"] for model in models}, models


def test_scaling_up_needs_no_restart(swarm):
    with clients_that_expect_right_replies(swarm):
        swarm.run_docker("service", "scale", "--detach", f"{swarm.project}_attnd=3")
        assert wait_for(lambda: len(swarm.served_by()) >= 3, 60), f"only {swarm.served_by()}"


def test_update_loses_no_request(swarm):
    """It also takes the replica away that the file does not have."""
    image = swarm.images.derive("two", "LABEL test=two")
    with clients_that_expect_right_replies(swarm):
        swarm.deploy(image)
        assert wait_for(lambda: swarm.update_state() == "completed", 120), swarm.update_state()
    assert images_of_replicas(swarm) == {image}
    assert len(swarm.containers("attnd")) == 2


def test_image_that_does_not_start_is_rolled_back(swarm):
    before = images_of_replicas(swarm)
    image = swarm.images.derive("bad", 'ENTRYPOINT ["attnd", "--no-such-option"]')
    with clients_that_expect_right_replies(swarm):
        swarm.deploy(image)
        assert wait_for(lambda: swarm.update_state() == "rollback_completed", 120), swarm.update_state()
    assert images_of_replicas(swarm) == before
    assert "--no-such-option" in swarm.logs("attnd")


def test_rm_leaves_nothing_behind(swarm):
    swarm.remove()
    assert not swarm.containers(all_states=True), "containers are left"
    assert not swarm.networks(), "networks are left"
