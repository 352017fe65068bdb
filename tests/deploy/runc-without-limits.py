#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""runc, called by podman. Only who has CAP_SYS_RESOURCE may raise limits, as podman asks for, so they are
dropped from the bundle, and from what is executed in it: both have the limits of this process."""

import json
import os
import sys

arguments = sys.argv[1:]


def drop_limits(path, place):
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    place(content).pop("rlimits", None)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(content, file)


if "--bundle" in arguments:
    bundle = arguments[arguments.index("--bundle") + 1]
    drop_limits(os.path.join(bundle, "config.json"), lambda content: content["process"])
if "--process" in arguments:
    drop_limits(arguments[arguments.index("--process") + 1], lambda content: content)
os.execvp("runc", ["runc", *arguments])
