# SPDX-License-Identifier: Apache-2.0
"""A client that starts long requests and abandons them, one after the other."""

import json
import threading

import numpy as np

from checkpoints import slow_request
from dot_product import PATH, SAFETENSORS
from http1 import Connection, post_bytes
from safetensors_file import make_safetensors

PATIENCE = 60  # seconds


def slow_post(tokens):
    """Returns a request for write_slow_layer(): 1,000 tokens take some 0.25 s, 30,000 minutes."""
    body = json.dumps({"model": "slow", **slow_request(tokens=tokens)}, separators=(",", ":"))
    return post_bytes(body.encode())


def summing_post(need, tokens=2**20):
    """Returns a request for sums over the queries of one head, `need` and its options: a million
    tokens take minutes."""
    rows = {name: np.zeros((tokens, 1, 1)) for name in ("queries", "keys")}
    request = post_bytes(make_safetensors(rows, "F16", need), path=PATH)
    return request.replace(b"application/json", SAFETENSORS.encode(), 1)


class Abandoner(threading.Thread):
    """`with Abandoner(...)` keeps one long request after the other in progress, each of them for
    `seconds`. The next one is ready but for its last byte, so no time is lost between two."""

    def __init__(self, port, seconds, request=None, source="127.0.0.2"):
        super().__init__()
        self.port, self.seconds, self.source = port, seconds, source
        self.request = request or slow_post(30000)
        self.stopped = threading.Event()

    def prepare(self):
        connection = Connection(self.port, PATIENCE, self.source)
        connection.send(self.request[:-1])
        return connection

    def run(self):
        following = self.prepare()
        while not self.stopped.is_set():
            present, following = following, self.prepare()
            present.send(self.request[-1:])
            self.stopped.wait(self.seconds)
            present.socket.close()
        following.socket.close()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        self.join()


def get_status(port, request, source="127.0.0.1"):
    """Returns the status of the reply on a new connection."""
    with Connection(port, PATIENCE, source) as connection:
        connection.send(request)
        return connection.read_reply().status
