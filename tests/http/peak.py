# SPDX-License-Identifier: Apache-2.0
"""The peak of the resident memory of a command."""

import subprocess
import sys

from server import BINARY, clean_environment

# Prints the peak in KiB, and the exit code. It is a small process of its own, since what a process
# had before exec() counts too: a child of the tests never has a lower peak than they.
MEASURE = ("import resource, subprocess, sys; code = subprocess.run(sys.argv[1:], "
           "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode; "
           "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, code)")


def peak_of(*arguments, exit_code=0):
    """Returns the peak of attnd with these arguments, in bytes."""
    output = subprocess.run([sys.executable, "-I", "-S", "-c", MEASURE, BINARY, *map(str, arguments)],
                            check=True, capture_output=True, timeout=60, env=clean_environment())
    peak, code = map(int, output.stdout.split())
    assert code == exit_code
    return peak * 1024
