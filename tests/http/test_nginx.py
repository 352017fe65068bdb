# SPDX-License-Identifier: Apache-2.0
"""nginx with the lines of docs/operate.md before attnd at a Unix socket. tests/release/run brings an nginx along."""

import os
import re
import shutil
import subprocess

import pytest
import requests

from reload import wait_until
from server import ROOT, Server, steady_address

pytestmark = pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")


def configure(folder, socket, port):
    """Writes the lines of the page, without TLS and for other places, into a file, and returns that."""
    (lines,) = re.findall(r"^```nginx\n(.*?)^```$", (ROOT / "docs/operate.md").read_text(), re.M | re.S)
    for old, new in (("/run/attnd/attnd.sock", socket), ("443 ssl", f"127.0.0.1:{port}"),
                     ("    ssl_certificate /etc/nginx/attnd.pem;\n", ""),
                     ("    ssl_certificate_key /etc/nginx/attnd.key;\n", "")):
        assert old in lines
        lines = lines.replace(old, str(new))
    places = "".join(f"{name}_temp_path {folder}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    file = folder / "nginx.conf"
    file.write_text(f"daemon off; pid {folder}/pid; error_log stderr; user root;\nevents {{}}\n"
                    f"http {{\naccess_log off;\n{places}{lines}}}\n")
    return file


@pytest.mark.skipif(os.geteuid() != 0, reason="nginx needs root to be the user whom attnd trusts")
def test_nginx_names_its_clients_and_hides_metrics(tmp_path):
    socket, port = tmp_path / "attnd.sock", steady_address().rsplit(":", 1)[1]
    file = configure(tmp_path, socket, port)
    subprocess.run(["nginx", "-t", "-c", file, "-e", "stderr"], check=True, timeout=60)
    with Server("--demo", "--listen", "127.0.0.1:0", "--listen", f"unix:{socket}", "--trusted-proxy", "unix:0",
                "--access-log", listen=None) as attnd, \
            subprocess.Popen(["nginx", "-c", file, "-e", "stderr"]) as nginx:
        session = requests.Session()
        session.trust_env = False

        def status(path):
            try:
                return session.get(f"http://127.0.0.1:{port}{path}", timeout=60,
                                   headers={"X-Forwarded-For": "192.0.2.1"}).status_code
            except requests.ConnectionError:
                return 0
        wait_until(lambda: status("/v1/models") == 200, "nginx passes requests on")
        assert status("/metrics") == 404
        nginx.terminate()
        wait_until(lambda: "client=127.0.0.1" in attnd.read_log(), "nginx names the client")
        assert "192.0.2.1" not in attnd.read_log()
