"""nghttp2's clients: requests that share a connection, trailers of requests, and load by h2load."""

import re

import pytest

from programs import run

PLACES = [("https", "h2"), ("http", "h2c")]


@pytest.mark.parametrize("over", [over for over, _ in PLACES], ids=[name for _, name in PLACES])
def test_duplicates_on_one_connection_are_one_execution(world, held, tmp_path, over):
    place, key = world.place(), world.key()
    body = tmp_path / "body"
    body.write_bytes(b"a=1")
    command = ["nghttp", "-v", "--no-dep", "-n", "-d", body, "-H", f"idempotency-key: {key}", "-m", "20"]
    said = held(place, 19, lambda: run(*command, world.url(place, over)).decode())
    assert place.executions == 1
    assert len(re.findall(r":status: 201", said)) == 20
    assert len(re.findall(r"idempotent-replayed: true", said)) == 19


@pytest.mark.parametrize("over", [over for over, _ in PLACES], ids=[name for _, name in PLACES])
def test_trailers_of_plain_requests_arrive(world, tmp_path, over):
    place, body = world.place(), tmp_path / "body"
    body.write_bytes(b"a=1")
    # With a length the upstream could not be sent trailers: HTTP/1.1 has them in chunked bodies alone.
    asked = ["nghttp", "-v", "-n", "-d", body, "--no-content-length", "--trailer", "x-sum: 3", "-H", "trailer: x-sum"]
    assert ":status: 201" in run(*asked, world.url(place, over)).decode()
    assert place.requests[0].body == b"a=1"
    assert place.requests[0].trailers == {"x-sum": "3"}


@pytest.mark.parametrize("over", [over for over, _ in PLACES], ids=[name for _, name in PLACES])
@pytest.mark.parametrize("keyed", [False, True], ids=["plain", "keyed"])
def test_thousands_of_requests_are_all_answered(world, tmp_path, over, keyed):
    place, count = world.place(), 3000
    body = tmp_path / "body"
    body.write_bytes(b"a=1")
    asked = ["-H", f"idempotency-key: {world.key()}"] if keyed else []
    load = ["h2load", "-n", count, "-c", 10, "-m", 20, "-t", 2, "-d", body, *asked, world.url(place, over)]
    said = run(*load).decode()
    assert f"requests: {count} total, {count} started, {count} done, {count} succeeded, 0 failed, 0 errored" in said
    assert f"status codes: {count} 2xx, 0 3xx, 0 4xx, 0 5xx" in said
    assert place.executions == (1 if keyed else count)
