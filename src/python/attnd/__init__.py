# SPDX-License-Identifier: Apache-2.0
"""Attention weights of any model, in the process or from a server: docs/python.md.

    received = attnd.dot_product(queries, keys, causal=True, need="received")["received"]
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._arrays import BFLOAT16 as BFLOAT16
    from ._errors import CaptureError as CaptureError
    from ._errors import Error as Error
    from .attention import dot_product as dot_product
    from .attention import heads as heads
    from .attention import sdpa as sdpa
    from .attention import set_threads as set_threads
    from .captured import Captured as Captured
    from .captured import open as open
    from .client import AsyncClient as AsyncClient
    from .client import AttentionError as AttentionError
    from .client import Client as Client
    from .drawing import Picture as Picture
    from .head_table import HeadTable as HeadTable
    from .layers import Layer as Layer
    from .layers import Model as Model
    from .layers import load as load
    from .recording import CaptureWarning as CaptureWarning
    from .recording import capture as capture
    from .server import serve as serve
    from .vllm import read_hidden_states as read_hidden_states
    from .vllm import read_vllm_hook as read_vllm_hook

    __version__: str

_HOMES = {  # the module of each name, which is imported when the name is first used
    "BFLOAT16": "_arrays", "Error": "_errors",
    "dot_product": "attention", "heads": "attention", "sdpa": "attention", "set_threads": "attention",
    "AsyncClient": "client", "AttentionError": "client", "Client": "client",
    "HeadTable": "head_table", "Layer": "layers", "Model": "layers", "load": "layers", "serve": "server",
    "Captured": "captured", "CaptureError": "_errors", "CaptureWarning": "recording", "Picture": "drawing",
    "capture": "recording", "open": "captured", "read_hidden_states": "vllm", "read_vllm_hook": "vllm",
}

__all__ = [*_HOMES, "__version__"]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    value: Any
    if name == "__version__":
        value = importlib.import_module("._native", __name__).version()
    elif name in _HOMES:
        value = getattr(importlib.import_module("." + _HOMES[name], __name__), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
