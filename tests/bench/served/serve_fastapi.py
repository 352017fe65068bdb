# SPDX-License-Identifier: Apache-2.0
"""FastAPI with uvicorn and orjson. The layer runs in the event loop: every worker is a process, and
another thread for each request would only add to its time."""

import orjson
from fastapi import FastAPI, Request, Response

from serve_layer import Layer

app, layer = FastAPI(), Layer()


@app.post("/attention")
async def attention(request: Request):
    outputs = layer.run(orjson.loads(await request.body()))
    text = orjson.dumps({"outputs": outputs}, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(text, media_type="application/json")
