"""WebSockets: they pass through as plain upgrades, and one with a key is refused with a problem that says why."""

import asyncio
import threading

import pytest
import websockets
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve

from programs import HERE, run


@pytest.fixture(scope="module")
def echo():
    """A WebSocket server that says everything back, and how many came; in a thread of its own."""
    class Echo:
        connections = 0

    async def answer(socket):
        Echo.connections += 1
        async for message in socket:
            await socket.send(message)

    async def main(ready, stop):
        async with serve(answer, "127.0.0.1", 0) as server:
            Echo.authority = "127.0.0.1:%d" % server.sockets[0].getsockname()[1]
            Echo.stop = asyncio.get_running_loop().call_soon_threadsafe, stop.set
            ready.set()
            await stop.wait()

    ready = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(main(ready, asyncio.Event())))
    thread.start()
    ready.wait()
    yield Echo
    call, what = Echo.stop
    call(what)
    thread.join()


@pytest.fixture
def chat(echo, start):
    """The address of the server through a proxy that protects GETs too."""
    route = '[[route]]\nname = "chat"\nmethods = ["GET", "POST"]\nupstream = "http://{}"\n'
    return start(route.format(echo.authority)).plain


def test_pythons_websockets_pass(chat, echo):
    before = echo.connections

    async def talk():
        async with connect(f"ws://{chat}/chat", proxy=None) as socket:
            for message in ["hello", b"\x00\xff" * 100_000, ""]:
                await socket.send(message)
                assert await socket.recv() == message
            pong = await socket.ping()
            await pong
        return socket.close_code

    assert asyncio.run(talk()) == 1000
    assert echo.connections == before + 1


def test_nodes_websockets_pass(chat, echo):
    before = echo.connections
    assert run("node", HERE / "node" / "chat.mjs", f"ws://{chat}/chat") == b"hello 200000 1000\n"
    assert echo.connections == before + 1


def test_a_keyed_upgrade_is_refused(chat, echo):
    before = echo.connections

    async def talk():
        async with connect(f"ws://{chat}/chat", additional_headers={"Idempotency-Key": "k-1"}, proxy=None):
            pass

    with pytest.raises(websockets.exceptions.InvalidStatus) as refused:
        asyncio.run(talk())
    response = refused.value.response
    assert response.status_code == 400 and b"urn:onceproxy:problem:key-invalid" in response.body
    assert b"Upgrade" in response.body
    assert run("node", HERE / "node" / "chat.mjs", f"ws://{chat}/chat", "k-2") == b"refused with 400 key-invalid\n"
    assert echo.connections == before
