#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_man.sh SOURCE_ROOT PAGE: checks that docs/attnd.1 is the page that the build wrote.
set -eu
if ! diff -u "$1/docs/attnd.1" "$2"; then
    echo "docs/attnd.1 is out of date; run: cp $2 $1/docs/attnd.1"
    exit 1
fi
