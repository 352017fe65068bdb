# SPDX-License-Identifier: Apache-2.0
"""packages_test.py FOLDER: installs, starts, upgrades and purges the packages in FOLDER as an
administrator would, in a container of BASE_IMAGE where systemd runs. The tests run in the order of
this file. packages.sh runs it."""

import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tempfile

from deploy_test import make_secrets
from engine import ROOT, output_of, wait_for

ENVIRONMENT = "/etc/attnd/environment"
REQUEST = '{"model":"own","queries":[[0.43,0.15,0.89],[0.55,0.87,0.66]]}'
APT = "DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends -o Dpkg::Use-Pty=0 "
# As a machine, and unlike a slim image: services start, and documentation is unpacked. systemd gets
# control groups of version 2, which that of Debian 13 needs, and shared mounts for LoadCredential.
BOOT = f"""
rm -f /usr/sbin/policy-rc.d
sed -i /path-exclude/d /etc/dpkg/dpkg.cfg.d/*
apt-get -qq update
{APT} install systemd systemd-sysv bash-completion curl zsh >/dev/null
umount --recursive /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount --make-rshared /
exec /sbin/init
"""
# What systemd needs for that, and for the sandboxes of units.
PRIVILEGES = ["--cap-add=SYS_ADMIN", "--security-opt=seccomp=unconfined", "--security-opt=apparmor=unconfined",
              "--cgroupns=private", "--env=container=docker"]
# Presses the tabulator in a shell of its own, which prints the command line instead of running it.
ZSH = r"""
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell 'autoload -U compinit; compinit -D -u; attnd() { print "ran attnd $*"; }; print rea""dy'
zpty -r shell shown '*ready*'
zpty -w shell $'attnd inspect --log-l\tdeb\t'
zpty -r shell shown $'*ran*\n'
print -r -- $shown
"""
# Clients that connect anew for each request, while the service restarts three times.
RESTARTS = """
(for _ in 1 2 3; do systemctl reset-failed attnd; systemctl restart attnd; done; touch /tmp/restarted) &
until [ -e /tmp/restarted ]; do
    curl -s -o /dev/null -w '%{http_code}\\n' http://127.0.0.1:8080/v2/health/live
done
for _ in {1..20}; do curl -s -o /dev/null -w '%{http_code}\\n' http://127.0.0.1:8080/v2/health/live; done
rm /tmp/restarted
"""


class Machine:
    """`with Machine(folder) as machine:` runs systemd in a container and removes it at the end."""

    def __init__(self, folder):
        self.name = f"attnd-packages-{os.getpid()}"
        self.folder = folder

    def __enter__(self):
        options = os.environ.get("CONTAINER_OPTIONS", "").split()
        output_of("docker", "run", "--detach", "--name", self.name, *PRIVILEGES, *options,
                  "--volume", f"{self.folder}:/packages:ro", os.environ["BASE_IMAGE"], "sh", "-euc", BOOT)

        def is_up():
            return self.run("systemctl is-system-running", check=False) in ("running", "degraded")
        if not wait_for(is_up, 180):
            log = output_of("docker", "logs", "--tail", "20", self.name, check=False)
            self.__exit__()
            raise RuntimeError(f"systemd does not start: {log}")
        return self

    def __exit__(self, *_):
        output_of("docker", "rm", "--force", "--volumes", self.name, check=False)

    def run(self, script, check=True, timeout=120):
        """Runs a script of bash inside and returns what it prints."""
        return output_of("docker", "exec", self.name, "bash", "-c", script, check=check, timeout=timeout)

    def ask(self, url, *options):
        """Returns the status and the body that attnd replies, with status 0 where nothing does."""
        reply = self.run(shlex.join(["curl", "-s", "-k", "-w", "\n%{http_code}", url, *options]) + " || true")
        body, _, status = reply.rpartition("\n")
        return int(status), body

    def copy(self, source, target):
        output_of("docker", "cp", source, f"{self.name}:{target}")

    def configure(self, *lines):
        text = "".join(f"{line}\n" for line in lines)
        self.run(f"printf %s {shlex.quote(text)} >{ENVIRONMENT} && "
                 "systemctl reset-failed attnd && systemctl restart attnd")  # without its limit of starts

    def main_pid(self):
        return self.run("systemctl show --value --property=MainPID attnd")

    def make_next(self, change="true"):
        """Packs the files of attnd once more, as a newer version, after a change of them."""
        self.run("rm -rf /tmp/next && dpkg-deb --raw-extract /packages/attnd_*.deb /tmp/next && cd /tmp/next && "
                 f"version=$(dpkg-query -Wf '${{Version}}' attnd) && "
                 f"sed -i \"s/^Version: .*/Version: $version+next/\" DEBIAN/control && {change} && "
                 "dpkg-deb --build /tmp/next /tmp/next.deb")


def test_service_runs_after_the_installation(machine):
    machine.run(APT + "install /packages/attnd_*.deb /packages/libattnd*.deb", timeout=300)
    assert machine.run("systemctl is-active attnd") == "active"
    assert machine.run("systemctl is-enabled attnd") == "enabled"
    user = int(machine.run(f"stat -c %u /proc/{machine.main_pid()}"))
    assert 61184 <= user <= 65519, f"user {user} is no dynamic one"
    status, body = machine.ask("http://127.0.0.1:8080/v2/health/ready")
    assert status == 503, f"{status} without a model: {body}"


def test_model_in_the_folder_is_served_after_a_reload(machine):
    machine.copy(f"{ROOT}/src/weights/demo/journey.safetensors", "/etc/attnd/models/own.safetensors")
    machine.run("systemctl reload attnd")
    url = "http://127.0.0.1:8080/v1/attention"

    def is_served():
        return machine.ask(url, "-H", "Content-Type: application/json", "-d", REQUEST)[0] == 200
    assert wait_for(is_served, 20), machine.ask(url, "-d", REQUEST)
    _, body = machine.ask(url, "-H", "Content-Type: application/json", "-d", REQUEST)
    outputs = [[round(x, 4) for x in row] for row in json.loads(body)["outputs"]]
    assert outputs == [[0.3190, 0.4858], [0.2943, 0.3897]]
    machine.run("rm /etc/attnd/models/own.safetensors")


def test_unit_leaves_little_exposed(machine):
    report = machine.run("systemd-analyze security --offline=yes --no-pager --threshold=15 attnd.service")
    print("    ", re.search(r"Overall exposure level.*", report)[0])


def test_keys_and_certificate_come_by_load_credential(machine):
    key = "0123456789abcdef"
    with tempfile.TemporaryDirectory() as folder:
        make_secrets(folder, key)
        machine.copy(folder, "/etc/attnd/secrets")
    machine.run("chown -R 0:0 /etc/attnd/secrets && chmod 700 /etc/attnd/secrets && chmod 600 /etc/attnd/secrets/* && "
                "install -D -m 644 /usr/share/doc/attnd/examples/attnd-secrets.conf "
                "/etc/systemd/system/attnd.service.d/secrets.conf && systemctl daemon-reload")
    machine.configure("ATTND_DEMO=true")
    url = "https://127.0.0.1:8080/v1/models"
    assert machine.ask(url)[0] == 401
    assert machine.ask(url, "-H", f"Authorization: Bearer {key}")[0] == 200
    machine.run("rm -r /etc/attnd/secrets /etc/systemd/system/attnd.service.d && systemctl daemon-reload")


def test_upgrade_of_a_running_service_keeps_its_configuration(machine):
    machine.configure("ATTND_DEMO=true", "ATTND_LISTEN=127.0.0.1:8123")
    configured, pid = machine.run(f"cat {ENVIRONMENT}"), machine.main_pid()
    assert machine.ask("http://127.0.0.1:8123/v2/health/ready")[0] == 200
    machine.make_next()
    machine.run(APT + "install /tmp/next.deb")
    assert machine.run("dpkg-query -Wf '${Version}' attnd").endswith("+next")
    assert machine.run(f"cat {ENVIRONMENT}") == configured
    assert machine.main_pid() not in ("0", pid), "the old program still runs"
    assert machine.ask("http://127.0.0.1:8123/v2/health/ready")[0] == 200


def test_options_of_an_installation_by_hand_are_kept_without_a_question(machine):
    configured = machine.run(f"cat {ENVIRONMENT}")
    machine.run(APT + f"purge attnd && mkdir -p /etc/attnd && printf %s {shlex.quote(configured)} >{ENVIRONMENT}")
    machine.run(APT + "install /packages/attnd_*.deb </dev/null", timeout=300)
    assert machine.run(f"cat {ENVIRONMENT}") == configured
    assert machine.ask("http://127.0.0.1:8123/v2/health/ready")[0] == 200


def test_drop_in_of_the_page_opens_a_port_below_1024(machine):
    page = pathlib.Path(ROOT, "docs/operate.md").read_text()
    (lines,) = re.findall(r"^```ini\n(.*?)^```$", page, re.M | re.S)
    machine.run("mkdir -p /etc/systemd/system/attnd.service.d && "
                f"printf %s {shlex.quote(lines)} >/etc/systemd/system/attnd.service.d/override.conf && systemctl daemon-reload")
    machine.configure("ATTND_DEMO=true", "ATTND_LISTEN=127.0.0.1:443")
    assert machine.ask("http://127.0.0.1:443/v2/health/ready")[0] == 200
    machine.run("rm -r /etc/systemd/system/attnd.service.d && systemctl daemon-reload")


def test_socket_of_systemd_refuses_nobody_while_attnd_restarts(machine):
    assert machine.run("systemctl is-enabled attnd.socket", check=False) == "disabled"
    machine.configure("ATTND_DEMO=true", "ATTND_LISTEN=127.0.0.1:8080")
    machine.run("systemctl stop attnd && systemctl enable --now attnd.socket attnd")
    pid = machine.main_pid()
    statuses = machine.run(RESTARTS, timeout=300).split()
    assert statuses.count("200") == len(statuses) > 20, statuses
    assert machine.main_pid() not in ("0", pid)
    machine.run("systemctl disable --now attnd.socket")
    machine.configure("ATTND_DEMO=true", "ATTND_LISTEN=127.0.0.1:8123")


def test_package_has_pages_and_what_they_name(machine):
    names = machine.run("ls /usr/share/doc/attnd /usr/share/doc/attnd/examples").split()
    assert {"operate.md.gz", "upgrade.md.gz", "CHANGELOG.md.gz", "attnd-secrets.conf", "attnd.json", "haproxy.cfg",
            "rules.yml"} <= {*names}, names
    assert "attnd/environment" not in machine.run("cat /var/lib/dpkg/info/attnd.conffiles", check=False)


def test_symbols_for_debuggers_fit_the_program(machine):
    machine.run("rm -rf /tmp/symbols && dpkg-deb --extract /packages/attnd-dbgsym_*.deb /tmp/symbols")
    number = machine.run("od -An -tx1 -v /usr/bin/attnd | tr -d ' \\n' | grep -o '040000001400000003000000474e5500.\\{40\\}'")[-40:]
    assert machine.run(f"ls /tmp/symbols/usr/lib/debug/.build-id/{number[:2]}/{number[2:]}.debug")


def test_shells_complete_options_and_values(machine):
    bash = machine.run("""
        . /usr/share/bash-completion/bash_completion
        _completion_loader attnd
        COMP_WORDS=(attnd --log-l) COMP_CWORD=1
        _attnd 2>/dev/null
        echo "${COMPREPLY[@]}" """)
    assert bash == "--log-level", bash
    zsh = machine.run(f"timeout 60 zsh -fc {shlex.quote(ZSH)}")
    assert "ran attnd inspect --log-level=debug" in zsh, zsh


def test_removal_keeps_the_configuration_and_purge_leaves_nothing(machine):
    machine.configure("ATTND_DEMO=true", "ATTND_LISTEN=127.0.0.1:8080")
    machine.run("systemctl stop attnd && systemctl enable --now attnd.socket attnd")
    machine.run(APT + "remove attnd libattnd1 libattnd-dev")
    assert "8080" in machine.run(f"cat {ENVIRONMENT}")
    for unit in ("attnd.service", "attnd.socket"):
        assert machine.run(f"systemctl is-active {unit}", check=False) != "active"
    machine.run(APT + "purge attnd")
    left = machine.run("find / -xdev -name '*attnd*' -not -path '/packages*' -not -path '/tmp/*' -not -path '/var/log/*'")
    assert not left, f"left: {left}"


def main():
    passed, failed = 0, 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the container must go all the same
    with Machine(os.path.abspath(sys.argv[1])) as machine:
        for name, check in [*globals().items()]:
            if not name.startswith("test_"):
                continue
            try:
                check(machine)
                print("ok  ", name, flush=True)
                passed += 1
            except (AssertionError, RuntimeError, subprocess.TimeoutExpired, ValueError) as error:
                print(f"FAIL {name}: {type(error).__name__}: {error}", flush=True)
                failed += 1
        if failed:
            print(machine.run("journalctl --no-pager --unit attnd --lines 40", check=False))
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
