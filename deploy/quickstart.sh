#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# quickstart.sh: from a new Debian 12 or Ubuntu 24.04 (or later) to a running attnd that has
# replied to one request. Every step can be repeated: it skips what is already installed or built.
set -u

usage() {
    cat <<'END'
usage: sh deploy/quickstart.sh [--once]

Installs what is missing (apt-get; sudo when not root), builds attnd into build-release/,
starts it with the demo models on 127.0.0.1:8080 (on another port when that one is taken),
posts a demo batch, and keeps serving until Ctrl-C.

  --once   stop after the reply; exit 0 only if its numbers are the expected ones
  --help   print this
END
}

say() { printf '==> %s\n' "$*"; }
die() { printf 'quickstart: %s\n' "$*" >&2; exit 1; }

# Runs a command and prints its output only when it fails.
run_logged() {
    "$@" >"$scratch/output" 2>&1 || { tail -n 40 "$scratch/output" >&2; die "failed: $*"; }
}

once=false
for arg; do
    case $arg in
    --once) once=true ;;
    --help) usage; exit 0 ;;
    *) printf 'quickstart: unknown option %s\n' "$arg" >&2; usage >&2; exit 2 ;;
    esac
done

# In a locale with decimal commas awk would print 0,3190.
LC_ALL=C; export LC_ALL
cd "$(dirname "$0")/.." || exit 1
build='build-release'
attnd=$build/src/attnd
log=$build/attnd.log
pid=
scratch=

stop_daemon() {
    pid=${pid-${!-}} # a signal can come after the start, before pid is set
    [ -n "$pid" ] || return 0
    kill -TERM "$pid" 2>/dev/null
    wait "$pid"
    stopped=$?
    pid=
    return $stopped
}
# Every way to end runs the trap on EXIT, also a reader of the output that has gone (SIGPIPE).
trap 'rm -rf "$scratch"; stop_daemon' EXIT
trap 'exit 130' INT
trap 'exit 141' PIPE
trap 'exit 143' TERM HUP
scratch=$(mktemp -d) || exit 1

# --- install -------------------------------------------------------------------------------

packages='gcc libc6-dev meson ninja-build pkgconf libmicrohttpd-dev libgnutls28-dev libjansson-dev zlib1g-dev
    nettle-dev libopenblas-pthread-dev curl'

apt() {
    set -- env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 "$@"
    [ "$(id -u)" = 0 ] || set -- sudo "$@"
    run_logged "$@"
}

install_missing() {
    if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
        die "this needs apt-get (Debian, Ubuntu); elsewhere install what these hold:" "$packages"
    fi
    missing=
    for package in $packages; do
        case $(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) in
        installed*) ;;
        *) missing="$missing $package" ;;
        esac
    done
    [ -n "$missing" ] || { say "everything needed is installed"; return; }
    [ "$(id -u)" = 0 ] || command -v sudo >/dev/null ||
        die "no sudo here; run this as root, then try again: apt-get install$missing"
    say "installing:$missing"
    apt update
    # shellcheck disable=SC2086 # the list is meant to be split
    apt install -y --no-install-recommends $missing
}

# --- build ---------------------------------------------------------------------------------

build_daemon() {
    [ ! -e $build ] || [ -w $build ] ||
        die "$build belongs to another user; remove it, then try again"
    say "building into $build/"
    if [ ! -e $build/build.ninja ]; then
        run_logged meson setup $build --buildtype=release -Dtests=false
    fi
    # All of it: meson has made links to libattnd.so.N already, and contributing.md installs from here.
    run_logged ninja -C $build
}

# --- start ---------------------------------------------------------------------------------

# start PORT: sets pid and url, or fails with pid empty. Port 0 selects any free port.
start() {
    rm -f "$scratch/stdout"
    mkfifo "$scratch/stdout" || exit 1
    # In a session of its own, because Ctrl-C reaches every process of the terminal's session:
    # attnd would receive that signal as well as our SIGTERM.
    unset pid
    setsid "$attnd" --demo --listen "127.0.0.1:$1" >"$scratch/stdout" 2>"$log" &
    pid=$!
    # attnd prints one line once it serves; end of file means that it failed. The descriptor stays
    # open so that the daemon's standard output has a reader for as long as it runs.
    exec 3<"$scratch/stdout"
    if read -r line <&3; then
        url=${line#listening on }
        return 0
    fi
    wait "$pid"
    pid=
    return 1
}

start_daemon() {
    if ! start 8080; then
        why=$(tail -n 1 "$log")
        start 0 || { cat "$log" >&2; die "attnd does not start"; }
        say "port 8080 could not be used ($why): using another one"
    fi
    say "attnd --demo is $line (log: $log)"
}

# --- the demo batch ------------------------------------------------------------------------

# Two copies of the six words "Your journey starts with one step", three numbers per word: the
# batch on which "Build a Large Language Model (From Scratch)", chapter 3, prints its results.
write_request() {
    six='[0.43,0.15,0.89],[0.55,0.87,0.66],[0.57,0.85,0.64],[0.22,0.58,0.33],[0.77,0.25,0.10],[0.05,0.80,0.55]'
    printf '{"model":"journey","queries":[[%s],[%s]]}' "$six" "$six" >"$scratch/request"
}

# What the author printed for each of the two sequences.
expected_table() {
    for sequence in 1 2; do
        cat <<END
  sequence $sequence
    [0.3190, 0.4858]
    [0.2943, 0.3897]
    [0.2856, 0.3593]
    [0.2693, 0.3873]
    [0.2639, 0.3928]
    [0.2575, 0.4028]
END
    done
}

# Reads a reply from standard input and prints its outputs in the format of expected_table.
# The text between two closing brackets holds one row, or nothing where a sequence ends.
reply_table() {
    tr -d ' \n' | sed -n 's/.*"outputs":\([^"}]*\).*/\1/p' | tr ']' '\n' |
        tr '[,' '  ' | awk '
            NF == 2 { if (!rows++) printf "  sequence %d\n", ++sequence
                      printf "    [%.4f, %.4f]\n", $1, $2; next }
            NF == 0 { rows = 0; next }
                    { print "    unexpected: " $0 }'
}

post_demo() {
    write_request
    say "request: POST $url/v1/attention"
    cat "$scratch/request"; echo
    # --noproxy: a proxy configured for the machine must not receive loopback requests.
    status=$(curl -sS --noproxy '*' -o "$scratch/reply" -w '%{http_code}' -m 30 \
        -H 'Content-Type: application/json' --data-binary "@$scratch/request" \
        "$url/v1/attention") || die "no reply; see $log"
    say "reply: $status"
    cat "$scratch/reply"; echo
    [ "$status" = 200 ] || return 1
    reply_table <"$scratch/reply" >"$scratch/got"
    say "its outputs, rounded to four decimals"
    cat "$scratch/got"
    expected_table >"$scratch/expected"
    cmp -s "$scratch/got" "$scratch/expected" || return 1
    say "these are the numbers that the book's author printed"
}

how_to_go_on() {
    cat <<END
==> try these in another terminal
  # every model that is loaded
  curl $url/v1/models

  # two words only, with the attention weights of both heads
  curl $url/v1/attention -H 'Content-Type: application/json' -d '{"model":"journey",
    "queries":[[0.43,0.15,0.89],[0.55,0.87,0.66]],"need_weights":true}'

  # the same with the second head switched off
  curl $url/v1/attention -H 'Content-Type: application/json' -d '{"model":"journey",
    "queries":[[0.43,0.15,0.89],[0.55,0.87,0.66]],"head_mask":[1,0]}'

Your own weights: $attnd --model NAME=FILE.safetensors,num_heads=N
In Python:        docs/examples/README.md
Everything else:  $attnd --help, docs/protocol.md
END
}

install_missing
build_daemon
start_daemon
right=true
post_demo || { right=false; echo "quickstart: this is not the expected reply" >&2; }
if $once; then
    stop_daemon || die "attnd did not stop cleanly (exit $stopped); see $log"
    $right
    exit
fi
how_to_go_on
# From here on a signal is a normal way to stop.
trap 'echo; say "stopping"; stop_daemon || die "attnd exited $stopped; see $log"; exit 0' INT TERM HUP
say "serving until Ctrl-C"
wait "$pid"
died=$?
pid=
die "attnd stopped by itself (exit $died); see $log"
