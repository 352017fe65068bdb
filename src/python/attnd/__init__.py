# SPDX-License-Identifier: Apache-2.0
"""Attention weights of any model, in the process or from a server: docs/python.md.

    received = attnd.dot_product(queries, keys, causal=True, need="received")["received"]
"""

from typing import Any

from . import _native
from ._arrays import BFLOAT16
from ._errors import CaptureError, Error
from .attention import dot_product, heads, sdpa, set_threads
from .captured import Captured, open
from .client import AsyncClient, AttentionError, Client
from .drawing import Picture
from .head_table import HeadTable
from .layers import Layer, Model, load
from .recording import CaptureWarning, capture
from .server import serve
from .vllm import read_hidden_states, read_vllm_hook

__all__ = ["BFLOAT16", "AsyncClient", "AttentionError", "CaptureError", "CaptureWarning", "Captured", "Client", "Error",
           "HeadTable", "Layer", "Model", "Picture", "capture", "dot_product", "heads", "load", "open", "read_hidden_states",
           "read_vllm_hook", "sdpa", "serve", "set_threads"]


def __getattr__(name: str) -> Any:
    if name != "__version__":  # of libattnd, which is loaded when it is first used
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _native.version()
