"""Slow clients: cut when their time is over, and nobody else is held up meanwhile."""

import contextlib
import socket
import threading

import pytest
import requests

from programs import fields, heads
from proxy import PATIENCE

ROUTE = '[[route]]\nname = "api"\nupstream = "http://{}"\n'
LIMITS = '[limits]\nheader_timeout = "2s"\nbody_timeout = "3s"\nidle_timeout = "2s"\n'


@pytest.fixture
def proxy(world, start):
    return start(ROUTE.format(world.upstream.authority) + LIMITS)


def drip(address, at_once, slowly):
    """Sends this, then a byte a second until the other side has enough; returns what it said, and after how many."""
    with socket.create_connection(address.split(":"), PATIENCE) as connection:
        said, sent = b"", 0
        connection.sendall(at_once)
        for byte in slowly:
            connection.settimeout(1)
            with contextlib.suppress(TimeoutError):
                while data := connection.recv(4096):
                    said += data
                break
            try:
                connection.sendall(bytes([byte]))
                sent += 1
            except ConnectionError:
                break
        return said, sent


def others_are_served(world, proxy, place, stop):
    """Asks on and on until it is told to stop; returns the answers."""
    answers = []
    with requests.Session() as session:
        session.trust_env = False
        while not stop.is_set():
            answer = session.post(f"http://{proxy.plain}{place.path}", headers=fields(world.key()), timeout=PATIENCE)
            answers.append(answer.status_code)
    return answers


def many(count, how):
    """Runs it in so many threads; returns what they returned once all have ended."""
    results, threads = [], [threading.Thread(target=lambda: results.append(how())) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.parametrize(
    "name, at_once, status",
    [
        ("head", "", None),
        ("body", "POST {} HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nContent-Length: 90\r\n\r\n", 408),
        ("chunk", "POST {} HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nTransfer-Encoding: chunked\r\n\r\n", 408),
    ],
    ids=["head", "body", "chunk"],
)
def test_a_byte_a_second_is_cut(world, proxy, name, at_once, status):
    slow, quick, stop, served = world.place(), world.place(), threading.Event(), []
    other = threading.Thread(target=lambda: served.extend(others_are_served(world, proxy, quick, stop)))
    other.start()
    begins = at_once.format(slow.path).encode()
    slowly = b"POST / HTTP/1.1\r\nHost: a-slow-client\r\n" if name == "head" else b"5" + b"0" * 60
    cut = many(20, lambda: drip(proxy.plain, begins, slowly))
    stop.set()
    other.join()
    for said, sent in cut:
        # Not at the first pause, and long before it has sent all.
        assert 1 <= sent < len(slowly)
        # Of a head that never came whole nothing can be said.
        assert said == b"" if status is None else heads(said.decode())[1] == status, said
    assert slow.executions == 0 and len(served) >= 20 and set(served) == {201}
    assert quick.executions == len(served)


def test_an_idle_connection_is_closed_in_time(world, proxy):
    place = world.place()
    with socket.create_connection(proxy.plain.split(":"), PATIENCE) as connection:
        connection.sendall(f"GET {place.path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        said = b""
        while data := connection.recv(4096):
            said += data
        assert heads(said.decode())[1] == 201
