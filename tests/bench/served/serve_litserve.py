# SPDX-License-Identifier: Apache-2.0
"""LitServe. The worker makes the whole Response, since converting each number takes much longer.
Neither batches nor fast_queue make it faster."""

import os

import litserve
import orjson
from fastapi import Response

from serve_layer import Layer


class LayerAPI(litserve.LitAPI):
    def setup(self, device):
        self.layer = Layer()

    def decode_request(self, request):
        return request

    def predict(self, inputs):
        return self.layer.run(inputs)

    def encode_response(self, outputs):
        text = orjson.dumps({"outputs": outputs}, option=orjson.OPT_SERIALIZE_NUMPY)
        return Response(text, media_type="application/json")


if __name__ == "__main__":
    server = litserve.LitServer(LayerAPI(api_path="/attention"), accelerator="cpu",
                                workers_per_device=int(os.environ["LAYER_WORKERS"]))
    server.run(host="127.0.0.1", port=int(os.environ["LAYER_PORT"]), generate_client_file=False,
               log_level="warning")
