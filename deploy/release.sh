#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# release.sh VERSION [FOLDER]: makes the files of a release from a clean clone, and puts them into FOLDER, or
# build-VERSION/: source, packages of Debian 12 and 13, wheel, image, what the image consists of (CycloneDX),
# SHA256SUMS and its signature. docs/contributing.md has what the commit of a release changes.
#
# Needs root, for systems made by debootstrap, and the network. One of these signs:
#
#   RELEASE_GPG_KEY       name of a secret key of gpg; the signature is SHA256SUMS.asc
#   RELEASE_MINISIGN_KEY  file of a secret key of minisign; the signature is SHA256SUMS.minisig
#
#   RELEASE_BASE          the image of Debian 12 below attnd's, such as debian@sha256:...; else it is made, too
#
# Wheel and image are made twice. Wheels must have the same bytes, and so must layers of images.
set -eu
umask 022
cd "$(dirname "$0")/.."
# shellcheck source=deploy/common.sh
. deploy/common.sh

die() { printf 'release: %s\n' "$*" >&2; exit 1; }
say() { printf '\n=== %s: %s\n' "$(date --utc +%T)" "$*"; }

# --- what can be wrong ---------------------------------------------------------------------

case $# in
1 | 2) ;;
*) die "usage: deploy/release.sh VERSION [FOLDER]" ;;
esac
release=$1
folder=$(realpath --canonicalize-missing "${2:-build-$1}")
changes=$(git status --porcelain) || die "this is no clone: git clone the repository, and run it there"
[ -z "$changes" ] || die "the tree has changes; commit or stash them: $changes"
name_build
[ "$version" = "$release" ] ||
    die "meson.build has version $version, not $release; change the lines that docs/contributing.md names under Releases"
grep -Eq "^## $(echo "$release" | sed 's/\./\\./g') - [0-9]{4}-[0-9]{2}-[0-9]{2}\$" CHANGELOG.md ||
    die "CHANGELOG.md has no '## $release - DATE'; name the section of the release and its day"
case ${RELEASE_GPG_KEY:+gpg}${RELEASE_MINISIGN_KEY:+minisign} in
gpg) signer=gpg; gpg --batch --list-secret-keys "$RELEASE_GPG_KEY" >/dev/null 2>&1 ||
    die "gpg has no secret key '$RELEASE_GPG_KEY'; gpg --import it, or set RELEASE_GPG_KEY to one of gpg --list-secret-keys" ;;
minisign) signer=minisign; [ -r "$RELEASE_MINISIGN_KEY" ] ||
    die "RELEASE_MINISIGN_KEY is $RELEASE_MINISIGN_KEY, which cannot be read; name the file of the key" ;;
*) die "nothing signs; set RELEASE_GPG_KEY or RELEASE_MINISIGN_KEY, and not both" ;;
esac
[ -z "$(ls -A "$folder" 2>/dev/null)" ] || die "$folder has files; remove them, or name another folder"
[ "$(id -u)" = 0 ] || die "debootstrap and chroot need root; run it with sudo --preserve-env"
for program in buildah debootstrap python3 unshare "$signer"; do
    command -v "$program" >/dev/null || die "$program is not installed; apt-get install buildah debootstrap python3 util-linux gnupg minisign"
done

mkdir -p "$folder"
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT

# --- source, packages and wheel ------------------------------------------------------------

make_source() {
    say "source"
    git archive --format=tar --prefix="attnd-$release/" HEAD | gzip -n -9 >"$folder/attnd-$release.tar.gz"
    tar --extract --file="$folder/attnd-$release.tar.gz" --directory="$work"
}

# build_in SUITE SCRIPT: runs a script of deploy/ on a copy of the source in a system of SUITE. $to is then
# the folder with what it made.
build_in() {
    root=$work/$1
    to=$root/made
    [ -d "$root" ] || reason=$(open_root "$1" "$root") || die "$reason"
    rm -rf "$root/attnd" "$to"
    cp -a "$work/attnd-$release" "$root/attnd"
    run_in_root "$root" sh "/attnd/deploy/$2" /made >"$work/log" 2>&1 ||
        { tail -n 40 "$work/log" >&2; die "$2 failed in $1"; }
}

make_wheel() {
    say "wheel, twice"
    build_in bookworm build-wheel.sh
    mv "$to"/*.whl "$folder"
    build_in bookworm build-wheel.sh
    cmp "$to"/*.whl "$folder"/*.whl || die "two wheels of one tree differ; diffoscope shows where"
}

make_packages() {
    for suite in bookworm trixie; do
        say "packages of $suite"
        build_in "$suite" build-packages.sh
        mv "$to"/*.deb "$folder"
    done
}

# --- image ---------------------------------------------------------------------------------

# Storage of its own, which ends with the script.
in_storage() {
    command=$1
    shift
    buildah --log-level error --root "$work/storage" --runroot "$work/runroot" --storage-driver vfs "$command" "$@"
}

provide_base() {
    base=docker.io/library/debian:bookworm-slim
    if [ -n "${RELEASE_BASE:-}" ]; then
        in_storage tag "$(in_storage pull --quiet "$RELEASE_BASE")" "$base"
        return
    fi
    has_root bookworm || reason=$(make_root bookworm) || die "$reason"
    container=$(in_storage from scratch)
    in_storage add --quiet "$container" "$(name_root bookworm)" / >/dev/null
    in_storage config --cmd bash "$container"
    in_storage commit --quiet --rm --timestamp "$SOURCE_DATE_EPOCH" "$container" "$base" >/dev/null
}

# Makes the image, and prints the digests of its layers.
build_image() {
    in_storage build --isolation chroot --no-cache --timestamp "$SOURCE_DATE_EPOCH" --format docker \
        --build-arg VERSION="$release" --build-arg REVISION="$ATTND_COMMIT" \
        -f deploy/Dockerfile -t "localhost/attnd:$release" "$work/attnd-$release" >"$work/log" 2>&1 ||
        { tail -n 40 "$work/log" >&2; die "the image failed"; }
    in_storage inspect --type image --format '{{.OCIv1.RootFS.DiffIDs}}' "localhost/attnd:$release"
}

make_image() {
    say "image, twice"
    provide_base
    layers=$(build_image)
    [ "$layers" = "$(build_image)" ] || die "two images of one tree differ; diffoscope shows where"
    archive=$folder/attnd-$release.image.tar # which docker and podman load
    in_storage push --quiet "localhost/attnd:$release" "docker-archive:$archive:localhost/attnd:$release"
    gzip -n "$archive"

    say "what it consists of"
    container=$(in_storage from "localhost/attnd:$release")
    python3 deploy/sbom.py "$(in_storage mount "$container")" "$release" "$ATTND_COMMIT" >"$folder/attnd-$release.cdx.json"
}

# --- signature -----------------------------------------------------------------------------

sign() {
    say "signature by $signer"
    (cd "$folder" && sha256sum -- * >"$work/sums" && mv "$work/sums" SHA256SUMS)
    case $signer in
    gpg) gpg --batch --yes --local-user "$RELEASE_GPG_KEY" --armor --detach-sign "$folder/SHA256SUMS" ;;
    minisign) minisign -S -s "$RELEASE_MINISIGN_KEY" -m "$folder/SHA256SUMS" ;;
    esac
}

make_source
make_image
make_wheel
make_packages
sign
ls -l "$folder"
