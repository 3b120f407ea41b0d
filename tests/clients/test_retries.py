"""Clients whose connection breaks after the proxy took the request: each sends again as it does, and it happens once."""

import subprocess

import pytest
import requests
import urllib3.util

from programs import BODY, fields, go, heads, node, run
from proxy import PATIENCE


@pytest.fixture
def broken(world, relay):
    """A place that is reached through a relay; of the POSTs there, those of these numbers get no answer."""

    def broken(*numbers):
        place, between = world.place(), relay(world.proxy.plain, numbers)
        return place, between, f"http://{between.authority}{place.path}"

    return broken


def test_urllib3_retries_a_post(world, broken):
    place, between, url = broken(1, 2)
    with requests.Session() as session:
        session.trust_env = False
        retry = urllib3.util.Retry(total=3, allowed_methods=None, status_forcelist=[502, 503, 504])
        session.mount("http://", requests.adapters.HTTPAdapter(max_retries=retry))
        answer = session.post(url, data=BODY, headers=fields(world.key()), timeout=PATIENCE)
    assert between.lost == 2 and between.posts == 3
    assert (answer.status_code, answer.json(), answer.headers["Idempotent-Replayed"]) == (201, {"id": "ch_1"}, "true")
    assert place.executions == 1


def test_go_sends_a_keyed_post_again_by_itself(world, broken):
    place, between, url = broken(1)
    (answer,) = go(world, url, world.key(), 1, "POST", "warm")
    assert between.lost == 1 and between.posts == 2, "Go did not send again"
    assert (answer.status, answer.body, answer.replayed) == (201, '{"id": "ch_2"}', True)
    assert [received.method for received in place.requests] == ["GET", "POST"]


def test_go_does_not_send_a_plain_post_again(world, broken):
    # That the relay loses answers, and that the key is what makes Go repeat.
    place, between, url = broken(1)
    with pytest.raises(AssertionError, match="EOF|reset"):
        go(world, url, None, 1, "POST", "warm")
    assert between.posts == 1 and [received.method for received in place.requests] == ["GET", "POST"]


@pytest.mark.parametrize("how", ["fetch", "agent"])
def test_node_sends_again(world, broken, how):
    place, between, url = broken(1)
    (answer,) = node(world, url, world.key(), 1, "POST", how, RETRY="1")
    assert between.lost == 1 and between.posts == 2
    assert (answer.status, answer.body, answer.replayed) == (201, '{"id": "ch_1"}', True)
    assert place.executions == 1


def test_curl_sends_again(world, broken):
    place, between, url = broken(1)
    key = ["-H", f"Idempotency-Key: {world.key()}", "-d", "a=1"]
    printed = run("curl", "-sS", "-i", "--retry", "2", "--retry-delay", "1", "--retry-all-errors", *key, url).decode()
    _, status, found, body = heads(printed)
    assert between.lost == 1 and between.posts == 2
    assert (status, found["idempotent-replayed"], body) == (201, "true", '{"id": "ch_1"}')
    assert place.executions == 1


def test_a_client_killed_while_it_waits_gets_its_answer_by_the_next(world):
    place, key = world.place(), world.key()
    place.hold()
    command = ["curl", "-sS", "-i", "-H", f"Idempotency-Key: {key}", "-d", "a=1", world.url(place)]
    first = subprocess.Popen(command)
    place.reached(1)
    first.kill()
    first.wait()
    place.let_go()
    _, status, found, body = heads(run(*command).decode())
    assert (status, found["idempotent-replayed"], body) == (201, "true", '{"id": "ch_1"}')
    assert place.executions == 1


def test_an_upstream_that_breaks_off_is_not_asked_again(world):
    # What a client without a proxy would repeat: the upstream did it, and said nothing.
    place = world.place(lambda exchange, number: exchange.cut())
    with requests.Session() as session:
        session.trust_env = False
        statuses = {"status_forcelist": [409, 502, 503, 504], "raise_on_status": False}
        retry = urllib3.util.Retry(total=2, allowed_methods=None, **statuses)
        session.mount("http://", requests.adapters.HTTPAdapter(max_retries=retry))
        answer = session.post(world.url(place), data=BODY, headers=fields(world.key()), timeout=PATIENCE)
    assert answer.status_code == 409 and answer.json()["type"] == "urn:onceproxy:problem:outcome-unknown"
    assert place.executions == 1
