#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check.sh SOURCE_ROOT BUILD COMPILER...: `meson install` gives a stranger all that the example
# needs: it is compiled by pkg-config alone and prints the numbers of its author's table.
set -eu
root=$1 build=$2
shift 2
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
DESTDIR=$place meson install -C "$build" --no-rebuild --quiet
pc=$(find "$place" -name attnd.pc)
prefix=$(sed -n 's/^prefix=//p' "$pc")
PKG_CONFIG_PATH=$(dirname "$pc")
export PKG_CONFIG_PATH
# shellcheck disable=SC2046 # the flags are words
"$@" "$root/docs/examples/one_attention.c" -o "$place/one_attention" \
    $(pkg-config --define-variable=prefix="$place$prefix" --cflags --libs attnd)
library=$(dirname "$(find "$place" -name 'libattnd.so')")
printed=$(LD_LIBRARY_PATH=$library "$place/one_attention")
expected='0.3190 0.4858
0.2943 0.3897
0.2856 0.3593
0.2693 0.3873
0.2639 0.3928
0.2575 0.4028'
if [ "$printed" != "$expected" ]; then
    printf 'printed:\n%s\nexpected:\n%s\n' "$printed" "$expected"
    exit 1
fi
test -x "$place$prefix/bin/attnd"
test -s "$place$prefix/share/man/man1/attnd.1"
leaked=$(nm -D --defined-only "$library/libattnd.so" | awk '{ print $3 }' | grep -v '^attnd_\|^attn_' || true)
if [ -n "$leaked" ]; then
    echo "symbols that should be hidden: $leaked"
    exit 1
fi
echo "installed, linked and run"
