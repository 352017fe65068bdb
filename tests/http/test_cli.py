# SPDX-License-Identifier: Apache-2.0
"""The command line: sources of options, how bad options are refused, and the subcommands."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys

import numpy as np
import pytest
import requests

from checkpoints import write_layer
from http1 import closed_port
from openblas import HAS_OPENBLAS, needs_openblas
from safetensors_file import write_raw
from server import BINARY, GOLDEN, ROOT, run_attnd, skip_without
from test_golden import CASES, model_argument

BAD_OPTIONS = {
    "--no-such-option": ["--no-such-option"],
    "-x": ["-x"],
    "--workers": ["--workers", "-1"],
    "--http-threads": ["--http-threads", "x"],
    "--max-body": ["--max-body", "12 apples"],
    "--max-memory": ["--max-memory", "99999999999999999999"],
    "--queue": ["--queue", "0"],
    "--grace": ["--grace", "1.5"],
    "--log-format": ["--log-format", "xml"],
    "--log-level": ["--log-level", "loud"],
    "--listen": ["--listen", "127.0.0.1:99999"],
    "--cors-origin": ["--demo", "--cors-origin", "https://example.org/"],
    "--model": ["--model", "no-equals-sign"],
    "num_heads": ["--model", "a=f.safetensors,num_heads=0"],
    "causal": ["--model", "a=f.safetensors,causal=perhaps"],
    "colour": ["--model", "a=f.safetensors,colour=red"],
    "--config": ["--config", "/nonexistent.json"],
    "unexpected": ["--demo", "unexpected"],
}
BAD_VARIABLES = {"ATTND_MAX_BODY": "x", "ATTND_WORKERS": "1e3", "ATTND_LOG_LEVEL": "loud",
                 "ATTND_DEMO": "maybe"}
# The content of the file, and what the message must contain besides the name of the file.
BAD_FILES = {
    "unknown option": ('{"max_bdoy": 1}', "max_bdoy"),
    "negative": ('{"max_body": -1}', "max_body"),
    "wrong type": ('{"workers": [1]}', "workers"),
    "not a number": ('{"workers": "many"}', "workers"),
    "not a boolean": ('{"demo": "perhaps"}', "demo"),
    "given twice": ('{"queue": 1, "queue": 2}', "queue"),
    "malformed": ('{"queue": 1,\n}', ":2:"),
    "not an object": ("[]", "object"),
    "NUL behind a number": ('{"queue": 1\0}', "NUL byte"),
    "NUL at the end": ('{"queue": 1}\0', "NUL byte"),
}


def one_line(text):
    assert text.endswith("\n") and text.count("\n") == 1, text
    return text


def assert_json_failure(result, text):
    """Each line of the log is an object; the last one says why attnd ends."""
    events = [json.loads(line) for line in result.stderr.splitlines()]
    assert all(isinstance(event, dict) for event in events), result.stderr
    assert (events[-1]["level"], events[-1]["message"]) == ("error", "failed"), result.stderr
    assert text in events[-1]["reason"], result.stderr


def limit_of(server):
    """Returns the --max-body of a server, as it is reported for a body that is too large."""
    response = requests.post(server.url + "/v1/attention", data=b"x" * 3001, timeout=60,
                             headers={"Content-Type": "application/json"})
    assert response.status_code == 413, response.text
    return int(re.search(r"\b(1000|2000|3000)\b", response.json()["detail"])[1])


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_bad_option_exits_2_and_is_named(name):
    result = run_attnd(*BAD_OPTIONS[name])
    assert (result.returncode, result.stdout) == (2, ""), result
    assert name in one_line(result.stderr)


@pytest.mark.parametrize("name", BAD_VARIABLES)
def test_bad_variable_exits_2_and_is_named(name):
    result = run_attnd(**{name: BAD_VARIABLES[name]})
    assert (result.returncode, result.stdout) == (2, ""), result
    assert name in one_line(result.stderr)


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_configuration_file_exits_2_and_names_the_defect(tmp_path, name):
    text, defect = BAD_FILES[name]
    (tmp_path / "c.json").write_text(text)
    result = run_attnd("--config", tmp_path / "c.json")
    assert (result.returncode, result.stdout) == (2, ""), result
    line = one_line(result.stderr)
    assert "c.json" in line and defect in line, line


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_bad_option_is_named_in_json_where_that_is_the_format(name):
    options = BAD_OPTIONS[name]
    assert_json_failure(run_attnd(*options, ATTND_LOG_FORMAT="json"), name)
    assert_json_failure(run_attnd(*options, "--log-format=json", ATTND_LOG_FORMAT="text"), name)


@pytest.mark.parametrize("name", BAD_VARIABLES)
def test_bad_variable_is_named_in_json_where_that_is_the_format(name):
    variables = {name: BAD_VARIABLES[name], "ATTND_LOG_FORMAT": "json"}
    assert_json_failure(run_attnd(**variables), name)


def test_bad_configuration_file_may_set_the_format_of_its_own_error(tmp_path):
    (tmp_path / "c.json").write_text('{"max_bdoy": 1, "log_format": "json"}')
    assert_json_failure(run_attnd("--config", tmp_path / "c.json"), "max_bdoy")
    (tmp_path / "c.json").write_text('{"log_format": "json"')
    result = run_attnd("--config", tmp_path / "c.json")
    assert one_line(result.stderr).startswith("attnd: "), result  # nobody can know the format


@pytest.mark.parametrize("arguments, reason", [
    (["--model", "a=/nonexistent.safetensors"], "/nonexistent.safetensors: cannot be opened"),
    (["--model-dir", "/nonexistent"], "/nonexistent"), (["--demo", "--listen", "192.0.2.1:8080"], "192.0.2.1"),
    (["--demo", "--max-memory", "1"], "--max-memory")],
    ids=["model", "folder", "address", "memory"])
def test_failed_start_is_reported_in_json(arguments, reason):
    assert_json_failure(run_attnd(*arguments, ATTND_LOG_FORMAT="json"), reason)


@pytest.mark.parametrize("arguments", [
    ["inspect", "/nonexistent"], ["inspect", "--bad"], ["health", "--listen", "unix:/nonexistent"],
    ["bench"], ["heads"], ["unknown"]], ids=" ".join)
def test_commands_of_a_person_print_plain_text(arguments):
    result = run_attnd(*arguments, ATTND_LOG_FORMAT="json")
    assert result.returncode in (1, 2) and result.stderr.startswith("attnd: "), result


def test_configuration_file_that_cannot_be_read_is_reported_with_the_reason(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, reason in ((tmp_path / "no.json", "cannot read {}: No such file or directory"),
                         (tmp_path, "{} is not a regular file"), (pipe, "{} is not a regular file"),
                         ("/dev/zero", "{} is not a regular file")):
        result = run_attnd("--config", path)
        assert result.stderr == f"attnd: --config: {reason.format(path)}\n", result


def test_option_without_its_value_exits_2():
    result = run_attnd("--demo", "--workers")
    assert result.returncode == 2 and "--workers" in one_line(result.stderr)


def test_flag_overrides_environment_and_environment_overrides_file(start_server, tmp_path):
    config = tmp_path / "c.json"
    config.write_text('{"demo": true, "max_body": 1000}')
    assert limit_of(start_server("--config", config)) == 1000
    assert limit_of(start_server("--config", config, ATTND_MAX_BODY="2000")) == 2000
    assert limit_of(start_server("--config", config, "--max-body", "3000",
                                 ATTND_MAX_BODY="2000")) == 3000
    assert limit_of(start_server(ATTND_CONFIG=str(config))) == 1000


def test_configuration_file_may_have_every_kind_of_option(start_server, tmp_path):
    write_layer(tmp_path / "f.safetensors", 2, 3, 4)
    config = tmp_path / "c.json"
    config.write_text(json.dumps({
        "model": [f"a={tmp_path}/f.safetensors", f"b={tmp_path}/f.safetensors,num_heads=3"],
        "demo": True, "workers": 1, "http_threads": 1, "max_body": 1048576, "queue": 5,
        "grace": 7, "log_format": "json", "log_level": "debug", "listen": "127.0.0.1:0"}))
    server = start_server("--config", config, listen=None)
    assert len(server.get("/v1/models").json()["models"]) == 6
    for line in server.read_log().splitlines():
        assert isinstance(json.loads(line), dict)


def test_equals_sign_may_join_option_and_value(start_server):
    assert limit_of(start_server("serve", "--demo", "--max-body=2000")) == 2000


@pytest.mark.parametrize("name", CASES)
def test_check_config_accepts_golden_model(name):
    result = run_attnd("--check-config", "--model", model_argument(CASES[name]))
    assert result.returncode == 0, result
    assert "listening" not in result.stdout


def test_check_config_refuses_a_model_file_that_does_not_exist():
    result = run_attnd("--check-config", "--model", "a=/nonexistent.safetensors")
    assert result.returncode == 1, result
    assert "/nonexistent.safetensors" in result.stderr


def test_check_config_refuses_a_model_without_head_count():
    path = GOLDEN / "d2l_example.safetensors"
    result = run_attnd("--check-config", "--model", f"a={path}")
    assert result.returncode == 1 and "num_heads" in one_line(result.stderr), result


def test_two_models_with_the_same_name_are_refused():
    path = GOLDEN / "torch_packed.safetensors"
    arguments = ["--model", f"a={path},num_heads=6"] * 2
    result = run_attnd("--listen", "127.0.0.1:0", *arguments)
    assert result.returncode == 1 and "'a'" in result.stderr, result


def test_version_is_printed():
    result = run_attnd("--version")
    version = re.search(r"^  version: '(.*)',$", (ROOT / "meson.build").read_text(), re.M)[1]
    commit = r"([.+]g[0-9a-f]{12}(\.dirty)?)?"
    assert result.returncode == 0
    assert re.fullmatch(rf"attnd {re.escape(version)}{commit}\n", result.stdout), result.stdout


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_every_build_has_its_commit(tmp_path):
    def git(*arguments):
        return subprocess.run(["git", "-C", tmp_path, *arguments], check=True, capture_output=True,
                              text=True).stdout

    def suffix(root=tmp_path, version="1.2.3+dev", **environment):
        return subprocess.run(["/bin/sh", ROOT / "src/commit.sh", root, version], check=True, text=True,
                              capture_output=True, env=os.environ | environment).stdout

    assert suffix() == ""  # a tarball
    git("init", "-q")
    assert suffix() == ""  # nothing is committed yet
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("-c", "user.name=n", "-c", "user.email=e", "commit", "-q", "-m", "m")
    git("-c", "user.name=n", "-c", "user.email=e", "tag", "-m", "m", "v1.2.3")
    commit = f".g{git('rev-parse', 'HEAD')[:12]}"
    assert suffix() == commit + "\n"
    assert suffix(version="1.2.3") == f"+{commit[1:]}\n"
    assert suffix(PATH="/nonexistent") == ""
    (tmp_path / "file").write_text("2")
    assert suffix() == commit + ".dirty\n"
    (tmp_path / "tarball").mkdir()
    assert suffix(tmp_path / "tarball") == ""  # the checkout around it is another project's

    # A build without a checkout is told, or has what `git archive` wrote.
    told = "0123456789abcdef0123456789abcdef01234567"
    assert suffix(tmp_path / "tarball", ATTND_COMMIT=told) == ".g0123456789ab\n"
    assert suffix(tmp_path / "tarball", ATTND_COMMIT=f"{told}.dirty") == ".g0123456789ab.dirty\n"
    for nothing in ("", "unknown"):
        assert suffix(ATTND_COMMIT=nothing) == commit + ".dirty\n"
    for wrong in ("v1.2.3", '"; exit(1); "', "$Format:%H$"):
        assert suffix(tmp_path / "tarball", ATTND_COMMIT=wrong) == ""
    (tmp_path / "src").mkdir()
    shutil.copy(ROOT / ".gitattributes", tmp_path)
    (tmp_path / "src/revision.txt").write_text("$Format:%H$\n")  # in an archive, such as this may be, it is a commit
    git("add", ".gitattributes", "src")
    git("-c", "user.name=n", "-c", "user.email=e", "commit", "-q", "-m", "m")
    git("archive", "--prefix=tarball/", "-o", "t.tar", "HEAD")
    subprocess.run(["tar", "-xf", tmp_path / "t.tar", "-C", tmp_path], check=True)
    assert suffix(tmp_path / "tarball") == f".g{git('rev-parse', 'HEAD')[:12]}\n"


@pytest.mark.parametrize("letter, name", [("-h", "--help"), ("-V", "--version")])
def test_letter_stands_for_an_option(letter, name):
    for command in ([], ["inspect"]):
        result = run_attnd(*command, letter)
        assert (result.returncode, result.stdout) == (0, run_attnd(name).stdout), result
    assert f"  {name}, {letter}\n" in run_attnd("--help").stdout
    for wrong in (f"-{letter}", f"{letter}x", "-"):
        result = run_attnd(wrong)
        assert result.returncode == 2 and f"'{wrong}'" in one_line(result.stderr), result


def test_help_mentions_every_option_and_its_variable():
    result = run_attnd("--help")
    assert result.returncode == 0
    table = "".join((ROOT / f"src/config/{name}.c").read_text() for name in ("options", "compute"))
    entries = re.findall(r'\{OPTION\("([\w-]+)",(.*?)\},\n', table, re.S)
    assert len(entries) > 25
    for option, entry in entries:
        assert re.search(rf"^ +--{option}\b", result.stdout, re.M), option
        if "command_line_only" not in entry:
            assert "ATTND_" + option.upper().replace("-", "_") in result.stdout, option
    for command in ("inspect", "health"):
        assert f"attnd {command} " in result.stdout, command
    assert max(map(len, result.stdout.splitlines())) <= 100


def test_model_dir_names_models_after_their_files(start_server, tmp_path):
    for name in ("one", "two"):
        write_layer(tmp_path / f"{name}.safetensors", 2, 3, 4)
    shutil.copy(GOLDEN / "two_stage_heads.safetensors", tmp_path / "three.safetensors")
    (tmp_path / "README.txt").write_text("not a model")
    for name in ("._one.safetensors", ".two.safetensors", ".safetensors"):
        (tmp_path / name).write_text("hidden, and not a model")
    server = start_server("--model-dir", tmp_path)
    names = sorted(model["name"] for model in server.get("/v1/models").json()["models"])
    assert names == ["one", "three", "two"]


def test_model_dir_that_may_not_be_read_says_for_whom_and_what_to_do(tmp_path):
    tmp_path.chmod(0)
    user = os.geteuid() or 65532  # root can read every folder
    try:
        result = run_attnd("--check-config", "--model-dir", tmp_path, user=user)
    except PermissionError:
        print(f"user {user} may not run {BINARY}: nothing is tested")
        return
    assert result.returncode == 1, result
    assert f"--model-dir: user {user} cannot read" in result.stderr, result
    assert "chmod a+rx" in result.stderr, result


def test_bad_files_of_model_dir_are_skipped_if_so_wished(start_server, tmp_path):
    options = ["--model-dir", tmp_path, "--skip-bad-models"]
    write_layer(tmp_path / "good.safetensors", 2, 3, 4)
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "good.safetensors").read_bytes()[:-1])
    (tmp_path / "text.safetensors").write_text("not a model")
    server = start_server(*options)
    assert [model["name"] for model in server.get("/v1/models").json()["models"]] == ["good"]
    log = server.read_log()
    assert re.search(r"warn model skipped file=cut\.safetensors reason=.*is it cut short", log), log
    assert re.search(r"warn model skipped file=text\.safetensors reason=", log), log
    assert "warn models skipped skipped=2 loaded=1" in log

    result = run_attnd("--check-config", *options)
    assert (result.returncode, result.stdout) == (0, "configuration ok: 1 model, 2 skipped\n")
    result = run_attnd("--check-config", "--model-dir", tmp_path)
    assert result.returncode == 1 and "cut.safetensors" in result.stderr, result
    result = run_attnd("--check-config", *options, "--model", f"x={tmp_path}/text.safetensors")
    assert result.returncode == 1 and "text.safetensors" in result.stderr, result


def test_model_dir_whose_files_are_all_bad_is_refused(tmp_path):
    (tmp_path / "x.safetensors").write_text("not a model")
    options = ["--model-dir", tmp_path, "--skip-bad-models"]
    result = run_attnd("--check-config", *options)
    assert result.returncode == 1, result
    assert f"attnd: --model-dir: all 1 models in {tmp_path} were skipped" in result.stderr
    result = run_attnd("--check-config", *options, "--demo")
    assert (result.returncode, result.stdout) == (0, "configuration ok: 4 models, 1 skipped\n")


def test_model_dir_without_a_model_is_a_warning_that_names_what_it_takes(tmp_path):
    result = run_attnd("--check-config", "--model-dir", tmp_path)
    assert (result.returncode, result.stdout) == (0, "configuration ok: 0 models\n"), result
    assert f"warn no model yet model_dir={tmp_path}" in result.stderr
    assert "*.safetensors files, or folders with a config.json" in result.stderr
    assert "no model yet" not in run_attnd("--check-config", "--model-dir", tmp_path, "--demo").stderr


@pytest.mark.parametrize("option", ["--listen", "--admin-listen"])
@pytest.mark.parametrize("port", ["65536", "99999", "99999999999999999999"])
def test_port_out_of_range_is_said_to_be_so(option, port):
    result = run_attnd("--demo", option, f"localhost:{port}")
    assert result.returncode == 2, result
    assert one_line(result.stderr) == (f"attnd: {option}: the port of 'localhost:{port}' is out of range; "
                                       "it must be 0 to 65535\n"), result


def test_broken_file_in_model_dir_is_named(tmp_path):
    write_layer(tmp_path / "good.safetensors", 2, 3, 4)
    (tmp_path / "broken.safetensors").write_bytes(b"\0" * 3)
    result = run_attnd("--listen", "127.0.0.1:0", "--model-dir", tmp_path)
    assert result.returncode == 1 and "broken.safetensors" in result.stderr, result


def test_port_in_use_exits_1_and_is_named():
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        result = run_attnd("--demo", "--listen", address)
        assert (result.returncode, result.stdout) == (1, ""), result
        assert address in result.stderr, result.stderr


def test_port_of_another_attnd_is_not_shared(demo_server):
    """The threads of one daemon share its port by SO_REUSEPORT; a second daemon must not."""
    result = run_attnd("--demo", "--listen", f"127.0.0.1:{demo_server.port}", timeout=20)
    assert (result.returncode, result.stdout) == (1, ""), result


@pytest.mark.parametrize("name", CASES)
def test_inspect_describes_golden_file(name):
    case = CASES[name]
    result = run_attnd("inspect", "--model", model_argument(case))
    assert result.returncode == 0, result
    layout = "d2l" if name == "additive_scoring" else name.split("_")[0]
    assert re.search(rf": layout {layout}(_\w+)?$", result.stdout, re.M), result.stdout
    if "num_heads" in case["options"]:
        heads = case["options"]["num_heads"]
        assert re.search(rf"^  heads +{heads} of size \d+$", result.stdout, re.M), result.stdout


@pytest.mark.parametrize("engine", ["native", pytest.param("openblas", marks=needs_openblas)])
@pytest.mark.parametrize("name", ["additive_scoring", "d2l_sizes"])
def test_inspect_prints_the_memory_that_serving_takes(name, engine):
    options = ["--model", model_argument(CASES[name]), "--engine", engine]
    inspected, served = run_attnd("inspect", *options), run_attnd("--check-config", *options)
    memory = re.search(r"^  memory +(\d+) bytes when served$", inspected.stdout, re.M)[1]
    assert f" memory={memory}\n" in served.stderr, (memory, served.stderr)


def test_inspect_takes_options_after_the_file():
    path = GOLDEN / "d2l_example.safetensors"
    result = run_attnd("inspect", f"{path},num_heads=5,causal=true")
    assert result.returncode == 0 and result.stdout.startswith(f"{path}: layout d2l\n"), result
    assert re.search("^  heads +5 of size .*^  causal +yes$", result.stdout, re.M | re.S), result
    result = run_attnd("inspect", f"{path},heads=5")
    assert result.returncode == 1 and "unknown key 'heads'" in one_line(result.stderr), result


def test_inspect_names_the_missing_option():
    path = GOLDEN / "d2l_example.safetensors"
    result = run_attnd("inspect", path)
    text = result.stdout + result.stderr
    assert result.returncode == 1 and "num_heads" in text and str(path) in text, result


@pytest.mark.parametrize("kind, data", [
    ("empty", b""), ("short", b"\1\2\3"), ("text", b"this is not a safetensors file at all"),
    ("huge header", b"\xff" * 8 + b"{}"), ("header past the end", b"\x40" + b"\0" * 7 + b"{}")])
def test_inspect_refuses_a_file_that_is_not_safetensors(tmp_path, kind, data):
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    result = run_attnd("inspect", path)
    text = result.stdout + result.stderr
    assert result.returncode == 1 and str(path) in text, result


def test_printed_line_converts_a_file_of_numpy(tmp_path):
    weights = {f"W_{name}.weight": np.eye(4, dtype=np.float32) for name in "qkvo"}
    np.savez(tmp_path / "$my layer.npz", **weights)
    result = run_attnd("inspect", "$my layer.npz", cwd=tmp_path)
    line = one_line(result.stderr).split("convert it: ")[1]
    path = os.path.dirname(sys.executable) + ":" + os.environ["PATH"]
    subprocess.run(line, shell=True, check=True, cwd=tmp_path, env=os.environ | {"PATH": path})
    result = run_attnd("inspect", "$my layer.npz.safetensors,num_heads=2", cwd=tmp_path)
    assert result.returncode == 0 and "layout d2l" in result.stdout, result


@pytest.mark.parametrize("name", ["it's", "\n", "\u00e4", 91 * "x"], ids=ascii)
def test_name_that_a_shell_or_the_line_cannot_take_is_left_to_the_reader(tmp_path, name):
    np.savez(tmp_path / f"{name}.npz", np.eye(4))
    result = run_attnd("inspect", f"{name}.npz", cwd=tmp_path)
    assert one_line(result.stderr).endswith("sys.argv[1] + '.safetensors')\" 'FILE'\n"), result


def test_longest_name_leaves_the_printed_line_whole(tmp_path):
    name = 86 * "x" + ".pth"
    (tmp_path / name).write_bytes(b"PK\3\4" + bytes(300))
    result = run_attnd("inspect", name, cwd=tmp_path)
    assert one_line(result.stderr).endswith(f"+ '.safetensors')\" '{name}'\n"), result


@pytest.mark.parametrize("kind, offsets, shape", [
    ("too long", [0, 400], [2, 2]), ("backwards", [16, 0], [2, 2]),
    ("past the end", [16, 32], [2, 2]),
    ("shape and span disagree", [0, 16], [2, 3]), ("overflow", [0, 16], [2**62, 2**62]),
    ("negative", [0, 16], [-2, -2])])
def test_inspect_names_the_broken_tensor(tmp_path, kind, offsets, shape):
    path = tmp_path / "x.safetensors"
    header = {"W_q.weight": {"dtype": "F32", "shape": shape, "data_offsets": offsets}}
    write_raw(path, json.dumps(header).encode(), b"\0" * 16)
    result = run_attnd("inspect", path)
    text = result.stdout + result.stderr
    assert result.returncode == 1 and "W_q.weight" in text, result


def test_inspect_continues_after_a_broken_file(tmp_path):
    (tmp_path / "x.safetensors").write_bytes(b"")
    good = GOLDEN / "two_stage_heads.safetensors"
    result = run_attnd("inspect", tmp_path / "x.safetensors", good)
    assert result.returncode == 1 and str(good) in result.stdout, result


def test_json_log_has_one_object_on_each_line(start_server):
    server = start_server("--demo", "--log-format", "json", "--log-level", "debug")
    assert server.get("/v1/models/" + "%0a%22x" * 20).status_code == 404
    lines = server.read_log().splitlines()
    assert lines
    events = [json.loads(line) for line in lines]
    assert all(isinstance(event, dict) for event in events), lines
    # Scripts read the address from standard output, collectors of logs from here.
    assert [event["url"] for event in events if event["message"] == "listening"] == [server.url]


def test_closed_standard_output_does_not_crash_the_server(start_server):
    server = start_server("--demo")
    server.process.stdout.close()
    assert server.get("/v2/health/live").status_code == 200
    server.process.terminate()
    assert server.process.wait(60) == 0


@pytest.mark.parametrize("listen", ["127.0.0.1:99999", "foo", "[::1"])
def test_health_of_a_malformed_address_exits_2(listen):
    result = run_attnd("health", "--listen", listen)
    assert result.returncode == 2 and "--listen" in one_line(result.stderr), result


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "[::1]", "[::]", "a..b"])
def test_health_of_an_address_where_nobody_listens_exits_1(host):
    with closed_port() as port:
        result = run_attnd("health", "--listen", f"{host}:{port}")
    assert result.returncode == 1, result
    assert f"no server listens at http://{host}:{port}" in one_line(result.stderr), result


def test_unsupported_precision_is_refused_with_a_remedy():
    for options, remedy in ((["--cpu", "portable"], "precision bf16 needs AMX, or AVX512-BF16"),
                            *[(["--engine", "openblas"], "use precision f32, or engine native")] * HAS_OPENBLAS):
        result = run_attnd("--check-config", "--demo", "--precision", "bf16", *options)
        assert result.returncode == 1 and remedy in result.stderr, result


@pytest.mark.skipif(HAS_OPENBLAS, reason="this attnd was built with OpenBLAS")
def test_engine_openblas_is_refused_where_it_was_left_out():
    for command in ["--check-config", "--demo"], ["inspect", GOLDEN / "d2l_example.safetensors,num_heads=5"]:
        result = run_attnd(*command, "--engine", "openblas")
        assert result.returncode == 1 and "no OpenBLAS; use engine auto or native" in result.stderr, result


@pytest.mark.skipif(HAS_OPENBLAS, reason="this attnd was built with OpenBLAS")
def test_address_space_may_be_limited_where_openblas_was_left_out():
    result = subprocess.run(["prlimit", f"--as={4 << 30}", BINARY, "--demo", "--check-config"], capture_output=True,
                            text=True, timeout=60)
    assert result.returncode == 0, result


def test_model_may_have_its_own_precision():
    model = GOLDEN / "d2l_example.safetensors"
    skip_without("--precision", "bf16")
    result = run_attnd("inspect", "--model", f"half={model},num_heads=5,precision=bf16")
    assert result.returncode == 0, result
    assert re.search("native, (amx|avx512) kernels, bf16", result.stdout)


@needs_openblas
def test_inspect_reports_the_requested_engine():
    result = run_attnd("inspect", "--engine", "openblas", "--cpu", "portable",
                       GOLDEN / "llms_from_scratch_wrapper.safetensors")
    assert result.returncode == 0 and "openblas, portable kernels" in result.stdout, result
