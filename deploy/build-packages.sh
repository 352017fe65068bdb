#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# build-packages.sh [FOLDER]: builds the packages of this tree for the Debian that it runs on, with symbols
# for debuggers beside them (-dbgsym), and puts them into FOLDER, or build-packages/, in place of
# earlier ones: it removes what their .changes lists, and nothing else. Installs what the build needs
# (apt-get; sudo when not root).
set -eu

cd "$(dirname "$0")/.."
folder=${1:-build-packages}
# shellcheck source=/dev/null
. /etc/os-release
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# shellcheck source=deploy/common.sh
. deploy/common.sh
name_build
version=$version~$ID${VERSION_ID:-}

tree=$work/attnd-$version
mkdir -p "$tree" "$folder"
cp -R CHANGELOG.md LICENSE meson.build meson_options.txt deploy docs include src "$tree"
cp -R deploy/debian "$tree"
cat >"$tree/debian/changelog" <<END
attnd ($version) ${VERSION_CODENAME:-unstable}; urgency=medium

  * /usr/share/doc/attnd/CHANGELOG.md.gz has what changed.

 -- $(sed -n 's/^Maintainer: //p' deploy/debian/control)  $(LC_ALL=C date --utc --rfc-email --date="@$SOURCE_DATE_EPOCH")
END

as_root apt-get -qq update
as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get -qq -y --no-install-recommends -o Dpkg::Use-Pty=0 build-dep "$tree"
(cd "$tree" && dpkg-buildpackage -us -uc)
rm -rf "$tree"
for changes in "$folder"/attnd_*.changes; do # apt-get could install an old one
    [ -f "$changes" ] || continue
    sed -n '/^Files:/,$s/^ .* \([^ /]*\)$/\1/p' "$changes" |
        while read -r name; do rm -f "$folder/$name"; done
    rm "$changes"
done
mv "$work"/* "$folder"
ls "$folder"
