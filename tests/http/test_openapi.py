# SPDX-License-Identifier: Apache-2.0
"""docs/openapi.json is what the daemon serves, is valid, and is true. Every example is run, and
schemathesis sends thousands of requests made from the schemas, right and wrong ones.

    SCHEMATHESIS_SECONDS    length of each of three runs of schemathesis (3)"""

import copy
import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import requests
from jsonschema import Draft202012Validator

from captures import capture
from checkpoints import slow_request, write_slow_layer
from http1 import Connection, get_bytes, post_bytes
from server import ROOT, Server
from stored import delete, put

FILE = ROOT / "docs/openapi.json"
DOCUMENT = json.loads(FILE.read_text())
SECONDS = int(os.environ.get("SCHEMATHESIS_SECONDS", 3))
# Keys of models and of statistics whose values depend on the machine or on time.
MACHINE_KEYS = {"engine", "loaded", "cpu", "memory", "created", "last_use", "expires", "last_inference", "inference_count",
                "execution_count", "batch_stats", "count", "ns"}
# Examples that need more than one request; each has its own test.
STAGED_EXAMPLES = {"queue_full", "out_of_memory", "draining", "request_timeout",
                   "too_many_requests", "too_many_oip_requests", "unauthorized", "oip_unauthorized",
                   "capture", "capture_list", "stored_row", "stored_heads", "unknown_layer", "unknown_capture",
                   "capture_exists", "capture_name", "length_required", "capture_too_large", "captures_full"}


def resolve(item):
    """Returns what a {"$ref": "#/a/b"} refers to, and any other item itself."""
    if "$ref" not in item:
        return item
    found = DOCUMENT
    for key in item["$ref"].split("/")[1:]:
        found = found[key]
    return found


def assert_conforms(value, schema):
    Draft202012Validator(schema | {"components": DOCUMENT["components"]}).validate(value)


def collect_examples():
    """Returns every example of a reply: (path, method, operation, status, media type, the content
    with its schema and examples, name of the example). Replies in components/responses that no
    operation refers to have None as path, method and operation."""
    seen = []

    def add(path, method, operation, status, response):
        for media, content in resolve(response).get("content", {}).items():
            for name in content.get("examples", {}):
                if not any(s[5] is content and s[6] == name for s in seen):
                    seen.append((path, method, operation, status, media, content, name))

    for path, item in DOCUMENT["paths"].items():
        for method in sorted(item.keys() & {"get", "post", "put", "delete"}):
            for status, response in item[method]["responses"].items():
                add(path, method, item[method], int(status), response)
    for response in DOCUMENT["components"]["responses"].values():
        for content in response.get("content", {}).values():
            for example in content.get("examples", {}).values():
                add(None, None, None, example["value"].get("status"), response)
    return seen


EXAMPLES = collect_examples()
PLAIN = [example for example in EXAMPLES if example[6] not in STAGED_EXAMPLES]


def example_named(name):
    return next(content["examples"][name]["value"] for *_, content, n in EXAMPLES if n == name)


@pytest.fixture(scope="module")
def servers():
    """A function that returns attnd --demo with more options; each set is started once."""
    with ExitStack() as stack:
        running = {}

        def get(options=()):
            key = tuple(options)
            if key not in running:
                running[key] = stack.enter_context(Server("--demo", *key))
            return running[key]

        yield get


def test_served_document_is_the_file(servers):
    reply = servers().get("/openapi.json")
    assert reply.status_code == 200 and reply.content == FILE.read_bytes()
    assert reply.headers["Content-Type"] == "application/json"
    head = requests.head(servers().url + "/openapi.json", timeout=60)
    assert int(head.headers["Content-Length"]) == FILE.stat().st_size
    assert reply.headers["Server"] == "attnd/" + DOCUMENT["info"]["version"]


def test_document_is_valid():
    import openapi_spec_validator  # no other test needs it, and each process of pytest imports this file

    openapi_spec_validator.validate(DOCUMENT)
    for schema in DOCUMENT["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_document_has_the_routes_of_the_daemon():
    """Compares the document with the table in routes.c."""
    text = (ROOT / "src/http/routes.c").read_text()
    macros = dict(re.findall(r"#define (\w+) +(.+)", text))

    def string(tokens):
        """Joins neighbouring strings and macros, as the compiler does."""
        return "".join(word.strip('"') if word[0] == '"' else string(macros[word])
                       for word in re.findall(r'"[^"]*"|\w+', tokens))

    routes = set()
    for path, allow in re.findall(r"^    \{([^,]+), (\w+|\"[^\"]+\"), \w+, \w+,\s+[\w |]+\},$", text, re.M):
        path = re.sub("(?<=.)/$", "/{name}", string(path)).replace("*", "{name}", 1)
        routes |= {(method.lower(), path.replace("*", "{version}"))
                   for method in string(allow).split(", ")}
    assert len(routes) > 10
    assert routes == {(method, path) for path, item in DOCUMENT["paths"].items()
                      for method in item.keys() - {"parameters"}}


def titles_of_page(name):
    """Returns the (status, title) pairs in the table of errors of a page."""
    rows = re.findall(r"^\| (\d{3}) \| (`.*?`) \|", (ROOT / "docs" / name).read_text(), re.M)
    return {(int(status), title) for status, titles in rows for title in re.findall("`(.+?)`", titles)}


def test_errors_are_the_same_in_catalogue_pages_and_document():
    text = (ROOT / "src/wire/problem.inc").read_text()
    catalogue = {(int(status), title) for status, title
                 in re.findall(r'^WIRE_ERROR\(\w+, (\d{3}), "([^"]+)"\)$', text, re.M)}
    native = titles_of_page("protocol.md")
    assert len(catalogue) > 30
    assert catalogue == native | titles_of_page("protocol-v2.md")

    described = set()
    for status, response in [(int(status), response) for item in DOCUMENT["paths"].values()
                             for method in item.keys() & {"get", "post", "put", "delete"}
                             for status, response in item[method]["responses"].items()] + [
            (404, DOCUMENT["components"]["responses"]["UnknownRoute"]),
            (405, DOCUMENT["components"]["responses"]["MethodNotAllowed"])]:
        content = resolve(response).get("content", {}).get("application/problem+json")
        if content:
            described |= {(status, title)
                          for title in content["schema"]["allOf"][1]["properties"]["title"]["enum"]}
    schemas = DOCUMENT["components"]["schemas"]
    assert described == native
    assert set(schemas["Problem"]["properties"]["title"]["enum"]) == {title for _, title in native}
    pattern = re.fullmatch(r"\^\((.+)\): \.", schemas["OipError"]["properties"]["error"]["pattern"])
    assert set(pattern.group(1).split("|")) == {title for _, title in catalogue}


# --- examples ---

def assert_same(got, expected, path=""):
    """Compares all but the last digits of a float32 and the values of MACHINE_KEYS."""
    if isinstance(expected, dict):
        assert got.keys() == expected.keys(), path
        for key in expected.keys() - MACHINE_KEYS:
            assert_same(got[key], expected[key], f"{path}.{key}")
    elif isinstance(expected, list) and path.endswith((".outputs", ".attention_weights", ".data")) and all(
            isinstance(item, (list, float)) for item in expected):
        flat_got, flat_expected = list(flatten(got)), list(flatten(expected))
        assert np.allclose(flat_got, flat_expected, rtol=0, atol=1e-6), path
    elif isinstance(expected, list):
        assert len(got) == len(expected), path
        for i, item in enumerate(expected):
            assert_same(got[i], item, f"{path}[{i}]")
    elif isinstance(expected, float):
        assert got == pytest.approx(expected, abs=1e-6), path
    else:
        assert got == expected, path


def flatten(item):
    """Yields the length of each nested list and then its numbers, so that shapes are compared."""
    if isinstance(item, list):
        yield float(len(item))
        for inner in item:
            yield from flatten(inner)
    else:
        yield item


def send_example(servers, path, method, operation, example, name):
    request = example.get("x-request")
    path = path and path.replace("{name}", "journey").replace("{version}", "1")
    server = servers(request.get("options", ()) if request else ())
    if request is None and method == "post":
        content = resolve(operation["requestBody"])["content"]["application/json"]
        request = {"body": json.dumps(content["examples"][name]["value"])}
    request = request or {"path": path}
    json_type = {"Content-Type": "application/json"} if "body" in request else {}
    return requests.request(request.get("method", method), server.url + request.get("path", path),
                            data=request.get("body"), headers=request.get("headers", json_type),
                            timeout=60)


def assert_documented(reply, status, media, content, response):
    assert reply.status_code == status, reply.text
    assert reply.headers["Content-Type"] == media
    assert_conforms(reply.json(), content["schema"])
    for name, header in response.get("headers", {}).items():
        if header.get("required"):
            value = reply.headers[name]
            assert_conforms(int(value) if value.isdigit() else value, header["schema"])


@pytest.mark.parametrize("example", PLAIN, ids=[f"{e[3]}-{e[6]}" for e in PLAIN])
def test_example_is_what_the_daemon_replies(servers, example):
    path, method, operation, status, media, content, name = example
    assert_conforms(content["examples"][name]["value"], content["schema"])
    reply = send_example(servers, path, method, operation, content["examples"][name], name)
    responses = [*DOCUMENT["components"]["responses"].values(),
                 *map(resolve, operation["responses"].values() if operation else [])]
    response, = {id(r): r for r in responses if r.get("content", {}).get(media) is content}.values()
    assert_documented(reply, status, media, content, response)
    assert_same(reply.json(), content["examples"][name]["value"])


def test_every_example_of_a_request_conforms_and_has_its_reply():
    posts = [item["post"] for item in DOCUMENT["paths"].values() if "post" in item]
    for post in posts:
        content = resolve(post["requestBody"])["content"]["application/json"]
        examples = content.get("examples", {})
        for example in examples.values():
            assert_conforms(example["value"], content["schema"])
        reply = resolve(post["responses"]["200"]).get("content", {}).get("application/json", {})
        assert examples.keys() == reply.get("examples", {}).keys()
    assert len(posts) >= 4
    titles = {content["examples"][name]["value"]["title"] for *_, content, name in EXAMPLES
              if "title" in content["examples"][name]["value"]}
    every = set(DOCUMENT["components"]["schemas"]["Problem"]["properties"]["title"]["enum"])
    assert every - titles <= {"Bad request"}  # malformed: see test_framing.py


def assert_problem_example(reply, name):
    assert reply.json() == example_named(name)
    responses = DOCUMENT["paths"]["/v1/attention"]["post"]["responses"]
    media = "application/problem+json"
    assert_documented(reply, 503, media, resolve(responses["503"])["content"][media],
                      resolve(responses["503"]))


def test_full_queue_gets_its_example(start_server, tmp_path):
    write_slow_layer(tmp_path / "slow.safetensors")
    server = start_server("--model", f"slow={tmp_path}/slow.safetensors", "--workers", 1,
                          "--queue", 1)
    with ThreadPoolExecutor(12) as clients:
        replies = list(clients.map(lambda seed: server.attention(slow_request(seed)), range(12)))
    refused = [reply for reply in replies if reply.status_code != 200]
    assert refused
    for reply in refused:
        assert_problem_example(reply, "queue_full")


def test_lack_of_memory_gets_its_example(start_server):
    """A body that stops arriving holds 600 kB. It is dropped for one of 500 kB."""
    server = start_server("--demo", "--max-memory", 1_000_000)
    body = json.dumps({"model": "journey", "queries": [[1, 2, 3]]}).encode()
    with Connection(server.port) as slow, Connection(server.port) as quick:
        request = post_bytes(body.ljust(650_000))
        slow.send(request[:600_000])
        time.sleep(0.5)
        quick.send(post_bytes(body.ljust(500_000)))
        assert quick.read_reply().status == 200
        slow.send(request[600_000:])
        reply = slow.read_reply()
        assert (reply.status, reply.json()) == (503, example_named("out_of_memory"))


def test_headers_that_do_not_end_get_their_example(start_server):
    server = start_server("--demo", "--header-timeout", 1)
    with Connection(server.port) as connection:
        connection.send(b"GET /v1/models HTTP/1.1\r\n")
        reply = connection.read_reply()
        assert (reply.status, reply.json()) == (408, example_named("request_timeout"))


def test_client_beyond_its_limit_gets_its_examples(start_server):
    server = start_server("--demo", "--max-per-client", 1)
    with Connection(server.port) as unfinished:
        unfinished.send(post_bytes(b"{}")[:-1])
        time.sleep(0.2)
        for path, name in (("/v1/models", "too_many_requests"), ("/v2", "too_many_oip_requests")):
            reply = server.get(path)
            assert (reply.status_code, reply.json()) == (429, example_named(name))


def test_missing_and_unknown_keys_give_their_examples(start_server, tmp_path):
    path = tmp_path / "keys"
    path.write_text("alice:0123456789abcdef\n")
    path.chmod(0o600)
    server = start_server("--demo", "--api-key-file", path)
    for name, route, headers in (("unauthorized", "/v1/models", {}),
                                 ("oip_unauthorized", "/v2", {"Authorization": "Bearer wrong"})):
        reply = server.get(route, headers=headers)
        status, media, content = next((status, media, content) for _, _, _, status, media, content, n
                                      in EXAMPLES if n == name)
        response = DOCUMENT["components"]["responses"]["OipUnauthorized" if "oip" in name
                                                       else "Unauthorized"]
        assert_documented(reply, status or 401, media, content, response)
        assert reply.json() == example_named(name)
        assert reply.headers["WWW-Authenticate"] == response["headers"]["WWW-Authenticate"]["example"]


def test_operations_that_need_no_key_are_those_that_are_open(start_server, tmp_path):
    path = tmp_path / "keys"
    path.write_text("alice:0123456789abcdef\n")
    path.chmod(0o600)
    server = start_server("--demo", "--api-key-file", path)
    for route, item in DOCUMENT["paths"].items():
        for method in item.keys() & {"get", "head", "post"}:
            reply = requests.request(method, server.url + route.format(name="journey", version="1"),
                                     timeout=60)
            needs_key = item[method].get("security") != []
            assert (reply.status_code == 401) == needs_key == ("401" in item[method]["responses"])


def test_draining_server_gives_its_example(start_server):
    server = start_server("--demo", "--grace", 20)
    body = json.dumps({"model": "journey", "queries": [[1, 2, 3]]}).encode()
    with Connection(server.port) as unfinished, Connection(server.port) as kept:
        unfinished.send(b"POST /v1/attention HTTP/1.1\r\nHost: attnd\r\nContent-Type: application/"
                        b"json\r\nContent-Length: %d\r\n\r\n" % len(body) + body[:-1])
        kept.send(get_bytes("/v2/health/ready"))
        assert kept.read_reply().status == 200
        server.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:  # until the signal has arrived
            kept.send(get_bytes("/v2/health/ready"))
            reply = kept.read_reply()
            if reply.status != 200:
                break
        assert reply.status == 503 and reply.json() == example_named("draining")
        content = DOCUMENT["paths"]["/v2/health/ready"]["get"]["responses"]["503"]["content"]
        assert_conforms(reply.json(), content["application/json"]["schema"])
        unfinished.send(body[-1:])
        assert unfinished.read_reply().status == 200
    server.wait()


def test_captures_get_their_examples(start_server):
    """In the order in which they were made: what is kept depends on what came before."""
    rows = np.array([[[1, 0], [0, 1]], [[1, 1], [2, 0]]], np.float32)
    keys = np.array([[[1, 0]], [[0, 1]]], np.float32)
    two = capture.to_safetensors({"0.queries": rows, "0.keys": keys, "1.queries": rows, "1.keys": keys},
                                 {"layers": '["0", "1"]', "0.causal": "true"})
    other = capture.to_safetensors({"0.keys": keys}, {"layers": '["0"]'})
    server = start_server("--capture-memory", "256KiB")
    post = DOCUMENT["paths"]["/v1/captures/{name}/attention"]["post"]
    question = post["requestBody"]["content"]["application/json"]["examples"]["stored_row"]["value"]
    for name, method, path, options in [
            ("capture", "PUT", "/text", {"data": two}),
            ("capture_list", "GET", "", {}),
            ("stored_row", "POST", "/text/attention", {"json": question}),
            ("stored_heads", "POST", "/text/heads", {"json": {"layer": 0}}),
            ("unknown_layer", "POST", "/text/attention", {"json": {"layer": 7}}),
            ("unknown_capture", "GET", "/other", {}),
            ("capture_exists", "PUT", "/text", {"data": other}),
            ("capture_name", "PUT", "/a*b", {"data": other}),
            ("length_required", "PUT", "/a", {"data": iter([other])}),
            ("capture_too_large", "PUT", "/a", {"data": bytes(131073)}),
            ("captures_full", "PUT", "/c", {"data": other})]:
        if name == "captures_full":  # four other holders have a capture each
            assert delete(server, "text").status == 204
            for i in range(4):
                assert put(server, f"b{i}", other, source=f"127.0.0.{i + 2}").status == 201
        reply = requests.request(method, server.url + "/v1/captures" + path, timeout=60, **options)
        status, media, content, response = next(
            (status, media, content, resolve(operation["responses"][str(status)])) for _, _, operation, status, media,
            content, found in EXAMPLES if found == name)
        assert_documented(reply, status, media, content, response)
        assert_same(reply.json(), example_named(name))


# --- schemathesis ---

def run_schemathesis(server, document, seconds, *options):
    """Runs it until it has sent some requests: a busy machine takes its time for them."""
    sent, seed = 0, int(os.environ["PROPERTY_SEED"])
    while sent <= 100:
        command = [Path(sys.executable).with_name("schemathesis"), "run", document, "--url",
                   server.url, "--max-time", str(seconds), "--max-examples", "50", "--seed", str(seed),
                   "--generation-database", "none", "--no-color", "--continue-on-failure", *options]
        result = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 120,
                                cwd=Path(document).parent)
        assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
        generated = re.search(r"([\d,]+) generated", result.stdout)  # None: it had no time for any
        sent += int(generated[1].replace(",", "")) if generated else 0
        seed += 1
    assert server.is_alive()


@pytest.mark.timeout(SECONDS + 300)
def test_schemathesis_finds_no_undocumented_reply(servers, tmp_path):
    """All checks but two are made. Sizes in a request that conforms may still disagree with each
    other or with the model, which a schema cannot express. A request may ask for its result within
    a nanosecond and then gets 504. A 5xx that is not documented is still found."""
    path = tmp_path / "openapi.json"
    path.write_bytes(servers().get("/openapi.json").content)
    run_schemathesis(servers(), path, SECONDS, "--checks", "all", "--exclude-checks",
                     "positive_data_acceptance,not_a_server_error")


@pytest.mark.timeout(SECONDS + 300)
def test_schemathesis_request_gets_a_result_exactly_if_it_fits_the_model(servers, tmp_path):
    """Here the schemas express all sizes, so a request that conforms gets a result, and one with a
    defect is refused: self-attention of `journey`, 3 wide, 2 heads, at most 6 tokens."""
    document = copy.deepcopy(DOCUMENT)
    schemas = document["components"]["schemas"]
    schemas["Row"] |= {"minItems": 3, "maxItems": 3}
    schemas["Rows"] |= {"maxItems": 6}
    request = schemas["AttentionRequest"]
    request["required"] = ["model", "queries"]
    request["properties"] = {key: request["properties"][key]
                             for key in ("queries", "causal", "need_weights", "head_mask")}
    request["properties"]["head_mask"] |= {"minItems": 2, "maxItems": 2}
    request["properties"]["model"] = {"const": "journey"}
    content = document["paths"]["/v1/attention"]["post"]["requestBody"]["content"]
    del content["application/vnd.safetensors"], content["application/octet-stream"]
    del content["application/json"]["examples"]
    schemas["AttentionReply"] = {"type": "object"}  # its rows are 2 wide; checked above
    path = tmp_path / "fitting.json"
    path.write_text(json.dumps(document))
    # 422 is for numbers near the largest float32.
    (tmp_path / "schemathesis.toml").write_text(
        "[checks]\npositive_data_acceptance.expected-statuses = [200, 422]\n")
    run_schemathesis(servers(), path, SECONDS, "--checks", "all", "--include-path",
                     "/v1/attention")


@pytest.mark.timeout(SECONDS + 300)
def test_schemathesis_inference_gets_a_result_exactly_if_it_fits_the_model(servers, tmp_path):
    """As above for infer: one token of `journey` in JSON, with any optional members."""
    document = copy.deepcopy(DOCUMENT)
    schemas = document["components"]["schemas"]
    content = document["components"]["requestBodies"]["Infer"]["content"]
    del content["application/octet-stream"], content["application/json"]["examples"]
    number = {"$ref": "#/components/schemas/Number"}
    row = {"type": "array", "minItems": 3, "maxItems": 3, "items": number}
    schemas["InferInput"] = {
        "type": "object", "required": ["name", "shape", "datatype", "data"],
        "additionalProperties": False,
        "properties": {"name": {"const": "queries"}, "shape": {"const": [1, 3]},
                       "datatype": {"enum": ["FP32", "FP16", "FP64"]},
                       "data": {"anyOf": [row, {"type": "array", "minItems": 1, "maxItems": 1,
                                                "items": row}]}}}
    request = schemas["InferRequest"]["properties"]
    request["inputs"] |= {"maxItems": 1}
    request["outputs"] = {"type": ["array", "null"], "maxItems": 1,
                          "items": {"type": "object", "required": ["name"],
                                    "additionalProperties": False,
                                    "properties": {"name": {"const": "outputs"}}}}
    request["parameters"]["properties"] = {"causal": {"type": ["boolean", "null"]}}
    route = document["paths"]["/v2/models/{name}/infer"]
    # A name that it makes up may have a '#', which it does not escape: the rest of the path is gone.
    del route["parameters"], route["post"]["parameters"]
    document["paths"] = {"/v2/models/journey/infer": route}
    path = tmp_path / "fitting.json"
    path.write_text(json.dumps(document))
    (tmp_path / "schemathesis.toml").write_text(
        "[checks]\npositive_data_acceptance.expected-statuses = [200, 422]\n")
    run_schemathesis(servers(), path, SECONDS, "--checks", "all")
