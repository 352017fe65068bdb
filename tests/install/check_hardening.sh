#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_hardening.sh BINARY...: checks that each was built position-independent, with a stack
# protector and fortified functions, and with a table of symbols that is read-only once it runs. On x86-64
# also that large frames of the stack are touched page by page, and that functions may be jumped to where
# the CPU checks that. The files of libc in Debian 12 keep the linker from saying so of the whole.
set -eu
export LC_ALL=C

check() { # WHAT PATTERN, looked for in $facts
    if ! printf '%s\n' "$facts" | grep -q -- "$2"; then
        echo "$binary has no $1: readelf -hldW --dyn-syms and objdump -d do not show '$2'"
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
    [ "$(uname -m)" = x86_64 ] || continue
    # shellcheck disable=SC2016 # patterns
    facts=$(objdump -d "$binary" | grep -m 2000 -e endbr64 -e '\$0x0,[0-9a-fx]*(%rsp)')
    # shellcheck disable=SC2016 # a pattern
    check "probes of the stack" 'or[ql] *\$0x0,[0-9a-fx]*(%rsp)'
    check "marks of functions" 'endbr64'
done
echo "$# files are hardened"
