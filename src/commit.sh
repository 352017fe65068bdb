#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# commit.sh ROOT VERSION: prints what `attnd --version` adds to a version that ends in +dev:
# .gCOMMIT, and .dirty where files differ from it. Prints nothing for a release, nor where there is
# no git or ROOT is not a checkout, so a tarball builds the same bytes everywhere.
case $2 in
*+dev)
    # The length is given, because the default depends on how many objects a clone has.
    commit=$(git --git-dir="$1/.git" --work-tree="$1" describe --always --exclude='*' \
        --abbrev=12 --dirty=.dirty 2>/dev/null) && printf '.g%s\n' "$commit"
    ;;
esac
exit 0
