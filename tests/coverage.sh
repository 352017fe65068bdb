#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds attnd with gcov, runs every test with tests/run.sh and prints which share of the lines and
# branches of src/ they execute. Exits 1 when a share is smaller than asked for.
#
#   BUILD_DIR    build folder (build-coverage); other variables as in tests/run.sh
#   LINES_MIN    percent of the lines (98)
#   BRANCHES_MIN percent of the branches (92)
#
# The build is not optimised: then a branch is a condition as it is written, and not one of the
# copies that the compiler makes of it. Not counted are
# - branches of assert(), whose other side ends the process: they state what cannot be;
# - lines that cannot be executed, which the compiler proves (gcov does not report them);
# - src/math/kernels and src/wire/decimal/print_avx2.c for instruction sets that this CPU lacks:
#   they are compiled, but the dispatcher does not choose them.
# Threads count at the same time, so counters are atomic.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
build=${BUILD_DIR:-$root/build-coverage}

if ! command -v gcovr >/dev/null; then
    echo "installing gcovr"
    sudo=
    [ "$(id -u)" -eq 0 ] || sudo=sudo
    $sudo apt-get update -qq
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends gcovr
fi

[ ! -d "$build" ] || find "$build" -name '*.gcda' -delete
failed=0
BUILD_DIR=$build UNIT_SAMPLE=${UNIT_SAMPLE:-1} \
    MESON_OPTIONS="-Db_coverage=true -Dbuildtype=debug -Dc_args=-fprofile-update=atomic ${MESON_OPTIONS:-}" \
    sh tests/run.sh "$@" || failed=1

excluded=
for set in amx_f32:amx_bf16 amx_bf16:amx_bf16 avx512_bf16:avx512_bf16 avx512:avx512bw avx2:avx2; do
    grep -qw "${set#*:}" /proc/cpuinfo ||
        excluded="$excluded --exclude src/math/kernels/${set%:*}.c"
done
grep -qw amx_bf16 /proc/cpuinfo || excluded="$excluded --exclude src/math/kernels/matrix/"
echo "excluded: branches of assert()$excluded"

# shellcheck disable=SC2086 # a list of options
gcovr --root "$root" --object-directory "$build" --filter src/ $excluded \
    --exclude-unreachable-branches --exclude-throw-branches \
    --exclude-branches-by-pattern '.*\bassert\(.*' \
    --fail-under-line "${LINES_MIN:-98}" --fail-under-branch "${BRANCHES_MIN:-92}" \
    --print-summary "$build"
exit $failed
