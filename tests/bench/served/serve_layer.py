# SPDX-License-Identifier: Apache-2.0
"""The layer that all peers serve: an ONNX model, run by ONNX Runtime. The environment names it."""

import os

import numpy as np
import onnxruntime

TYPES = {"tensor(float)": np.float32, "tensor(int32)": np.int32}


class Layer:
    def __init__(self):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(os.environ["LAYER_THREADS"])
        options.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(os.environ["LAYER_FILE"], options,
                                                    providers=["CPUExecutionProvider"])
        self.types = {each.name: TYPES[each.type] for each in self.session.get_inputs()}

    def run(self, inputs):
        """Returns the outputs [B, T, width] for arrays or lists by name."""
        arrays = {name: np.asarray(inputs[name], kind) for name, kind in self.types.items()}
        return self.session.run(["outputs"], arrays)[0]
