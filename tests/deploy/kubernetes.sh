#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checks deploy/kubernetes: schemas, what kubectl of Debian 13 renders, and the Deployment as a pod of
# podman. The images are built by a Docker engine, which with-engine.sh can start:
#
#   tests/deploy/with-engine.sh bookworm sh tests/deploy/kubernetes.sh
#
# Exits 77 with a reason where the pod cannot run, or 1 with REQUIRE_DOCKER=1. What it needs besides:
#
#   apt-get install --no-install-recommends podman runc netavark catatonit iptables python3-venv
#
#   VENV   folder of the Python packages (build/venv-kubernetes)
set -eu
folder=$(cd "$(dirname "$0")" && pwd)
venv=${VENV:-$folder/../../build/venv-kubernetes}

if ! cmp -s "$folder/requirements.txt" "$venv/installed.txt"; then
    python3 -m venv --clear "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$folder/requirements.txt"
    cp "$folder/requirements.txt" "$venv/installed.txt"
fi
exec "$folder/with-engine.sh" trixie \
    env PYTHONDONTWRITEBYTECODE=1 "$venv/bin/python" "$folder/kubernetes_test.py"
