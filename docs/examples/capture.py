# SPDX-License-Identifier: Apache-2.0
"""The capture kit of the package attnd under its old name."""

from attnd._files import CaptureError, read_safetensors  # noqa: F401
from attnd.captured import OPTIONS, TENSORS, Captured, load  # noqa: F401
from attnd.client import Client, to_safetensors  # noqa: F401
from attnd.recording import capture  # noqa: F401
from attnd.vllm import read_hidden_states, read_vllm_hook  # noqa: F401
