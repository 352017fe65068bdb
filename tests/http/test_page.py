# SPDX-License-Identifier: Apache-2.0
"""The page at / as files: headers, encodings, ETags. What it does in a browser is in tests/ui."""

import gzip
import re

import pytest
import requests

from server import BINARY, ROOT, Server
from test_errors import assert_problem

FILES = {"/": "text/html; charset=utf-8", "/ui.css": "text/css; charset=utf-8",
         "/ui.js": "text/javascript; charset=utf-8"}
PATHS = list(FILES)


def get(server, path, encoding=None, method="GET", **headers):
    """Returns the reply, its body as it was sent. `encoding` is the Accept-Encoding."""
    headers |= {"Accept-Encoding": encoding}  # None: not even that of requests
    reply = requests.request(method, server.url + path, headers=headers, stream=True, timeout=60)
    reply.raw_body = reply.raw.read(decode_content=False)
    return reply


def source(path):
    """Returns what the build makes of src/ui, without comments that have lines of their own."""
    if path == "/ui.js":
        text = (ROOT / "src/meson.build").read_text()
        names = re.findall(r"^    '(ui/\w+\.js)',$", text, re.M)
        assert sorted(names) == sorted(f"ui/{file.name}" for file in (ROOT / "src/ui").glob("*.js"))
        text = "".join((ROOT / "src" / name).read_text() for name in names)
    else:
        text = (ROOT / "src/ui" / ("index.html" if path == "/" else path[1:])).read_text()
    license, code = text.split("\n", 1)
    return (license + "\n" + re.sub(r"^ */[*].*?[*]/\n", "", code, flags=re.M | re.S)).encode()


@pytest.mark.parametrize("path", PATHS)
def test_file_is_that_of_the_sources(demo_server, path):
    reply = get(demo_server, path)
    assert reply.status_code == 200 and reply.raw_body == source(path)
    assert reply.headers["Content-Type"] == FILES[path]
    assert "Content-Encoding" not in reply.headers


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("encoding", ["gzip", "br, GZIP ;q=0.5, deflate", "*", "identity;q=0.1, *;q=0.2"])
def test_file_is_compressed_for_a_client_that_accepts_it(demo_server, path, encoding):
    reply = get(demo_server, path, encoding)
    assert reply.headers["Content-Encoding"] == "gzip"
    assert reply.headers["Vary"] == "Accept-Encoding"
    assert gzip.decompress(reply.raw_body) == source(path)
    assert len(reply.raw_body) < 0.4 * len(source(path))


@pytest.mark.parametrize("encoding", ["", "identity", "br", "gzip;q=0", "gzip; q=0.000, *",
                                      "*;q=0", "gzipped", "x, gzi"])
def test_file_is_plain_for_a_client_that_does_not_accept_gzip(demo_server, encoding):
    reply = get(demo_server, "/ui.js", encoding)
    assert "Content-Encoding" not in reply.headers and reply.raw_body == source("/ui.js")


def test_page_takes_no_memory_of_requests():
    """Of 100 KiB, 32 KiB are left for requests. All clients share the files."""
    with Server("--demo", "--max-memory", 100 << 10) as server:
        for path in PATHS:
            assert get(server, path).raw_body == source(path)
            assert get(server, path, "gzip").status_code == 200


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("encoding", ["gzip", "identity"])
def test_known_file_is_not_sent_again(demo_server, path, encoding):
    whole = get(demo_server, path, encoding).headers
    etag = whole["ETag"]
    for known in (etag, f"W/{etag}", f'"other", {etag}', "*"):
        reply = get(demo_server, path, encoding, **{"If-None-Match": known})
        assert (reply.status_code, reply.raw_body, reply.headers["ETag"]) == (304, b"", etag)
        assert "Content-Type" not in reply.headers
        assert reply.headers["Content-Length"] == whole["Content-Length"]
    for unknown in ('"other"', etag[:-2] + '"', ""):
        assert get(demo_server, path, encoding, **{"If-None-Match": unknown}).status_code == 200


def test_each_form_of_each_file_has_an_etag_of_its_own(demo_server):
    etags = {get(demo_server, path, encoding).headers["ETag"]
             for path in PATHS for encoding in ("gzip", "identity")}
    assert len(etags) == 6


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("encoding", ["gzip", "identity"])
def test_head_has_the_headers_of_get(demo_server, path, encoding):
    replies = [get(demo_server, path, encoding, method) for method in ("GET", "HEAD")]
    assert replies[1].raw_body == b""
    headers = [{**reply.headers, "Date": None, "X-Request-Id": None} for reply in replies]
    assert headers[0] == headers[1]


@pytest.mark.parametrize("path", PATHS)
def test_file_may_load_nothing_from_elsewhere(demo_server, path):
    headers = get(demo_server, path).headers
    policy = dict(item.split(" ", 1) for item in headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "Content-Security-Policy" not in demo_server.get("/v1/models").headers


def test_page_has_no_absolute_link_and_no_markup_from_texts():
    html, script = source("/").decode(), source("/ui.js").decode()
    for link in re.findall(r'(?:href|src|action)="([^"]*)"', html):
        assert re.match(r"(data:|#|[\w./]+$)", link) and not link.startswith("/"), link
    assert not re.search(r"\b(style|on\w+)=", html)
    assert not re.search(r"innerHTML|outerHTML =|insertAdjacentHTML|document\.write", script)
    assert not re.search(r"\beval\b|new Function", script)
    assert not re.search(r"""["'`]/(v1|v2|ui)""", script)


def test_other_methods_are_refused(demo_server):
    reply = requests.post(demo_server.url + "/", timeout=60)
    assert_problem(reply, 405, "Method not allowed")
    assert reply.headers["Allow"] == "GET, HEAD"


def test_no_ui_turns_the_page_off():
    with Server("--demo", "--no-ui") as server:
        for path in PATHS:
            problem = assert_problem(server.get(path), 404, "Unknown route")
            assert "--no-ui" in problem["detail"]
            assert "Content-Security-Policy" not in server.get(path).headers
        assert server.get("/v1/models").status_code == 200


def test_page_is_small_in_the_binary():
    size = sum(len(gzip.compress(source(path), mtime=0)) for path in PATHS)
    assert size < 60_000 and BINARY.read_bytes().count(b"\x1f\x8b\x08") >= 3
