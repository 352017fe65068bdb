#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds attnd and runs every test: the cmocka suites, then pytest against the real binary, in a
# browser too. Installs what is missing, but for two large packages: without Chromium the tests in a
# browser are skipped, without promtool those of alerts and metrics. Ends with one line `N passed, N
# failed, N skipped`; pytest prints the reason of each skip. Exits 0 only when tests ran and none failed.
#
#   tests/run.sh [--long]    --long: the faults in their long forms, a soak of an hour,
#                            and 10,000 slow connections by slowhttptest
#
#   CC                  compiler for a new build folder, e.g. CC=clang
#   BUILD_DIR           build folder (build)
#   MESON_OPTIONS       more options for meson setup, e.g. -Db_sanitize=address,undefined
#   MESON_TEST_OPTIONS  more options for meson test, e.g. --suite threads
#   UNIT_SAMPLE         an odd number: unit tests try one of so many of their floats and random cases (5, since
#                       cases are drawn from seeds that stay; .ci/run tries all)
#   UNIT_SEED           unit tests draw other numbers for each value (0); see tests/seeds.sh
#   VENV                folder of the Python packages (BUILD_DIR/venv)
#   BINARY              daemon that pytest runs (BUILD_DIR/src/attnd)
#   BROWSER_TESTS       0 skips tests/ui (1)
#   CHROMIUM            the browser of tests/ui (/usr/bin/chromium-headless-shell, or else /usr/bin/chromium)
#   PYTEST_OPTIONS      more options for pytest, e.g. --ignore=tests/http/test_cli.py
#   PYTEST_PROCESSES    processes that share the tests (three for each CPU, since most wait; .ci/run: two)
#   SOAK_SECONDS        length of the soak (2); .ci/run and --long have longer ones
#   BACKGROUND_LOAD     requests a second that each server gets besides those of its test (0)
#   PROPERTY_CASES      random requests to compare with the reference (500)
#   STORED_CASES        random questions of kept captures to compare with sent ones (500)
#   PROPERTY_SEED       their seed, which is printed (random)
#   SCHEMATHESIS_SECONDS  length of each of three runs of schemathesis on docs/openapi.json (3; .ci/run: 5)
set -eu

case ${1:-} in
--long) export FAULTS_LONG=1 SOAK_SECONDS="${SOAK_SECONDS:-3600}" ;;
'') ;;
*)
    echo "usage: tests/run.sh [--long]" >&2
    exit 2
    ;;
esac

root=$(cd "$(dirname "$0")/.." && pwd)
packages="gcc libc6-dev meson ninja-build pkg-config libmicrohttpd-dev libgnutls28-dev libjansson-dev zlib1g-dev
    nettle-dev libopenblas-pthread-dev libcmocka-dev python3 python3-venv wrk curl haproxy iproute2 iptables git strace zsh
    systemd"
[ -z "${FAULTS_LONG:-}" ] || packages="$packages slowhttptest"

missing=
for package in $packages; do
    dpkg-query -W -f '${Status}\n' "$package" 2>/dev/null | grep -q '^install ok' ||
        missing="$missing $package"
done
if [ -n "$missing" ]; then
    echo "installing$missing"
    sudo=
    [ "$(id -u)" -eq 0 ] || sudo=sudo
    $sudo apt-get update -qq
    # shellcheck disable=SC2086 # a list of names
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $missing
fi

build=${BUILD_DIR:-$root/build}
mkdir -p "$build"
build=$(cd "$build" && pwd)
reconfigure=
[ ! -f "$build/build.ninja" ] || reconfigure=--reconfigure
# shellcheck disable=SC2086 # lists of options
meson setup $reconfigure "$build" "$root" ${MESON_OPTIONS:-}
# Of a choice of tests, meson builds only what they need.
# shellcheck disable=SC2086 # a list of targets
ninja -C "$build" ${MESON_TEST_OPTIONS:+src/attnd src/attnd-bench}

# Python keeps what it compiles beside the packages, also where the environment says that it should not:
# the tests and all that they import take each process eight seconds to compile.
venv=${VENV:-$build/venv}
unset PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX="$venv/compiled"
if ! cmp -s "$root/tests/requirements.txt" "$venv/installed.txt"; then
    python3 -m venv --clear "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$root/tests/requirements.txt"
    cp "$root/tests/requirements.txt" "$venv/installed.txt"
fi

# A second thread of OpenBLAS, which has nothing to do, would spin for 30 ms after each start of a program.
export OPENBLAS_THREAD_TIMEOUT=4

# A failure of the first must not stop the second; count_results.py judges both.
testlog=$build/meson-logs/testlog.json
junit=$build/pytest.xml
rm -f "$testlog" "$junit"
# shellcheck disable=SC2086 # a list of options
UNIT_SAMPLE=${UNIT_SAMPLE:-5} CMOCKA_MESSAGE_OUTPUT=TAP meson test -C "$build" --print-errorlogs \
    ${MESON_TEST_OPTIONS:-} || true
# An idle process takes tests from the one that has most left; else they stay in their order. numpy has one
# thread: a second one gains nothing beside other processes, and spins for a while after each product.
# shellcheck disable=SC2086 # a list of options
BINARY=${BINARY:-$build/src/attnd} OPENBLAS_NUM_THREADS=1 HYPOTHESIS_STORAGE_DIRECTORY=$build/hypothesis \
    "$venv/bin/pytest" -c "$root/tests/http/pytest.ini" ${FAULTS_LONG:+--timeout=7200} \
    --numprocesses="${PYTEST_PROCESSES:-$((3 * $(nproc)))}" --dist=worksteal \
    --junitxml="$junit" ${PYTEST_OPTIONS:-} \
    "$root/tests/http" "$root/tests/python" "$root/tests/faults" "$root/tests/ui" || true
failed=0
if [ -n "${FAULTS_LONG:-}" ]; then
    BINARY=${BINARY:-$build/src/attnd} "$venv/bin/python" "$root/tests/load/reliability.py" --long \
        slowhttptest || failed=1
fi
grep -o -m 1 'matrix tiles: [a-zA-Z ]*' "$testlog" || true # whether this CPU has them
"$venv/bin/python" "$root/tests/count_results.py" "$testlog" "$junit" || failed=1
exit $failed
