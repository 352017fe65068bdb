#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Starts deploy/docker-compose.yml on the Docker engine that runs, tests it and removes it.
# Exits 77 with a reason where no container can run; with-engine.sh can start an engine.
command -v python3 >/dev/null || { echo "SKIP: python3 is not installed"; exit 77; }
exec python3 "$(dirname "$0")/deploy_test.py" "$@"
