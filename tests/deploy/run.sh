#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Brings deploy/docker-compose.yml up on the Docker engine that answers, tries it, removes it.
# Exit 77, with the reason, where no container can run.
command -v python3 >/dev/null || { echo "SKIP: python3 is not installed"; exit 77; }
exec python3 "$(dirname "$0")/deploy_test.py" "$@"
