#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the two set-up commands of README.md as a stranger would: in a new container of BASE_IMAGE,
# on a clean copy of the last commit. A warning of that suite's compiler is an error. Ends with the
# counts of tests/run.sh.
#
# Run it by with-engine.sh, which sets BASE_IMAGE and CONTAINER_OPTIONS:
#
#   tests/deploy/with-engine.sh trixie sh tests/deploy/readme.sh
#
#   PROPERTY_CASES, UNIT_SAMPLE   as in tests/run.sh, but 150 and 11
#   PYTEST_PROCESSES              as in tests/run.sh
set -eu
cd "$(dirname "$0")/../.."

# shellcheck disable=SC2016,SC2086 # expanded inside the container; a list of words
git archive --format=tar HEAD | docker run --rm --interactive ${CONTAINER_OPTIONS:-} \
    --env MESON_OPTIONS=--werror \
    --env PROPERTY_CASES="${PROPERTY_CASES:-150}" \
    --env UNIT_SAMPLE="${UNIT_SAMPLE:-11}" ${PYTEST_PROCESSES:+--env PYTEST_PROCESSES="$PYTEST_PROCESSES"} \
    "${BASE_IMAGE:?run by with-engine.sh}" sh -euc '
        mkdir /attnd && cd /attnd && tar --extract
        echo "$ sh deploy/quickstart.sh --once"
        sh deploy/quickstart.sh --once
        echo "$ sh tests/run.sh"
        sh tests/run.sh'
