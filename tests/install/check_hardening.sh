#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_hardening.sh BINARY...: checks that each was built position-independent, with a stack
# protector and fortified functions, and with a table of symbols that is read-only once it runs.
set -eu
export LC_ALL=C

check() { # WHAT PATTERN, looked for in $facts
    if ! printf '%s\n' "$facts" | grep -q -- "$2"; then
        echo "$binary has no $1: readelf -hldW --dyn-syms does not show '$2'"
        exit 1
    fi
}

for binary; do
    facts=$(readelf -hldW --dyn-syms "$binary")
    check "random addresses" 'Type: *DYN'
    check "stack protector" '__stack_chk_fail'
    check "fortified functions" '_chk@'
    check "read-only relocations" 'GNU_RELRO'
    check "immediate binding" 'FLAGS.*NOW'
    check "stack without code" 'GNU_STACK.* RW '
done
echo "$# files are hardened"
