"""Answers flow while they are recorded: the client sees the beginning before the upstream has sent the end."""

import ssl
import threading

import httpx
import pytest
import requests

from programs import BODY, fields
from proxy import PATIENCE

LARGE = 64 << 20


class Stages:
    """An answer whose end waits until the client has seen its beginning."""

    def __init__(self):
        self.seen = threading.Event()

    def events(self, exchange, number):
        """Server-sent events."""
        exchange.head(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"})
        exchange.chunk(b"data: first\n\n")
        if self.seen.wait(PATIENCE):
            exchange.chunk(b"data: last\n\n")
            exchange.end_chunks()

    def large(self, exchange, number):
        """More than is kept."""
        exchange.head(200, {"Content-Length": str(LARGE)})
        exchange.wfile.write(b"x" * (LARGE // 2))
        exchange.wfile.flush()
        if self.seen.wait(PATIENCE):
            exchange.wfile.write(b"y" * (LARGE // 2))


@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "plain"])
def test_events_flow(world, keyed):
    stages = Stages()
    place, key = world.place(stages.events), world.key() if keyed else None
    with requests.Session() as session:
        session.trust_env = False
        with session.post(world.url(place), data=BODY, headers=fields(key), stream=True, timeout=PATIENCE) as answer:
            lines = answer.iter_lines(chunk_size=1)
            assert next(lines) == b"data: first"
            stages.seen.set()
            assert [line for line in lines if line] == [b"data: last"]
        if keyed:
            again = session.post(world.url(place), data=BODY, headers=fields(key), timeout=PATIENCE)
            # It ended within what is kept, and so it is replayed whole.
            assert again.status_code == 200 and again.headers["Idempotent-Replayed"] == "true"
            assert again.content.split() == [b"data:", b"first", b"data:", b"last"]
    assert place.executions == 1


@pytest.mark.parametrize("over, http2", [("http", False), ("https", True)], ids=["h1", "h2"])
def test_a_large_answer_flows_and_is_kept_without_its_body(world, over, http2):
    stages = Stages()
    place, key = world.place(stages.large), world.key()
    verify = ssl.create_default_context(cafile=world.cert)
    with httpx.Client(http2=http2, verify=verify, trust_env=False, timeout=PATIENCE) as client:
        with client.stream("POST", world.url(place, over), content=BODY, headers=fields(key)) as answer:
            pieces = answer.iter_raw()
            length = len(next(pieces))
            stages.seen.set()
            length += sum(len(piece) for piece in pieces)
        assert length == LARGE
        again = client.post(world.url(place, over), content=BODY, headers=fields(key))
        assert again.status_code == 409 and again.json()["error"]["code"] == "response-not-retained"
    assert place.executions == 1
