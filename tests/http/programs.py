# SPDX-License-Identifier: Apache-2.0
"""Where the programs and the Python package under test are. BINARY in the environment names another attnd, and
BENCH another attnd-bench, for an attnd that is older than its load generator."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BINARY = Path(os.environ.get("BINARY") or ROOT / "build/src/attnd").resolve()
BENCH = Path(os.environ.get("BENCH") or BINARY.with_name("attnd-bench")).resolve()
PACKAGE = ROOT / "src/python"

if str(PACKAGE) not in sys.path:  # of this process, and of the scripts that tests run
    sys.path.insert(0, str(PACKAGE))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PACKAGE), os.environ.get("PYTHONPATH")]))
