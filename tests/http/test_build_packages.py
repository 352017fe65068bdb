# SPDX-License-Identifier: Apache-2.0
"""deploy/build-packages.sh puts new packages in place of its earlier ones, and removes nothing else. What
installs and builds are stubs here; tests/deploy/packages.sh builds."""

import os
import subprocess

import pytest

from server import ROOT, clean_environment

# As dpkg-buildpackage does: the files are beside the tree, and .changes lists them.
BUILD = r"""
for name in attnd_$NUMBER.dsc attnd_${NUMBER}_amd64.deb libattnd1_${NUMBER}_amd64.deb; do touch "../$name"; done
{
    echo "Checksums-Sha256:"
    echo " 0 0 libattnd-kept"
    echo "Files:"
    for name in attnd_$NUMBER.dsc attnd_${NUMBER}_amd64.deb libattnd1_${NUMBER}_amd64.deb; do
        echo " d41d8cd98f00b204e9800998ecf8427e 0 net optional $name"
    done
    echo " d41d8cd98f00b204e9800998ecf8427e 0 net optional ../outside"
} >../attnd_${NUMBER}_amd64.changes
"""


@pytest.fixture
def build(tmp_path):
    """Returns a function that builds the packages of a version, and returns the names in the folder."""
    (tmp_path / "bin").mkdir()
    for name, action in (("apt-get", "exit 0"), ("sudo", 'exec "$@"'), ("dpkg-buildpackage", BUILD)):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{action}\n")
        (tmp_path / "bin" / name).chmod(0o755)

    def run(version):
        subprocess.run(["sh", ROOT / "deploy/build-packages.sh", tmp_path / "to"], check=True, capture_output=True,
                       env=clean_environment(PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}", NUMBER=version))
        return {path.name for path in (tmp_path / "to").iterdir()}

    return run


def test_new_packages_take_the_place_of_earlier_ones_alone(build, tmp_path):
    foreign = {"attnd_notes.txt", "attnd_9_amd64.deb", "libattnd-kept", "attnd_folder.changes"}
    (tmp_path / "to").mkdir()
    (tmp_path / "outside").touch()
    for name in foreign - {"attnd_folder.changes"}:
        (tmp_path / "to" / name).touch()
    (tmp_path / "to/attnd_folder.changes").mkdir()
    for version in "12":
        assert build(version) == foreign | {f"attnd_{version}.dsc", f"attnd_{version}_amd64.deb",
                                            f"libattnd1_{version}_amd64.deb", f"attnd_{version}_amd64.changes"}
    assert (tmp_path / "outside").exists()
