# SPDX-License-Identifier: Apache-2.0
"""deploy/release.sh refuses what cannot become a release, deploy/sbom.py describes an image, and the image's health
check asks where its attnd listens. tests/release/run makes a whole release."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from server import ROOT, clean_environment

VERSION = "1.2.3"
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text().replace("\\\n", "")


@pytest.fixture
def clone(tmp_path):
    """A repository whose commit can be released."""
    root = tmp_path / "clone"
    shutil.copytree(ROOT / "deploy", root / "deploy")
    (root / "meson.build").write_text(f"project('attnd', 'c',\n  version: '{VERSION}',\n")
    (root / "CHANGELOG.md").write_text(f"# Changelog\n\n## Unreleased\n\n## {VERSION} - 2026-11-28\n")
    for command in ("init -q", "add -A", "-c user.name=a -c user.email=a@b.c commit -q -m release"):
        subprocess.run(["git", *command.split()], cwd=root, check=True)
    return root


def refusal(clone, *arguments, **environment):
    """Returns what release.sh says where it refuses to begin."""
    environment = {"RELEASE_MINISIGN_KEY": str(ROOT / "LICENSE"), **environment}
    done = subprocess.run([clone / "deploy/release.sh", *arguments], capture_output=True, text=True, timeout=60,
                          env=clean_environment(**environment))
    assert done.returncode == 1 and not (clone / f"build-{VERSION}/SHA256SUMS").exists()
    return done.stderr


def test_release_refuses_with_a_remedy(clone, tmp_path):
    assert "usage: deploy/release.sh VERSION" in refusal(clone)
    assert f"meson.build has version {VERSION}, not 1.2.4; change" in refusal(clone, "1.2.4")
    assert "set RELEASE_GPG_KEY or RELEASE_MINISIGN_KEY" in refusal(clone, VERSION, RELEASE_MINISIGN_KEY="")
    assert "and not both" in refusal(clone, VERSION, RELEASE_GPG_KEY="a")
    assert "name the file of the key" in refusal(clone, VERSION, RELEASE_MINISIGN_KEY=str(tmp_path / "none"))
    assert "gpg --import it" in refusal(clone, VERSION, RELEASE_MINISIGN_KEY="", RELEASE_GPG_KEY="nobody@nowhere.example",
                                        GNUPGHOME=str(tmp_path))
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    assert "has files; remove them" in refusal(clone, VERSION, str(tmp_path / "full"))


def test_release_needs_a_clean_clone_and_a_dated_section(clone):
    (clone / "new").touch()
    assert "the tree has changes; commit or stash them: ?? new" in refusal(clone, VERSION)
    (clone / "new").unlink()
    text = (clone / "CHANGELOG.md").read_text()
    (clone / "CHANGELOG.md").write_text(text.replace(" - 2026-11-28", ""))
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qam", "undated"], cwd=clone,
                   check=True)
    assert f"CHANGELOG.md has no '## {VERSION} - DATE'" in refusal(clone, VERSION)
    shutil.rmtree(clone / ".git")
    assert "git clone the repository" in refusal(clone, VERSION, GIT_CEILING_DIRECTORIES=str(clone.parent))


def test_components_of_an_image_are_the_installed_packages(tmp_path):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text('ID=debian\nVERSION_ID="12"\n')
    (tmp_path / "var/lib/dpkg").mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/status").write_text("""Package: libc++1
Status: install ok installed
Maintainer: Some One <one@debian.example>
Architecture: amd64
Source: llvm (1:14)
Version: 1:14.0+b1
Description: library
 Version: of another line

Package: gone
Status: deinstall ok config-files
Maintainer: Some One <one@debian.example>
Architecture: all
Version: 1
""")
    command = [sys.executable, ROOT / "deploy/sbom.py", tmp_path, VERSION, "c0ffee"]
    first, second = (subprocess.check_output(command, env={**os.environ, "SOURCE_DATE_EPOCH": "0"}) for _ in range(2))
    assert first == second
    document = json.loads(first)
    (component,) = document["components"]
    assert component["purl"] == "pkg:deb/debian/libc%2B%2B1@1%3A14.0%2Bb1?arch=amd64&distro=debian-12"
    assert [each["value"] for each in component["properties"]] == ["llvm", "1:14"]
    assert document["metadata"]["timestamp"] == "1970-01-01T00:00:00Z"
    assert document["dependencies"] == [{"ref": f"attnd@{VERSION}", "dependsOn": [component["purl"]]}]


@pytest.mark.parametrize("words", [
    ["attnd", "--demo", "--listen", "unix:/run/a b"], ["/usr/bin/attnd", "serve", "--tls-cert", "c", "--tls-key", "k"],
    ["/sbin/docker-init", "--", "attnd", "--model", "attnd"], ["attnd"], ["bash", "-c", "attnd --demo"], []])
def test_health_check_of_the_image_passes_the_arguments_of_the_container(tmp_path, words):
    [check] = re.findall(r"^HEALTHCHECK .* CMD (.*\])$", DOCKERFILE, re.M)
    (tmp_path / "attnd").write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    (tmp_path / "attnd").chmod(0o755)
    (tmp_path / "cmdline").write_text("".join(f"{word}\0" for word in words))
    command = json.loads(check.replace("/proc/1/cmdline", str(tmp_path / "cmdline")))
    printed = subprocess.check_output(command, text=True, timeout=60, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    given = words[next((i + 1 for i, word in enumerate(words) if word.split("/")[-1] == "attnd"), len(words)):]
    assert printed.splitlines() == ["health", *(given[1:] if given[:1] == ["serve"] else given)]
