#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# with-engine.sh SUITE COMMAND [ARGUMENT...]
#
# Runs COMMAND where a Docker engine runs and has the image debian:SUITE-slim, e.g. of bookworm
# or trixie. Neither an engine nor an image registry has to be in reach:
#
# - Where no engine runs, a private one runs as long as COMMAND does (root only).
# - An image that is missing is pulled, or else made by debootstrap from this machine's apt source
#   (root only). What was made is kept for 30 days in ${XDG_CACHE_HOME:-~/.cache}/attnd.
#
# COMMAND finds in its environment:
#
#   DOCKER_HOST        the private engine, when there is one
#   BASE_IMAGE         debian:SUITE-slim
#   CONTAINER_OPTIONS  words for `docker run`, after which apt-get, pip and curl reach inside what
#                      they reach here: certificates, PIP_ and proxy variables, pip.conf
#
# Exits with COMMAND's status, or with 77 and a reason where no container can run. With REQUIRE_DOCKER=1
# that is a failure: 1.
set -u
# shellcheck source=deploy/common.sh
. "$(dirname "$0")/../../deploy/common.sh"

packages="docker.io debootstrap iptables"
work=
engine=
command=

note() { printf 'with-engine: %s\n' "$*" >&2; }
skip() { printf 'SKIP: no Docker engine: %s\n' "$*"; [ "${REQUIRE_DOCKER:-}" != 1 ] || exit 1; exit 77; }
is_root() { [ "$(id -u)" -eq 0 ]; }

need_programs() {
    for program; do
        command -v "$program" >/dev/null || skip "$program is not installed (packages: $packages)"
    done
}

# --- the engine ----------------------------------------------------------------------------

is_up() { docker info >/dev/null 2>&1; }

start_engine() {
    is_root || skip "none runs, and only root can start one"
    need_programs dockerd iptables

    # Two engines would write over each other's packet filter.
    exec 9>/run/attnd-engine.lock
    flock --nonblock 9 || { note "waiting for another private engine"; flock 9; }
    forwarding=$(cat /proc/sys/net/ipv4/ip_forward)
    policy=$(iptables -S FORWARD | head -n 1)
    had_bridge=false
    [ ! -e /sys/class/net/docker0 ] || had_bridge=true
    DOCKER_HOST=unix://$work/socket
    export DOCKER_HOST

    # In a session of its own: Ctrl-C is for the command, which needs its engine to clean up.
    setsid dockerd --host "$DOCKER_HOST" --data-root "$work/data" --exec-root "$work/run" \
        --pidfile "$work/pid" >"$work/dockerd.log" 2>&1 &
    engine=$!
    for _ in $(seq 120); do
        if is_up; then
            note "started a private engine"
            return
        fi
        kill -0 "$engine" 2>/dev/null || break
        sleep 0.5
    done
    skip "dockerd does not start: $(tail -n 1 "$work/dockerd.log")"
}

# Undoes what dockerd leaves behind: mounts, its bridge, and how this machine forwards packets.
stop_engine() {
    kill -TERM "$engine" 2>/dev/null
    wait "$engine"
    awk -v under="$work/" 'index($2, under) == 1 { print $2 }' /proc/mounts | sort -r |
        while read -r place; do umount "$place"; done
    ! $had_bridge || return
    ip link delete docker0
    # shellcheck disable=SC2086 # `-P FORWARD ACCEPT`
    iptables $policy
    echo "$forwarding" >/proc/sys/net/ipv4/ip_forward
}

# --- the base image ------------------------------------------------------------------------

provide_image() {
    ! docker image inspect "$BASE_IMAGE" >/dev/null 2>&1 || return 0
    if ! has_root "$suite"; then
        ! timeout 300 docker pull --quiet "$BASE_IMAGE" >/dev/null 2>&1 || return 0
        is_root || skip "there is no $BASE_IMAGE, and only root can make one"
        need_programs debootstrap
        note "making $BASE_IMAGE"
        reason=$(make_root "$suite") || skip "$reason"
    fi
    gzip --decompress --stdout "$(name_root "$suite")" |
        docker import --change 'CMD ["bash"]' - "$BASE_IMAGE" >/dev/null ||
        skip "the engine does not import $(name_root "$suite")"
}

# --- what a container inherits ---------------------------------------------------------------

# Certificates have a path of their own inside, since installing ca-certificates replaces the
# usual one. All values go through a file: they may hold spaces.
describe_host() {
    certificates=/etc/ssl/certs/ca-certificates.crt
    inside=/run/host-certificates.crt
    : >"$work/environment"
    CONTAINER_OPTIONS="--env-file=$work/environment"

    env | grep -E '^(PIP_[A-Z_]+|(https?|no)_proxy|(HTTPS?|NO)_PROXY)=' |
        grep -Ev '^PIP_(CERT|CACHE_DIR|CONFIG_FILE|LOG)=' >>"$work/environment"
    for file in "${PIP_CONFIG_FILE:-}" "$HOME/.config/pip/pip.conf" "$HOME/.pip/pip.conf" \
        /etc/pip.conf; do
        [ -f "$file" ] || continue
        CONTAINER_OPTIONS="$CONTAINER_OPTIONS --volume=$file:/etc/pip.conf:ro"
        break
    done
    if [ -d "${PIP_FIND_LINKS:-}" ]; then
        CONTAINER_OPTIONS="$CONTAINER_OPTIONS --volume=$PIP_FIND_LINKS:$PIP_FIND_LINKS:ro"
    fi
    if [ -f "$certificates" ]; then
        CONTAINER_OPTIONS="$CONTAINER_OPTIONS --volume=$certificates:$inside:ro"
        for name in PIP_CERT SSL_CERT_FILE REQUESTS_CA_BUNDLE CURL_CA_BUNDLE; do
            echo "$name=$inside" >>"$work/environment"
        done
    fi
    export CONTAINER_OPTIONS
}

# --- the command -----------------------------------------------------------------------------

finish() {
    status=$?
    trap '' INT TERM HUP
    [ -z "$engine" ] || stop_engine
    [ -z "$work" ] || rm -rf --one-file-system "$work"
    exit "$status"
}

# The command may have containers to remove, so it is asked to end and then waited for.
interrupt() {
    [ -n "$command" ] || exit "$1"
    kill -TERM "$command" 2>/dev/null
    wait "$command"
    exit "$1"
}

[ $# -ge 2 ] || { echo "usage: $0 SUITE COMMAND [ARGUMENT...]" >&2; exit 2; }
suite=$1
shift
BASE_IMAGE=debian:$suite-slim
export BASE_IMAGE
need_programs docker
trap finish EXIT
trap 'interrupt 130' INT
trap 'interrupt 143' TERM HUP
work=$(mktemp -d "${TMPDIR:-/tmp}/attnd-engine.XXXXXX") || exit 1

is_up || start_engine
provide_image
describe_host
# An engine can reply and still run nothing, for instance inside a sandbox.
output=$(docker run --rm "$BASE_IMAGE" true 2>&1) || skip "it runs no container: $output"

"$@" <&0 9>&- &
command=$!
wait "$command"
