# SPDX-License-Identifier: Apache-2.0
"""A memory cgroup for one test, of version 1 or 2, whichever the machine has."""

import contextlib
import os
from pathlib import Path

import pytest

ROOT = Path("/sys/fs/cgroup")


class Cgroup:
    def __init__(self, folder, limit_name, peak_name, is_v1):
        self.folder, self.peak_name, self.is_v1 = folder, peak_name, is_v1
        self.limit_name = limit_name

    def limit(self, size):
        (self.folder / self.limit_name).write_text(str(size))
        for name in ("memory.swap.max", "memory.memsw.limit_in_bytes"):
            if (self.folder / name).exists():
                with contextlib.suppress(OSError):
                    (self.folder / name).write_text("0" if name.endswith("max") else str(size))

    def add(self, pid):
        (self.folder / "cgroup.procs").write_text(str(pid))

    @property
    def peak(self):
        return int((self.folder / self.peak_name).read_text())

    @property
    def num_killed(self):
        """How often the kernel killed a process for want of memory."""
        name = "memory.oom_control" if self.is_v1 else "memory.events"
        fields = dict(line.split() for line in (self.folder / name).read_text().splitlines())
        return int(fields["oom_kill"])


@contextlib.contextmanager
def memory_cgroup(size):
    """Yields a new cgroup that may use `size` bytes; skips the test where none can be made."""
    if (ROOT / "memory").is_dir():
        made = Cgroup(ROOT / f"memory/attnd-test-{os.getpid()}", "memory.limit_in_bytes",
                      "memory.max_usage_in_bytes", True)
    elif "memory" in (ROOT / "cgroup.subtree_control").read_text().split():
        made = Cgroup(ROOT / f"attnd-test-{os.getpid()}", "memory.max", "memory.peak", False)
    else:
        pytest.skip("no memory cgroup: neither version 1 nor a controller of version 2 is mounted")
    try:
        made.folder.mkdir()
        made.limit(size)
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here: {error}")
    try:
        yield made
    finally:
        with contextlib.suppress(OSError):
            made.folder.rmdir()
