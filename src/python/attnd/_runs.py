# SPDX-License-Identifier: Apache-2.0
"""How the calls of a layer become runs."""

import numpy as np


def join(before, after):
    """Returns two calls as one where the second is the next step of generate(): it has the keys of the first, or
    those that a window has left of them, and its own. In cross attention all keys are the same."""
    num_kept, step = len(after["keys"]) - len(after["queries"]), len(after["queries"]) == 1
    if step and np.array_equal(before["keys"], after["keys"]) and "bias" not in before:
        return after | {"queries": np.concatenate([before["queries"], after["queries"]])}

    num_before, window = len(before["keys"]), after.get("window")
    if step and 0 < num_kept < num_before:
        window = len(after["keys"])
    is_causal = all(call["causal"] or len(call["queries"]) == 1 for call in (before, after))
    is_window = before.get("window") == window or "window" not in before and num_before <= (window or 0)
    is_next = 0 < num_kept <= num_before and np.array_equal(before["keys"][-num_kept:], after["keys"][:num_kept])
    if not (is_causal and is_window and is_next) or "bias" in before or "bias" in after:
        return after

    joined = after | {name: np.concatenate([before[name], after[name][num_kept:]])
                      for name in ("keys", "values") if name in after}
    joined["queries"] = np.concatenate([before["queries"], after["queries"]])
    first = before.get("positions", np.arange(num_before)[-len(before["queries"]):])
    joined["positions"] = np.append(first, np.arange(len(joined["keys"]))[-len(after["queries"]):])
    return joined | {"causal": True} | ({"window": window} if window else {})
