# SPDX-License-Identifier: Apache-2.0
"""Triton's Python backend runs this file as model.py, in a Python that ignores PYTHONPATH."""

import os
import sys

sys.path[:0] = os.environ["PYTHONPATH"].split(":")

import numpy as np
import triton_python_backend_utils as triton

from serve_layer import Layer


class TritonPythonModel:
    def initialize(self, _):
        self.layer = Layer()

    def execute(self, requests):
        """Computes all requests together."""
        inputs = [{each.name(): each.as_numpy() for each in request.inputs()}
                  for request in requests]
        outputs = self.layer.run({name: np.concatenate([each[name] for each in inputs])
                                  for name in inputs[0]})
        ends = np.cumsum([len(each["queries"]) for each in inputs])
        return [triton.InferenceResponse([triton.Tensor("outputs", part)])
                for part in np.split(outputs, ends[:-1])]
