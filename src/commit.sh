#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# commit.sh ROOT VERSION: prints what `attnd --version` adds to a version: .gCOMMIT where it ends in
# +dev, else +gCOMMIT, and .dirty where files differ from it. The commit is ATTND_COMMIT, which the
# scripts in deploy/ set for builds that see no checkout; else that of the checkout at ROOT; else what
# `git archive` wrote into src/revision.txt. Prints nothing where none of them has it.
revision=${ATTND_COMMIT:-unknown}
if [ "$revision" = unknown ]; then
    revision=$(git --git-dir="$1/.git" --work-tree="$1" describe --always --exclude='*' \
        --abbrev=40 --dirty=.dirty 2>/dev/null) || read -r revision 2>/dev/null <"$1/src/revision.txt"
fi
# The length is given, because git's default depends on how many objects a clone has.
case $revision in
*[!0-9a-f]*.dirty | *.*.dirty) exit 0 ;;
*.dirty) revision=$(printf '%.12s' "$revision").dirty ;;
'' | *[!0-9a-f]*) exit 0 ;;
*) revision=$(printf '%.12s' "$revision") ;;
esac
case $2 in
*+*) printf '.g%s\n' "$revision" ;;
*) printf '+g%s\n' "$revision" ;;
esac
