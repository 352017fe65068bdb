# SPDX-License-Identifier: Apache-2.0
"""Web pages: which may send requests, and what their browsers are told."""

import json
import socket

import pytest
import requests

import oip
from compare import assert_problem
from http1 import Connection, get_bytes, post_bytes
from server import BINARY, Server
from test_connections import needs_ipv6, started

APP = "https://app.example"
BODY = json.dumps({"model": "journey", "queries": [[0.43, 0.15, 0.89]]}).encode()
ROUTES = {"/v1/attention": ("POST", "GET"), "/v1/models": ("GET", "HEAD"), "/v2": ("GET",),
          "/v2/models/journey/infer": ("POST",), "/v2/health/live": ("GET",),
          "/openapi.json": ("GET",), "/nowhere": ("GET", "POST", "OPTIONS")}


@pytest.fixture(scope="module")
def app_server():
    """A server that the pages of APP and of a second origin may use."""
    with Server("--demo", "--cors-origin", APP, "--cors-origin", "http://localhost:3000",
                "--max-body", 1048576) as server:
        yield server


def post(server, origin, host=None, url=None):
    headers = {"Content-Type": "application/json", "Origin": origin}
    headers |= {"Host": host} if host else {}
    return requests.post((url or server.url) + "/v1/attention", data=BODY, headers=headers, timeout=60)


def preflight(server, path="/v1/attention", **headers):
    """Headers have underscores in their names here; one that is None is left out."""
    headers = {"Origin": APP, "Access_Control_Request_Method": "POST"} | headers
    return requests.options(server.url + path, timeout=60, headers={
        name.replace("_", "-"): value for name, value in headers.items() if value is not None})


def exchange_bytes(server, data):
    with Connection(server.port) as connection:
        connection.send(data)
        return connection.read_reply()


def cors_headers(response):
    return {name: value for name, value in response.headers.items()
            if name.lower().startswith("access-control-") or name.lower() == "vary"}


def assert_refused(response):
    assert_problem(response, 403, "Origin not allowed", "Origin")
    assert cors_headers(response) == {}


# --- pages that are not allowed ---

@pytest.mark.parametrize("path", ROUTES)
def test_page_of_another_site_is_refused_by_every_route(app_server, path):
    for method in ROUTES[path]:
        response = requests.request(method, app_server.url + path, timeout=60,
                                    headers={"Origin": "https://evil.example"})
        assert response.status_code == 403 and cors_headers(response) == {}
        if method == "HEAD":
            continue
        if path.startswith("/v2"):
            oip.assert_error(response, 403, "Origin not allowed")
        else:
            assert_refused(response)
        assert "https://evil.example" in response.text and "--cors-origin" in response.text


@pytest.mark.parametrize("origin", ["null", "", "https://evil.example", APP + ".", APP + "/",
                                    APP + ":444", "http://app.example", "https://xapp.example",
                                    f"{APP} {APP}", "file://", "http://localhost:3001", "*",
                                    "https://b\xfccher.example"])
def test_only_an_allowed_origin_is_allowed(app_server, origin):
    assert_refused(post(app_server, origin.encode("latin-1")))


@pytest.mark.parametrize("origin", [APP, "HTTPS://APP.example:443"])
def test_no_origin_is_allowed_by_default(demo_server, origin):
    assert_refused(post(demo_server, origin))
    assert preflight(demo_server, Origin=origin).status_code == 403


def test_request_without_origin_may_have_any_host(demo_server):
    for host in ("rebound.example", "localhost:1", "", "[::1"):
        reply = exchange_bytes(demo_server, post_bytes(BODY).replace(b"attnd", host.encode()))
        assert reply.status == 200, host
    assert exchange_bytes(demo_server, b"GET /v2 HTTP/1.0\r\n\r\n").status == 200


def test_refused_body_is_neither_computed_nor_kept(start_server):
    """It is read to its end, as that of other refusals is, and the connection can be used again."""
    server = start_server("--demo", "--max-memory", 1_000_000, "--max-body", 8_000_000)
    data = post_bytes(BODY.ljust(5_000_000), "Origin: https://evil.example")
    with Connection(server.port) as connection:
        connection.send(data)
        assert connection.read_reply().status == 403
        connection.send(post_bytes(BODY))
        assert connection.read_reply().status == 200
    statistics = server.get("/v2/models/journey/stats").json()["model_stats"][0]
    assert statistics["inference_count"] == 1
    assert statistics["inference_stats"]["fail"]["count"] == 0


def test_client_that_waits_for_100_gets_403(demo_server):
    data = post_bytes(BODY, "Origin: https://evil.example", "Expect: 100-continue")
    assert exchange_bytes(demo_server, data[:-len(BODY)]).status == 403


def test_two_origins_are_refused(app_server):
    reply = exchange_bytes(app_server, post_bytes(BODY, f"Origin: {APP}", f"Origin: {APP}"))
    assert (reply.status, reply.json()["field"]) == (400, "Origin")
    assert reply.headers["connection"] == "close"


# --- the server's own page ---

def test_own_page_is_served_over_loopback(demo_server):
    port = demo_server.port
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", "10.1.2.3", "[::1]:81", "LocalHost"):
        for scheme in ("http", "https"):
            response = post(demo_server, f"{scheme}://{host}", host)
            assert response.status_code == 200, (scheme, host)
            assert cors_headers(response) == {}


def test_default_port_may_be_left_out(demo_server):
    for origin, host, status in (("http://[::1]", "[::1]:80", 200),
                                 ("http://127.0.0.1:80", "127.0.0.1", 200),
                                 ("https://localhost", "localhost:443", 200),
                                 ("https://localhost", "localhost:80", 403),
                                 ("http://localhost:443", "localhost", 403)):
        assert post(demo_server, origin, host).status_code == status, (origin, host)


def test_another_port_is_not_the_own_page(demo_server):
    assert_refused(post(demo_server, f"http://127.0.0.1:{demo_server.port + 1}"))
    assert_refused(post(demo_server, "http://127.0.0.1"))
    assert_refused(post(demo_server, f"http://localhost:{demo_server.port}"))  # by another name


@pytest.mark.parametrize("name", ["rebound.example", "localhost.", "x.localhost", "127.0.0.1.",
                                  "app.example"])
def test_rebound_name_is_not_its_own_host_over_loopback(demo_server, name):
    host = f"{name}:{demo_server.port}"
    assert_refused(post(demo_server, f"http://{host}", host))


def test_name_over_loopback_can_be_allowed(app_server):
    response = post(app_server, APP, "app.example")
    assert response.status_code == 200
    assert response.headers["Access-Control-Allow-Origin"] == APP


def test_host_may_be_missing_from_http_1_0(app_server):
    request = f"GET /v2 HTTP/1.0\r\nOrigin: http://127.0.0.1:{app_server.port}\r\n%s\r\n"
    own_host = f"Host: 127.0.0.1:{app_server.port}\r\n"
    assert exchange_bytes(app_server, (request % "").encode()).status == 403
    assert exchange_bytes(app_server, (request % own_host).encode()).status == 200
    reply = exchange_bytes(app_server, f"GET /v2 HTTP/1.0\r\nOrigin: {APP}\r\n\r\n".encode())
    assert reply.status == 200 and reply.headers["access-control-allow-origin"] == APP


def test_host_of_a_whole_url_goes_before_the_header(demo_server):
    for target, status in (("http://10.0.0.1:81/v2", 200), ("HTTP://10.0.0.1:81", 200),
                           ("http://10.0.0.2:81/v2", 403), ("http://evil.example/v2", 403),
                           ("http:///v2", 403)):
        data = get_bytes(target, "Origin: http://10.0.0.1:81")
        assert exchange_bytes(demo_server, data).status == status, target
    data = get_bytes("http://10.0.0.2/v2", "Origin: http://10.0.0.1:81")
    data = data.replace(b"Host: attnd", b"Host: 10.0.0.1:81")
    assert exchange_bytes(demo_server, data).status == 403


def other_address():
    """Returns an address of this machine that is not loopback, or None. Sends nothing."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))
            return probe.getsockname()[0]
    except OSError:
        return None


@pytest.mark.skipif(other_address() is None, reason="this machine has no address but loopback")
def test_any_own_name_counts_over_another_address():
    """The address of the connection decides, not that of the socket that listens."""
    with started(BINARY, "--demo", "--insecure-listen", "--listen", "0.0.0.0:0") as (url, _):
        port = int(url.rsplit(":", 1)[1])
        for address, status in ((other_address(), 200), ("127.0.0.1", 403)):
            response = post(None, "https://attnd.example", "attnd.example",
                            f"http://{address}:{port}")
            assert response.status_code == status, address
        assert post(None, APP, "attnd.example", f"http://{other_address()}:{port}").status_code == 403


@needs_ipv6
@pytest.mark.parametrize("listen, address", [("[::1]", "[::1]"), ("[::]", "127.0.0.1")])
def test_rebound_name_is_refused_over_ipv6_too(listen, address):
    with started(BINARY, "--demo", "--insecure-listen", "--listen", listen + ":0") as (url, _):
        url = f"http://{address}:" + url.rsplit(":", 1)[1]
        assert post(None, url, url=url).status_code == 200
        assert_refused(post(None, "http://rebound.example", "rebound.example", url))


# --- pages that are allowed ---

def test_allowed_page_can_read_replies_and_errors(app_server):
    expected = {"Access-Control-Allow-Origin": APP, "Vary": "Origin",
                "Access-Control-Expose-Headers": "Inference-Header-Content-Length, Retry-After, X-Request-Id, "
                                                 "Server-Timing, ETag, Attnd-Note"}
    response = post(app_server, APP)
    assert response.status_code == 200 and cors_headers(response) == expected
    for path, status in (("/v1/models", 200), ("/nowhere", 404), ("/v1/attention", 405)):
        response = app_server.get(path, headers={"Origin": APP})
        assert response.status_code == status and cors_headers(response) == expected
    assert cors_headers(app_server.get("/v1/models")) == {}


def test_allowed_page_can_read_a_streamed_reply(app_server):
    rows = [[0.5] * 100] * 200
    response = requests.post(app_server.url + "/v1/attention", timeout=60, headers={"Origin": APP},
                             json={"model": "d2l", "queries": rows, "need_weights": True})
    assert response.status_code == 200 and response.headers["Transfer-Encoding"] == "chunked"
    assert response.headers["Access-Control-Allow-Origin"] == APP


def test_allowed_page_may_send_a_large_body(app_server):
    reply = exchange_bytes(app_server, post_bytes(BODY.ljust(1_000_000), f"Origin: {APP}"))
    assert reply.status == 200 and reply.headers["access-control-allow-origin"] == APP


def test_reply_repeats_the_origin_as_it_was_sent(app_server):
    for origin in ("http://localhost:3000", "HTTP://LOCALHOST:3000", APP + ":443"):
        response = post(app_server, origin)
        assert response.status_code == 200
        assert response.headers["Access-Control-Allow-Origin"] == origin


@pytest.mark.parametrize("path", ROUTES)
def test_preflight_of_an_allowed_page_says_what_it_may_send(app_server, path):
    response = preflight(app_server, path, Access_Control_Request_Headers="content-type")
    assert (response.status_code, response.content) == (204, b"")
    assert "Content-Type" not in response.headers
    assert cors_headers(response) == {
        "Access-Control-Allow-Origin": APP, "Vary": "Origin",
        "Access-Control-Allow-Methods": "GET, HEAD, POST, PUT, DELETE",
        "Access-Control-Allow-Headers": "Authorization, Content-Type, Inference-Header-Content-Length, "
                                        "X-Request-Id, traceparent",
        "Access-Control-Max-Age": "7200"}


def test_preflight_of_another_page_is_refused(app_server):
    assert_refused(preflight(app_server, Origin="https://evil.example"))
    assert_refused(preflight(app_server, Origin="null"))


def test_connection_is_kept_after_a_preflight(app_server):
    head = f"OPTIONS /v1/attention HTTP/1.1\r\nHost: attnd\r\nOrigin: {APP}\r\n"
    data = f"{head}Access-Control-Request-Method: POST\r\nContent-Length: 3\r\n\r\nabc".encode()
    with Connection(app_server.port) as connection:
        for _ in range(2):
            connection.send(data + post_bytes(BODY, f"Origin: {APP}"))
            assert connection.read_reply().status == 204
            assert connection.read_reply().status == 200


def test_options_that_is_no_preflight_is_not_allowed(app_server):
    for headers in ({"Origin": None}, {"Access_Control_Request_Method": None},
                    {"Origin": app_server.url}):
        assert_problem(preflight(app_server, **headers), 405, "Method not allowed")
