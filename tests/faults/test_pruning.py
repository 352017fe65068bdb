# SPDX-License-Identifier: Apache-2.0
"""attnd prune when allocations and calls of the system fail: its file is whole or not there."""

import itertools
import json
import subprocess

import pytest

from checkpoints import write_layer
from fault import ALLOCATIONS, ERRORS, LONG, why_not
from server import BINARY, clean_environment
from starts import control  # noqa: F401 (a fixture)

pytestmark = pytest.mark.skipif(why_not() != "", reason=why_not())


@pytest.fixture
def prune(tmp_path, control):  # noqa: F811
    """Returns a function that prunes in an empty folder, and returns whether that succeeded. If it
    did not, it has said why in one line. No file is left that is not whole."""
    write_layer(tmp_path / "layer", num_heads=3, head_size=2, query_size=4, additive_size=3)
    (tmp_path / "data").write_text(json.dumps({"queries": [[1, 2, 3, 4]] * 3, "valid_lens": 2}))
    folder = tmp_path / "files"
    folder.mkdir()
    whole = {}

    def run():
        control.write(in_main=0)
        result = subprocess.run(
            [BINARY, "prune", tmp_path / "layer", "--keep", "2", "--data", tmp_path / "data",
             "--output", folder / "out"], timeout=60,
            capture_output=True, text=True, env=clean_environment(**control.environment()))
        control.write(kinds=0)
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        for path in list(folder.iterdir()):
            path.unlink()
        if not whole:
            whole.update(files)
        assert files.items() <= whole.items(), (control.site, files.keys())
        if result.returncode == 0:
            assert list(files) == ["out"], control.site
        else:
            assert result.returncode in (1, 2) and result.stderr.count("\n") == 1, \
                (control.site, result)
            assert result.stderr.startswith("attnd: "), result
        return result.returncode == 0

    assert run() and list(whole) == ["out"]
    return run


def test_every_failing_allocation_of_pruning_is_survived(control, prune):  # noqa: F811
    """In the short form, one allocation of each stack of callers fails; in the long form, all."""
    control.arm(ALLOCATIONS, 0)
    control.write(record=1)
    assert prune()
    total, stacks = control.counted, control.first_of_each_stack()
    control.write(record=0)
    succeeded = failed = 0
    for nth in range(1, total + 1) if LONG else stacks:
        control.arm(ALLOCATIONS, nth)
        succeeded += prune()
        failed += control.failed
    print(f"prune: {failed} of {total} allocations failed in turn; {succeeded} times it succeeded "
          "all the same")
    assert failed > 20


@pytest.mark.parametrize("kind", ["open", "write", "read"])
def test_every_failing_call_of_pruning_is_survived(control, prune, kind):  # noqa: F811
    errors, count = ERRORS[kind], 0
    if kind != "write" and not LONG:
        errors = errors[:1]
    for error in errors:
        for nth in itertools.count(1):
            control.arm([kind], nth, error)
            succeeded = prune()
            if not control.failed:
                assert succeeded
                break
            count += 1
    print(f"prune: {count} calls failed in turn")
    assert count >= 2 * len(errors)
