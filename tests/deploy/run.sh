#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh [compose] [swarm]
#
# Starts deploy/docker-compose.yml on the Docker engine that runs, tests it and removes it. Then the
# same with deploy/stack.yml, for which the engine becomes a swarm. A part that cannot run is skipped
# with a reason, or fails with REQUIRE_DOCKER=1. Exits 77 where no container can run; with-engine.sh
# can start an engine.
command -v python3 >/dev/null || { echo "SKIP: python3 is not installed"; exit 77; }
exec python3 "$(dirname "$0")/run.py" "$@"
