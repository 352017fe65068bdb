# SPDX-License-Identifier: Apache-2.0
"""attnd in a sandbox that refuses the matrix tiles (AMX) of the CPU."""
import ctypes
import errno
import json
import pathlib
import platform
import struct

import pytest
from server import BINARY, run_attnd

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO = 0x7FFF0000, 0x00050000
ARCH_PRCTL, ARCH_REQ_XCOMP_PERM = 158, 0x1023


def is_model():
    """Whether the build computes matrix tiles by their model, which needs no permission."""
    options = BINARY.parent.parent / "meson-info/intro-buildoptions.json"
    return options.exists() and any(option["name"] == "every_set" and option["value"]
                                    for option in json.loads(options.read_text()))


def has_tiles():
    return platform.machine() == "x86_64" and "amx_bf16" in pathlib.Path("/proc/cpuinfo").read_text()


def refuse_tiles():
    """Lets arch_prctl() refuse tiles, in the process that calls this and its children."""
    def statement(code, jump_true, jump_false, value):
        return struct.pack("=HBBI", code, jump_true, jump_false, value)

    code = b"".join([statement(0x20, 0, 0, 0), statement(0x15, 0, 3, ARCH_PRCTL),
                     statement(0x20, 0, 0, 16), statement(0x15, 0, 1, ARCH_REQ_XCOMP_PERM),
                     statement(0x06, 0, 0, SECCOMP_RET_ERRNO | errno.EPERM),
                     statement(0x06, 0, 0, SECCOMP_RET_ALLOW)])
    memory = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program):
        raise OSError(ctypes.get_errno(), "seccomp")


@pytest.mark.skipif(is_model() or not has_tiles(), reason="this build or CPU has no matrix tiles")
def test_refused_tiles_are_named_with_a_remedy_and_float32_serves():
    def run(*options):
        return run_attnd("--check-config", "--demo", *options, preexec_fn=refuse_tiles)

    refused = run("--precision", "bf16")
    assert refused.returncode == 1, refused
    assert refused.stderr.count("\n") == 1, refused
    assert "a sandbox refuses matrix tiles (AMX): let it allow the system call arch_prctl" in refused.stderr
    assert "or use precision f32" in refused.stderr
    assert run("--precision", "f32").returncode == 0
    other = run("--cpu", "amx")
    assert other.returncode == 0 and "a sandbox refuses matrix tiles" in other.stderr, other
    assert "avx512" in other.stdout + other.stderr, other
