#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes the wheel, twice with the same bytes, and uses it in bare virtual environments of Debian 12 and 13
# (wheel_test.py): there is no compiler, no library of attnd's and no torch.
#
# Run it by with-engine.sh, so that both run in one engine:
#
#   tests/deploy/with-engine.sh bookworm sh tests/deploy/wheel.sh [FOLDER, which has the wheel already]
set -eu
cd "$(dirname "$0")/../.."

if [ $# -eq 0 ]; then
    wheels=$(mktemp -d)
    trap 'rm -rf "$wheels"' EXIT
    for number in 1 2; do
        echo "$ sh deploy/build-wheel.sh"
        sh deploy/build-wheel.sh "$wheels/$number"
    done
    cmp "$wheels"/1/*.whl "$wheels"/2/*.whl
    for suite in bookworm trixie; do
        tests/deploy/with-engine.sh $suite sh tests/deploy/wheel.sh "$wheels/1"
    done
    echo "2 passed, 0 failed"
    exit
fi

# shellcheck disable=SC2016,SC2086 # expanded inside the container; a list of words
docker run --rm ${CONTAINER_OPTIONS:-} --volume "$1:/wheels:ro" \
    --volume "$PWD/docs/examples/tiny-gpt2:/tiny-gpt2:ro" \
    --volume "$PWD/tests/deploy/wheel_test.py:/wheel_test.py:ro" "${BASE_IMAGE:?run by with-engine.sh}" sh -euc '
        apt-get -qq update
        DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install python3-venv >/dev/null
        python3 -m venv /venv
        /venv/bin/pip install --quiet /wheels/*.whl
        cd / && PATH=/venv/bin:$PATH python3 /wheel_test.py'
