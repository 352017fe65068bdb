#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the unit tests that draw numbers with other seeds: UNIT_SEED is FIRST, FIRST + 1 and so on.
# Prints what fails, and ends with one line `N runs, N failed`. Exits 0 only when tests ran and none
# failed.
#
#   tests/seeds.sh [SEEDS] [NAME...]    50 seeds; all tests that draw, or some, such as math_masks
#
#   BUILD_DIR    build folder, which must have been built (build)
#   FIRST        the first seed (1)
#   UNIT_SAMPLE  as in tests/run.sh (1: each seed draws all its cases)
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
seeds=${1:-50}
[ $# -eq 0 ] || shift
if [ $# -eq 0 ]; then
    # shellcheck disable=SC2046 # a list of names
    set -- $(grep -l 'unit_seed(' "$root"/tests/unit/test_*.c | sed 's|.*/test_||; s|\.c$||')
fi

export CMOCKA_TEST_ABORT=0 OPENBLAS_NUM_THREADS=1
first=${FIRST:-1}
runs=0
failed=0
seed=$first
while [ "$seed" -lt $((first + seeds)) ]; do
    for name in "$@"; do
        runs=$((runs + 1))
        if ! output=$(UNIT_SEED=$seed "${BUILD_DIR:-$root/build}/tests/unit/test_$name" 2>&1); then
            failed=$((failed + 1))
            echo "UNIT_SEED=$seed $name"
            echo "$output" | grep -E 'ERROR|FAILED' | grep -v LINE | sort | uniq | head -n 4 | sed 's|^|    |'
        fi
    done
    seed=$((seed + 1))
done
echo "$runs runs, $failed failed"
[ "$runs" -gt 0 ] && [ "$failed" -eq 0 ]
