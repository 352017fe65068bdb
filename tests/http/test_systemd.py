# SPDX-License-Identifier: Apache-2.0
"""deploy/attnd.service: its lines, and what of the kernel attnd needs. Tests that need
systemd-analyze or strace are skipped without them."""

import json
import os
import re
import shutil
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from checkpoints import slow_request, write_layer, write_slow_layer
from http1 import Connection, post_bytes
from reload import wait_for_log
from server import BINARY, ROOT, Server, is_sanitized, run_attnd

UNIT = ROOT / "deploy/attnd.service"
SECRETS = ROOT / "deploy/attnd-secrets.conf"
ANALYZE = os.environ.get("SYSTEMD_ANALYZE") or shutil.which("systemd-analyze")
needs_analyze = pytest.mark.skipif(not ANALYZE, reason="systemd-analyze (Debian: systemd) is missing")


def analyze(*arguments, **options):
    return subprocess.run([ANALYZE, *map(str, arguments)], capture_output=True, text=True, timeout=60, **options)


def settings_of(path):
    return re.findall(r"(?m)^(\w+)=(.*)$", path.read_text())


@pytest.fixture
def installed(tmp_path):
    """The unit and its secrets as they are installed, with a program that exists."""
    unit = tmp_path / "attnd.service"
    unit.write_text(UNIT.read_text().replace("/usr/local/bin/attnd", str(BINARY)))
    (tmp_path / "attnd.service.d").mkdir()
    shutil.copy(SECRETS, tmp_path / "attnd.service.d/secrets.conf")
    return unit


@needs_analyze
def test_systemd_finds_nothing_to_say_about_the_unit(installed):
    result = analyze("verify", "--man=no", installed)
    lines = [line for line in result.stderr.splitlines() if "attnd" in line]
    assert lines == [], result


@needs_analyze
def test_unit_leaves_little_exposed(installed):
    result = analyze("security", "--offline=yes", "--no-pager", installed)
    exposure = re.search(r"Overall exposure level.*: ([0-9.]+)", result.stdout)
    assert exposure and float(exposure[1]) <= 1.5, result.stdout[-500:] + result.stderr


def test_refused_options_are_not_tried_again():
    settings = dict(settings_of(UNIT))
    assert (settings["Restart"], settings["RestartPreventExitStatus"]) == ("on-failure", "2")


def test_port_that_needs_a_capability_names_it():
    """As a user who has none. The drop-in of docs/operate.md has the same words."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text())
    if lowest == 0:
        pytest.skip("every user may have every port here")
    result = run_attnd("--demo", "--listen", f"127.0.0.1:{lowest - 1}", user=61234 if os.geteuid() == 0 else None)
    page = (ROOT / "docs/operate.md").read_text()
    assert result.returncode == 1 and "Permission denied" in result.stderr
    for words in ("AmbientCapabilities=", "CapabilityBoundingSet=CAP_NET_BIND_SERVICE"):
        assert words in result.stderr and words in page


def test_page_enables_the_socket_by_the_line_of_its_file():
    line = "sudo systemctl stop attnd && sudo systemctl enable --now attnd.socket attnd"
    assert f"#   {line}\n" in (ROOT / "deploy/attnd.socket").read_text()
    assert f"\n{line}\n" in (ROOT / "docs/operate.md").read_text()


def test_credentials_and_options_name_the_same_files():
    settings = settings_of(SECRETS)
    names = {value.split(":")[0] for key, value in settings if key == "LoadCredential"}
    used = {value.rpartition("/")[2] for key, value in settings if key == "Environment"}
    folders = {value.split("=")[1].rpartition("/")[0] for key, value in settings if key == "Environment"}
    assert names == used == {"keys", "cert.pem", "key.pem"}
    assert folders == {"/run/credentials/attnd.service"}


def allowed_calls(name, seen):
    """Returns the system calls of a group, those of the groups in it included."""
    seen.add(name)
    calls = set()
    for line in analyze("syscall-filter", name).stdout.splitlines()[1:]:
        word = line.strip()
        if word.startswith("@") and word not in seen:
            calls |= allowed_calls(word, seen)
        elif word and word[0] not in "#@":
            calls.add(word)
    return calls


@needs_analyze
@pytest.mark.skipif(not shutil.which("strace"), reason="strace is missing")
@pytest.mark.skipif(is_sanitized(), reason="sanitizers make calls of their own")
def test_attnd_makes_no_call_that_the_unit_forbids(tmp_path, monkeypatch):
    """It loads files, serves over TLS, reads everything again, changes its log, and stops."""
    trace = tmp_path / "trace"
    script = tmp_path / "attnd"
    script.write_text(f'#!/bin/sh\nexec strace -f -qq -o {trace} {BINARY} "$@"\n')
    script.chmod(0o755)
    models = tmp_path / "models"
    models.mkdir()
    write_layer(models / "a.safetensors", 1, 4, 3)
    write_slow_layer(models / "slow.safetensors")
    (tmp_path / "keys").write_text("alice:alice-0123456789\n")
    (tmp_path / "keys").chmod(0o600)
    monkeypatch.setattr("server.BINARY", script)
    with Server("--model-dir", models, "--workers", 3, "--http-threads", 2, "--api-key-file", tmp_path / "keys",
                "--admin-listen", "127.0.0.1:0", "--access-log", NOTIFY_SOCKET=f"@attnd-test-{os.getpid()}") as server:
        body = json.dumps(slow_request(1, 400) | {"model": "slow", "need_weights": True}).encode()

        def post(_):
            with Connection(server.port, timeout=120) as connection:
                connection.send(post_bytes(body, "Authorization: Bearer alice-0123456789"))
                return connection.read_reply().status

        with ThreadPoolExecutor(4) as clients:
            statuses = clients.map(post, range(4))
            write_layer(models / "b.safetensors", 1, 4, 3)
            task = Path(f"/proc/{server.process.pid}/task/{server.process.pid}")
            attnd = int((task / "children").read_text().split()[0])
            for number in (signal.SIGHUP, signal.SIGUSR1):
                os.kill(attnd, number)
            wait_for_log(server, "models reloaded kept=2 added=1")
            assert list(statuses) == [200] * 4
        os.kill(attnd, signal.SIGTERM)
        server.process.wait(60)
    calls = set(re.findall(r"(?m)^\d+ +(?:<\.\.\. )?(\w+)[( ]", trace.read_text())) - {"resumed"}
    assert len(calls) > 30
    assert calls <= allowed_calls("@system-service", set()), calls - allowed_calls("@system-service", set())
