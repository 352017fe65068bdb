# SPDX-License-Identifier: Apache-2.0
"""A runtime of MLServer."""

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse

from serve_layer import Layer


class LayerModel(MLModel):
    async def load(self):
        self.layer = Layer()
        return True

    async def predict(self, payload):
        inputs = {each.name: NumpyCodec.decode_input(each) for each in payload.inputs}
        outputs = NumpyCodec.encode_output("outputs", self.layer.run(inputs))
        return InferenceResponse(model_name=self.name, outputs=[outputs])
