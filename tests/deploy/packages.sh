#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the packages of the last commit in a new container of BASE_IMAGE, checks them with lintian,
# compiles a program with libattnd-dev, and installs attnd in another one (packages_test.py).
#
# Run it by with-engine.sh, which sets BASE_IMAGE and CONTAINER_OPTIONS:
#
#   tests/deploy/with-engine.sh bookworm sh tests/deploy/packages.sh
set -eu
cd "$(dirname "$0")/../.."
packages=$(mktemp -d)
trap 'rm -rf "$packages"' EXIT

# shellcheck disable=SC2016,SC2086 # expanded inside the container; a list of words
git archive --format=tar HEAD | docker run --rm --interactive ${CONTAINER_OPTIONS:-} \
    --volume "$packages:/packages" "${BASE_IMAGE:?run by with-engine.sh}" sh -euc '
        mkdir /attnd && cd /attnd && tar --extract
        echo "$ sh deploy/build-packages.sh /packages"
        sh deploy/build-packages.sh /packages
        apt() { DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends "$@"; }
        apt install lintian >/dev/null
        echo "$ lintian"
        lintian --allow-root --fail-on error,warning /packages/*.changes
        echo "$ apt-get install ./libattnd*.deb"
        apt install /packages/libattnd*.deb >/dev/null
        cc docs/examples/one_attention.c $(pkg-config --cflags --libs attnd) -o /tmp/one_attention
        /tmp/one_attention
        echo "$ apt-get install ./python3-attnd*.deb"
        apt install /packages/python3-attnd_*.deb >/dev/null
        python3 -c "import attnd, numpy; print(attnd.dot_product(*numpy.ones((2, 1, 3, 2, 4)), need=[\"lse\"]))"
        dpkg-deb --extract /packages/attnd_*.deb /tmp/attnd
        sh tests/install/check_hardening.sh /tmp/attnd/usr/bin/* /usr/lib/*/libattnd.so.*'

python3 tests/deploy/packages_test.py "$packages"
