#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_man.sh SOURCE_ROOT ATTND: checks that docs/attnd.1 agrees with the table of options.
set -eu
if ! "$2" --man | diff -u "$1/docs/attnd.1" -; then
    echo "docs/attnd.1 is out of date; run: attnd --man > docs/attnd.1"
    exit 1
fi
