# SPDX-License-Identifier: Apache-2.0
"""sbom.py ROOT VERSION COMMIT: prints what the root file system ROOT of attnd's image consists of, as CycloneDX
in JSON: a component for each package that dpkg has installed there. SOURCE_DATE_EPOCH is its time, so the same
packages and commit make the same bytes."""

import datetime
import json
import os
import pathlib
import sys
import urllib.parse
import uuid


def read_fields(text):
    """Returns the first line of each field of each paragraph, as Debian writes such files."""
    return [dict(line.split(": ", 1) for line in paragraph.splitlines() if not line.startswith(" ") and ": " in line)
            for paragraph in text.split("\n\n") if paragraph.strip()]


def describe(package, system):
    """Returns the component of a package. Its source names what security advisories are about."""
    source, _, version = package.get("Source", package["Package"]).partition(" ")
    query = urllib.parse.urlencode({"arch": package["Architecture"], "distro": system})
    name, number = (urllib.parse.quote(package[field], safe="") for field in ("Package", "Version"))
    purl = f"pkg:deb/debian/{name}@{number}?{query}"
    return {
        "type": "library", "bom-ref": purl, "name": package["Package"], "version": package["Version"], "purl": purl,
        "supplier": {"name": package["Maintainer"]},
        "properties": [{"name": "debian:source", "value": source},
                       {"name": "debian:source-version", "value": version.strip("()") or package["Version"]}],
    }


def main(root, version, commit):
    root = pathlib.Path(root)
    release = dict(line.replace('"', "").split("=", 1)
                   for line in (root / "etc/os-release").read_text().splitlines() if "=" in line)
    system = f"{release['ID']}-{release['VERSION_ID']}"
    packages = [package for package in read_fields((root / "var/lib/dpkg/status").read_text())
                if package["Status"].endswith(" installed")]
    components = [describe(package, system) for package in sorted(packages, key=lambda package: package["Package"])]

    time = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
    product = {"type": "container", "bom-ref": f"attnd@{version}", "name": "attnd", "version": version,
               "licenses": [{"license": {"id": "Apache-2.0"}}], "properties": [{"name": "commit", "value": commit}]}
    document = {
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {"timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ"), "component": product},
        "components": components,
        "dependencies": [{"ref": product["bom-ref"], "dependsOn": [each["bom-ref"] for each in components]}],
    }
    number = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(document))
    print(json.dumps({**document, "serialNumber": f"urn:uuid:{number}"}, indent=1))


main(*sys.argv[1:])
