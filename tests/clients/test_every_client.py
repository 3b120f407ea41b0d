"""What every client must see: plain requests pass, a repeat is replayed, duplicates at once are one execution."""

import pytest

from programs import CLIENTS


@pytest.fixture(params=CLIENTS)
def ask(request, world):
    """Asks at a place through the proxy, by one client after the other."""
    over, how = CLIENTS[request.param]
    return lambda place, key=None, count=1, method="POST": how(world, world.url(place, over), key, count, method)


def test_plain_requests_pass(world, ask):
    place = world.place()
    answers = ask(place) + ask(place, method="GET")
    assert [answer.body for answer in answers] == ['{"id": "ch_1"}', '{"id": "ch_2"}']
    assert [received.method for received in place.requests] == ["POST", "GET"]
    assert [received.body for received in place.requests] == [b'{"amount": 10}', b""]
    assert "unprotected" in answers[0].headers["cache-status"]


def test_a_repeat_is_replayed(world, ask):
    place, key = world.place(), world.key()
    (first,), (second,) = ask(place, key), ask(place, key)
    assert place.executions == 1 and place.requests[0].body == b'{"amount": 10}'
    assert place.requests[0].headers["Idempotency-Key"] == key
    assert (first.status, first.body, first.replayed) == (201, '{"id": "ch_1"}', False)
    assert (second.status, second.body, second.replayed) == (201, '{"id": "ch_1"}', True)
    assert first.headers["content-type"] == second.headers["content-type"] == "application/json"
    assert "age" in second.headers and first.headers["date"] == second.headers["date"]


def test_duplicates_at_once_are_one_execution(world, ask, held):
    place, key = world.place(), world.key()
    answers = held(place, 5, lambda: ask(place, key, count=6))
    assert place.executions == 1
    assert [(answer.status, answer.body) for answer in answers] == [(201, '{"id": "ch_1"}')] * 6
    assert sorted(answer.replayed for answer in answers) == [False] + [True] * 5
