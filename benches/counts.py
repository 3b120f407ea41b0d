"""What must not depend on the machine: round trips to the store, and executions at the upstream.

These are asserted; times never are.
"""

import asyncio
import http.client
import threading

import measure
import servers

POSTS = 200


def assert_round_trips(folder, binary, redis, upstream):
    """Two round trips for a first execution, one for a replay, none for a join."""
    proxy = servers.onceproxy("counted", folder, binary, f"redis://127.0.0.1:{redis.port}", upstream.port)
    try:
        trips = measure.Trips(redis.port)
        client = http.client.HTTPConnection("127.0.0.1", proxy.port)
        _post(client, "warm-up-finds-no-script-yet")
        trips.count()
        for number in range(POSTS):
            _post(client, f"counted-{number}")
        first = trips.count()
        for number in range(POSTS):
            _post(client, f"counted-{number}")
        replay = trips.count()
        client.close()
        trips.close()
    finally:
        proxy.stop()
    joined = join(folder, binary, redis, 100)
    assert first == 2 * POSTS, f"{POSTS} first executions took {first} round trips"
    assert replay == POSTS, f"{POSTS} replays took {replay} round trips"
    assert joined["trips"] == 2, f"an execution that 99 others joined took {joined['trips']} round trips"
    return [("first execution", first / POSTS), ("replay", replay / POSTS), ("join", (joined["trips"] - 2) / 99)]


def _post(client, key):
    client.request("POST", "/", body=b"{}", headers={"Idempotency-Key": key})
    response = client.getresponse()
    response.read()
    assert response.status == 200, response.status


def join(folder, binary, redis, callers):
    """Has many callers ask for one key while its one execution is held back; says what that took."""
    gate = Gate()
    proxy = servers.onceproxy(f"joined-{callers}", folder, binary, f"redis://127.0.0.1:{redis.port}", gate.port)
    trips = measure.Trips(redis.port)
    try:
        result = asyncio.run(_join(proxy, gate, callers))
        executions, result["trips"] = gate.executions, trips.count()
    finally:
        trips.close()
        proxy.stop()
        gate.stop()
    assert executions == 1, f"{callers} callers of one key caused {executions} executions"
    return result


async def _join(proxy, gate, callers):
    clock = asyncio.get_running_loop().time
    streams = [await asyncio.open_connection("127.0.0.1", proxy.port) for _ in range(callers)]
    idle = proxy.resident_mib()
    request = (
        b"POST / HTTP/1.1\r\nHost: bench\r\nIdempotency-Key: joined-%d\r\nContent-Length: 512\r\n\r\n" % callers
    ) + b"n" * 512
    before = proxy.processor_seconds()
    for _, writer in streams:
        writer.write(request)
    # All requests are there once each is counted: the first is in flight, the others wait.
    while await asyncio.to_thread(gauge, proxy, "onceproxy_waiting") < callers - 1:
        await asyncio.sleep(0.01)
    waiting = proxy.resident_mib()
    opened = clock()
    gate.open.set()
    heads = await asyncio.gather(*(reader.readuntil(b"\r\n\r\n") for reader, _ in streams))
    took = clock() - opened
    spent = proxy.processor_seconds() - before
    for _, writer in streams:
        writer.close()
    assert all(head.startswith(b"HTTP/1.1 200") for head in heads)
    return {"memory": waiting - idle, "answered": took, "processor": spent * 1e6 / callers}


def gauge(proxy, name):
    """What a gauge of this proxy shows now, all routes together."""
    client = http.client.HTTPConnection("127.0.0.1", proxy.admin_port)
    client.request("GET", "/metrics")
    text = client.getresponse().read().decode()
    client.close()
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name + "{"))


class Gate:
    """An upstream that counts its requests and answers none of them before it is opened."""

    def __init__(self):
        self.executions, self.open = 0, threading.Event()
        self.loop = asyncio.new_event_loop()
        ready = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self.thread.start()
        ready.wait()

    def _run(self, ready):
        async def start():
            server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            self.port = server.sockets[0].getsockname()[1]
            ready.set()

        self.loop.create_task(start())
        self.loop.run_forever()

    async def _serve(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        self.executions += 1
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(length)
        await asyncio.to_thread(self.open.wait)
        body = servers.json_of(1024)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    def stop(self):
        self.open.set()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
