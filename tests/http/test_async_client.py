# SPDX-License-Identifier: Apache-2.0
"""What `AsyncClient` does that `Client` does not: many requests at once, and requests that are cancelled."""

import asyncio
import socket

import numpy as np
import pytest

from test_client import rows

import attnd.client
from attnd import AsyncClient, Client


def test_many_requests_at_once_and_one_that_is_cancelled(demo_server):
    """More of them than connections, of which each is lent to one request at a time."""
    texts = [rows(1 + i % 7) for i in range(150)]

    async def attend():
        async with AsyncClient(demo_server.url) as client:
            waiting = asyncio.ensure_future(client.attend("d2l", rows(9)))
            await asyncio.sleep(0)
            waiting.cancel()
            replies = await asyncio.gather(*(client.attend("d2l", text) for text in texts))
            with pytest.raises(asyncio.CancelledError):
                await waiting
        assert len(client._idle) == attnd.client.MAX_CONNECTIONS
        return replies
    client = Client(demo_server.url)
    for text, (outputs, _) in zip(texts, asyncio.run(attend()), strict=True):
        assert np.array_equal(outputs, client.attend("d2l", text)[0])


def test_request_that_is_cancelled_closes_its_connection():
    """So that the server computes it no longer, and nobody waits for its reply."""
    async def attend(listener):
        async with AsyncClient(f"127.0.0.1:{listener.getsockname()[1]}", timeout=600) as client:
            waiting = asyncio.ensure_future(client.attend("d2l", rows(2)))
            connection = (await asyncio.to_thread(listener.accept))[0]
            await asyncio.to_thread(connection.recv, 1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        with connection:
            while connection.recv(1 << 20):
                pass
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):  # it was not sent again
            listener.accept()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        asyncio.run(attend(listener))
