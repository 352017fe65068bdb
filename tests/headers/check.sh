#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check.sh SOURCE_ROOT COMPILER...: checks that every header compiles alone. Public ones are compiled
# as strict C11 and, if there is a C++ compiler, as C++ too.
set -eu
root=$1
shift
checked=0
cd "$root"
for header in include/attnd/*.h; do
    echo "#include <attnd/$(basename "$header")>" |
        "$@" -xc -std=c11 -Wall -Wextra -Wpedantic -Werror -Iinclude -fsyntax-only -
    if command -v c++ >/dev/null; then
        echo "#include <attnd/$(basename "$header")>" |
            c++ -xc++ -std=c++11 -Wall -Wextra -Werror -Iinclude -fsyntax-only -
    fi
    checked=$((checked + 1))
done
# shellcheck disable=SC2044 # no name has a space
for header in $(find src -name "*.h"); do
    echo "#include \"${header#src/}\"" |
        "$@" -xc -std=gnu11 -D_GNU_SOURCE -Wall -Wextra -Wpedantic -Werror \
            -Iinclude -Isrc -fsyntax-only -
    checked=$((checked + 1))
done
echo "$checked headers compile alone"
[ "$checked" -gt 10 ]
