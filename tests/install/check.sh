#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check.sh SOURCE_ROOT BUILD COMPILER...: checks that `meson install` installs all that a user of the
# library needs. The example is compiled with the flags of pkg-config and prints the book's table.
set -eu
root=$1 build=$2
shift 2
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
DESTDIR=$stage meson install -C "$build" --no-rebuild --quiet
pc=$(find "$stage" -name attnd.pc)
prefix=$(sed -n 's/^prefix=//p' "$pc")
PKG_CONFIG_PATH=$(dirname "$pc")
export PKG_CONFIG_PATH
# shellcheck disable=SC2046 # the flags are words
"$@" "$root/docs/examples/one_attention.c" -o "$stage/one_attention" \
    $(pkg-config --define-variable=prefix="$stage$prefix" --cflags --libs attnd)
library=$(dirname "$(find "$stage" -name 'libattnd.so')")
printed=$(LD_LIBRARY_PATH=$library "$stage/one_attention")
expected='0.3190 0.4858
0.2943 0.3897
0.2856 0.3593
0.2693 0.3873
0.2639 0.3928
0.2575 0.4028'
if [ "$printed" != "$expected" ]; then
    printf 'the example printed:\n%s\nexpected:\n%s\n' "$printed" "$expected"
    exit 1
fi
test -x "$stage$prefix/bin/attnd"
test -s "$stage$prefix/share/man/man1/attnd.1"
test -s "$stage$prefix/share/bash-completion/completions/attnd.bash"
test -s "$stage$prefix/share/zsh/site-functions/_attnd"
# The last two are what gcc adds to measure coverage.
leaked=$(nm -D --defined-only "$library/libattnd.so" | awk '{ print $3 }' |
    grep -v '^attnd_\|^attn_\|^__gcov_\|^mangle_path$' || true)
if [ -n "$leaked" ]; then
    echo "libattnd.so exports symbols that must be hidden: $leaked"
    exit 1
fi
echo "the installed library was linked and run"
