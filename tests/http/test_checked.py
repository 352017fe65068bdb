# SPDX-License-Identifier: Apache-2.0
"""What attnd refuses or warns of at start, and so with --check-config, though it would seem to work."""

import os
import re
import resource
import shutil
import tempfile
from pathlib import Path

import pytest

from checkpoints import write_layer
from reload import reload, wait_for_log
from server import ROOT, is_sanitized, run_attnd

CHECK = ["--demo", "--check-config"]


def check(*arguments, **environment):
    result = run_attnd("--check-config", *arguments, **environment)
    return result.returncode, result.stdout + result.stderr


# --- files that only root can read ---

@pytest.fixture
def open_folder():
    """Returns a folder that everybody may enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


@pytest.mark.skipif(os.geteuid() != 0, reason="others than root see for themselves")
def test_root_is_told_which_models_others_cannot_read(open_folder):
    for folder in ("closed", "open"):
        (open_folder / folder).mkdir()
        write_layer(open_folder / folder / f"{folder}.safetensors", 1, 4, 3)
    shutil.copytree(ROOT / "tests/data/hf/qwen3", open_folder / "open/qwen3")
    models = ["--model-dir", open_folder / "open", "--model", f"m={open_folder}/closed/closed.safetensors"]
    os.system(f"chmod -R a+rX {open_folder}")
    warning = "others than root cannot read it"
    code, text = check(*models)
    assert code == 0 and warning not in text, text

    for path, mode in (("closed", 0o700), ("closed/closed.safetensors", 0o600), ("open", 0o700),
                       ("open/open.safetensors", 0o640), ("open/qwen3/config.json", 0o600), ("open/qwen3", 0o750)):
        before = (open_folder / path).stat().st_mode
        (open_folder / path).chmod(mode)
        code, text = check(*models)
        named = re.findall(rf'{warning} path=(\S+) remedy="chmod', text)
        assert code == 0 and named and all(name.startswith(str(open_folder / path)) for name in named), text
        (open_folder / path).chmod(before)


# --- more memory than there is ---

@pytest.mark.skipif(is_sanitized(), reason="sanitizers need address space of their own")
@pytest.mark.parametrize("options", [["--max-memory", "900000GiB"], ["--capture-memory", "900000GiB"],
                                     ["--max-memory", "900000GiB", "--capture-memory", "1MiB"]])
def test_limits_beyond_the_memory_are_refused_with_numbers(options):
    result = run_attnd(*CHECK, *options)
    assert result.returncode == 1 and str(900000 << 30) in result.stderr, result
    assert re.search(r"this process may use \d{8,}; lower " + options[0], result.stderr), result


# --- variables ---

@pytest.mark.parametrize("name, meant", [
    ("ATTND_API_KEY_FLE", "ATTND_API_KEY_FILE"), ("ATTND_MAX_MEMROY", "ATTND_MAX_MEMORY"), ("ATTND_LISTN", "ATTND_LISTEN"),
    ("ATTND_TRUSTED_PROXYS", "ATTND_TRUSTED_PROXY"), ("ATTND_MODEL_DIRS", "ATTND_MODEL_DIR"), ("ATTND_TLSCERTS", "ATTND_TLS_CERT")])
def test_variable_near_a_known_one_is_refused(name, meant):
    result = run_attnd(*CHECK, **{name: "x"})
    assert result.returncode == 2 and f"'{name}'; did you mean {meant}?" in result.stderr, result


@pytest.mark.parametrize("name, value", [
    ("ATTND_PORT", "tcp://10.0.0.1:80"), ("ATTND_PORT_8080_TCP_ADDR", "10.0.0.1"), ("ATTND_SERVICE_HOST", "10.0.0.1"),
    ("ATTND_SERVICE_PORT", "80"), ("ATTND_SERVICE_PORT_HTTP", "80"), ("ATTND_LISTN_SERVICE_HOST", "10.0.0.1")])
def test_variables_of_kubernetes_are_no_mistakes(name, value):
    result = run_attnd(*CHECK, **{name: value})
    assert result.returncode == 0 and name not in result.stderr, result


@pytest.mark.parametrize("name", ["ATTND_VERSION", "ATTND_PORT", "ATTND_IMAGE", "ATTND_COMMIT"])
def test_other_variables_are_named_and_ignored(name):
    result = run_attnd(*CHECK, **{name: "1"})
    assert result.returncode == 0 and f"ignored name={name}" in result.stderr, result


# --- what is open to more than is meant ---

@pytest.mark.parametrize("mode, warns", [(0o644, True), (0o604, True), (0o640, False), (0o600, False)])
def test_keys_that_every_user_reads_are_a_warning(tmp_path, mode, warns):
    keys = tmp_path / "keys"
    keys.write_text("alice:alice-0123456789abcdef\n")
    keys.chmod(mode)
    code, text = check("--demo", "--api-key-file", keys)
    assert (code, f"every user can read a secret option=--api-key-file file={keys}" in text) == (0, warns), text


@pytest.mark.parametrize("proxies, warns", [
    ("0.0.0.0/0", True), ("::/0", True), ("10.0.0.1;0.0.0.0/0", True), ("10.0.0.0/8", False), ("0.0.0.0/8", False),
    ("unix:0", False)])
def test_trusting_everybody_is_a_warning(proxies, warns):
    code, text = check("--demo", ATTND_TRUSTED_PROXY=proxies)
    assert (code, "every client is trusted" in text) == (0, warns), text


@pytest.mark.parametrize("options, warns", [
    (["--admin-listen", "0.0.0.0:0"], True), (["--admin-listen", "[::]:0"], True),
    (["--admin-listen", "127.0.0.1:0"], False), (["--admin-listen", "0.0.0.0:0", "--insecure-listen"], False)])
def test_an_admin_address_for_all_is_a_warning(options, warns):
    code, text = check("--demo", *options)
    assert (code, "the admin address has no keys and is open to all" in text) == (0, warns), text


@pytest.mark.parametrize("files, warns", [(64, True), (1024, False)])
def test_few_descriptors_are_a_warning(files, warns):
    result = run_attnd(*CHECK, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)))
    assert result.returncode == 0 and ("few files may be open" in result.stderr) == warns, result


# --- words ---

@pytest.mark.parametrize("option", ["--listen", "--admin-listen"])
def test_unknown_host_is_told_first(option):
    result = run_attnd("--demo", option, "nosuchhost.invalid:8080")
    assert result.returncode == 2 and f"{option}: unknown host 'nosuchhost.invalid'" in result.stderr, result
    assert "lets other machines in" not in result.stderr


def test_port_names_listen():
    result = run_attnd("--port", "8080")
    assert result.returncode == 2 and "write --listen 127.0.0.1:PORT" in result.stderr, result


@pytest.mark.parametrize("text, told", [
    ("demo = true\n", True), ("# a comment\n[server]\ndemo = true\n", True), ("demo: true\n", True), ("", True),
    ('{"demo": true,}', False), (' \n{"demo": tru}', False)])
def test_configuration_that_is_no_json_is_told_so(tmp_path, text, told):
    path = tmp_path / "c.toml"
    path.write_text(text)
    code, output = check("--config", path)
    assert (code, "--config is JSON, as in {" in output) == (2, told), output


def test_reload_says_that_a_changed_configuration_needs_a_restart(start_server, tmp_path):
    path = tmp_path / "c.json"
    path.write_text('{"demo": true}')
    server = start_server("--config", path)
    reload(server)
    wait_for_log(server, "models reloaded")
    assert "needs a restart" not in server.read_log()
    (tmp_path / "new").write_text('{"demo": true, "queue": 9}')
    (tmp_path / "new").rename(path)
    reload(server)
    wait_for_log(server, "models reloaded", 2)
    assert f"warn a changed --config needs a restart file={path}" in server.read_log()
    path.unlink()
    reload(server)
    wait_for_log(server, "models reloaded", 3)
    assert server.read_log().count("needs a restart") == 2
