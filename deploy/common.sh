# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# Functions of the scripts that build, here and in tests/deploy. They are sourced in the root of the tree.

as_root() {
    [ "$(id -u)" = 0 ] || set -- sudo "$@"
    "$@"
}

# install_packages NAME...: installs packages of Debian where one is missing.
install_packages() {
    dpkg-query -W "$@" >/dev/null 2>&1 && return
    as_root apt-get -qq update
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get -qq -y --no-install-recommends -o Dpkg::Use-Pty=0 install "$@" >/dev/null
}

# Sets `version`, and SOURCE_DATE_EPOCH and ATTND_COMMIT for what builds without a checkout. Between
# releases, the time of the commit tells which version is newer.
name_build() {
    version=$(sed -n "s/^  version: '\(.*\)',$/\1/p" meson.build)
    : "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)}"
    : "${ATTND_COMMIT:=$(git describe --always --exclude='*' --abbrev=40 --dirty=.dirty 2>/dev/null || :)}"
    export SOURCE_DATE_EPOCH ATTND_COMMIT
    case $version in
    *+dev) version=$version.$(date --utc --date="@$SOURCE_DATE_EPOCH" +%Y%m%d%H%M%S) ;;
    esac
}

# --- file systems of Debian ----------------------------------------------------------------

# mirror_of FOLDER: the first address in apt's sources that ends with FOLDER, or Debian's own.
mirror_of() {
    cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources \
        2>/dev/null | sed 's/#.*//' | grep -Eo "https?://[^ ]*/$1(/| |\$)" |
        sed 's|[/ ]*$||' | head -n 1 | grep . || echo "http://deb.debian.org/$1"
}

# configure_root SUITE FOLDER: as the official slim images are. No service is started, no documentation
# is unpacked, no package is kept. The host's view of signatures' dates goes along.
configure_root() {
    keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    rm -f "$2/etc/apt/sources.list"
    cat >"$2/etc/apt/sources.list.d/debian.sources" <<END
Types: deb
URIs: $(mirror_of debian)
Suites: $1 $1-updates
Components: main
Signed-By: $keyring

Types: deb
URIs: $(mirror_of debian-security)
Suites: $1-security
Components: main
Signed-By: $keyring
END
    cat >"$2/etc/apt/apt.conf.d/90slim" <<'END'
APT::Keep-Downloaded-Packages "false";
APT::AutoRemove::SuggestsImportant "false";
Acquire::Languages "none";
Acquire::GzipIndexes "true";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
END
    apt-config dump | grep '^Acquire::Check-' >"$2/etc/apt/apt.conf.d/90host"
    cat >"$2/etc/dpkg/dpkg.cfg.d/slim" <<'END'
force-unsafe-io
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
path-exclude /usr/share/man/*
path-exclude /usr/share/locale/*
END
    printf '#!/bin/sh\nexit 101\n' >"$2/usr/sbin/policy-rc.d"
    chmod 755 "$2/usr/sbin/policy-rc.d"
}

# name_root SUITE: prints where the root file system of debian:SUITE-slim is kept, compressed.
name_root() {
    echo "${XDG_CACHE_HOME:-$HOME/.cache}/attnd/debian-$1-slim.tar.gz"
}

# has_root SUITE: whether one is there that is younger than 30 days.
has_root() {
    [ -n "$(find "$(name_root "$1")" -mtime -30 2>/dev/null)" ]
}

# make_root SUITE: makes it by debootstrap, as root. Prints the reason and returns 1 where it cannot.
make_root() {
    made=$(mktemp -d)
    file=$(name_root "$1")
    if ! debootstrap --variant=minbase --force-check-gpg "$1" "$made/root" "$(mirror_of debian)" >"$made/log" 2>&1; then
        echo "debootstrap cannot make $1 (packages: debootstrap debian-archive-keyring): $(tail -n 1 "$made/log")"
        rm -rf --one-file-system "$made"
        return 1
    fi
    configure_root "$1" "$made/root"

    mkdir -p "$(dirname "$file")"
    if tar --create --file="$file.$$" --use-compress-program='gzip -1' --directory="$made/root" \
        --numeric-owner --exclude='./dev/*' --exclude='./var/cache/apt/*' \
        --exclude='./var/lib/apt/lists/*' --exclude='./var/log/*' --exclude='./usr/share/man/*' \
        --exclude='./usr/share/locale/*' --exclude=./etc/hostname --exclude=./etc/resolv.conf .; then
        mv "$file.$$" "$file"
    else
        rm -f "$file" "$file.$$"
        echo "cannot write $file"
    fi
    rm -rf --one-file-system "$made"
    [ -e "$file" ]
}

# open_root SUITE FOLDER: unpacks one to build in, which reaches the network as this machine does.
# Prints the reason and returns 1 where there is none.
open_root() {
    has_root "$1" || make_root "$1" || return 1
    mkdir -p "$2"
    tar --extract --file="$(name_root "$1")" --directory="$2" --numeric-owner
    echo force-unsafe-io >"$2/etc/dpkg/dpkg.cfg.d/slim"
    cp /etc/resolv.conf "$2/etc/"
    apt-config dump | grep '^Acquire::' >"$2/etc/apt/apt.conf.d/90host" || true
    [ ! -f /etc/pip.conf ] || cp /etc/pip.conf "$2/etc/"
    # At a place of its own, since the package ca-certificates writes the usual one anew.
    file=${PIP_CERT:-${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}}
    [ ! -f "$file" ] || cp "$file" "$2/etc/host-certificates.crt"
}

# run_in_root FOLDER COMMAND...: runs it there. Its mounts end with it.
run_in_root() {
    # shellcheck disable=SC2016 # expanded by the inner shell
    PIP_FIND_LINKS='' unshare --mount sh -euc '
        mount --rbind /dev "$1/dev"
        mount -t proc proc "$1/proc"
        if [ -f "$1/etc/host-certificates.crt" ]; then
            for name in PIP_CERT SSL_CERT_FILE REQUESTS_CA_BUNDLE CURL_CA_BUNDLE; do
                export "$name=/etc/host-certificates.crt"
            done
        fi
        exec chroot "$@"' sh "$@"
}
