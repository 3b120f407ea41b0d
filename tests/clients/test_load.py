"""Many connections and large bodies: what they cost in memory, by the release binary, and that others do not notice.

Memory is a count and no time, so it is asserted, with room; the figures are printed, and `make test-load` shows those of the
large ones.
"""

import resource
import selectors
import socket
import threading
import time

import pytest

from proxy import PATIENCE
from test_slow import ROUTE, others_are_served

MIB = 1 << 20


def many_open_files(count):
    """Raises the limit of open files, for this process and those it starts, or skips the test."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        pytest.skip(f"needs {count} open files, and the hard limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


class Others:
    """A client that asks on and on while something else happens."""

    def __init__(self, world, proxy):
        self.place, self.stop, self.served = world.place(), threading.Event(), []
        ask = lambda: self.served.extend(others_are_served(world, proxy, self.place, self.stop))  # noqa: E731
        self.thread = threading.Thread(target=ask)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()

    def were_served(self):
        """All were answered, each by an execution of its own."""
        assert set(self.served) == {201} and self.place.executions == len(self.served)
        return len(self.served)


def idle(world, start, count, seconds):
    """Opens connections with one request each, leaves them idle until they are closed; returns what they cost in MiB."""
    limits = f'[limits]\nidle_timeout = "{seconds}s"\n'
    proxy, place = start(ROUTE.format(world.upstream.authority) + limits), world.place()
    ask = f"GET {place.path} HTTP/1.1\r\nHost: api.example.com\r\nUser-Agent: a client of usual length\r\n\r\n".encode()
    with Others(world, proxy) as others:
        others.place.reached(1)
        before, connections = proxy.memory(), []
        for _ in range(count):
            connections.append(socket.create_connection(proxy.plain.split(":"), PATIENCE))
            connections[-1].sendall(ask)
            assert connections[-1].recv(4096).startswith(b"HTTP/1.1 201")
        cost = proxy.memory() - before
        already = others.place.executions
        waits = selectors.DefaultSelector()
        for connection in connections:
            waits.register(connection, selectors.EVENT_READ)
        while waits.get_map():
            for key, _ in waits.select(PATIENCE):
                # What is left to read of an answer comes before the end.
                if key.fileobj.recv(65536) == b"":
                    waits.unregister(key.fileobj)
                    key.fileobj.close()
        assert others.place.executions > already, "the others were held up"
    assert place.executions == count
    each = cost * 1024 / count
    print(f"{count} idle connections: {cost:.0f} MiB more, {each:.1f} KiB each; {others.were_served()} others served")
    return cost


def test_idle_connections_are_cheap(world, start):
    many_open_files(4096)
    assert idle(world, start, 1000, 5) < 40


@pytest.mark.load
def test_ten_thousand_idle_connections_are_cheap(world, start):
    many_open_files(12_000)
    assert idle(world, start, 10_000, 30) < 300


def waiting(world, start, count):
    """Has so many duplicates wait on connections of their own for one answer; returns what they cost in MiB."""
    patient = 'timeout = "10m"\nabandon_after = "10m"\nwait_timeout = "10m"\n'
    # As it comes, without the look for HTTP/2 that a connection in clear has here otherwise.
    proxy, place = start(ROUTE.format(world.upstream.authority) + patient, h2c=False), world.place()
    ask = (
        f"POST {place.path} HTTP/1.1\r\nHost: api.example.com\r\nUser-Agent: a client of usual length\r\n"
        f"Idempotency-Key: {world.key()}\r\nContent-Length: 0\r\n\r\n"
    ).encode()
    place.hold()
    try:
        with Others(world, proxy) as others:
            others.place.reached(1)
            connections = [socket.create_connection(proxy.plain.split(":"), PATIENCE)]
            connections[0].sendall(ask)
            place.reached(1)
            before = proxy.memory()
            for _ in range(count):
                connections.append(socket.create_connection(proxy.plain.split(":"), PATIENCE))
                connections[-1].sendall(ask)
            proxy.waiting(count)
            cost = proxy.memory() - before
            # The others go on while all of them wait.
            others.place.reached(others.place.executions + 10)
            place.let_go()
            answers = set()
            for connection in connections:
                said = b""
                while b"\r\n\r\n" not in said:
                    said += connection.recv(4096)
                answers.add((said.split(b" ")[1], said.partition(b"\r\n\r\n")[2]))
                connection.close()
    finally:
        place.let_go()
    assert len(answers) == 1 and {status for status, _ in answers} == {b"201"} and place.executions == 1
    each = cost * 1024 / count
    print(f"{count} waiting duplicates: {cost:.0f} MiB more, {each:.1f} KiB each; {others.were_served()} others served")
    return cost


def test_waiting_duplicates_are_cheap(world, start):
    many_open_files(4096)
    assert waiting(world, start, 1000) < 32


@pytest.mark.load
def test_ten_thousand_waiting_duplicates_are_cheap(world, start):
    # The aim is 100 (docs/performance.md).
    many_open_files(12_000)
    assert waiting(world, start, 10_000) < 180


def uploaded(exchange, number):
    """Says how much came, and what it was."""
    exchange.reply(200, f"{exchange.received.length} {exchange.received.digest.hexdigest()}".encode())


def upload(world, start, size):
    """Uploads so many bytes, and returns how many MiB more it took at the most."""
    proxy, place = start(ROUTE.format(world.upstream.authority)), world.place(uploaded)
    piece = bytes(range(256)) * (MIB // 256)
    proxy.forget_peak()
    before = proxy.memory()
    with Others(world, proxy) as others, socket.create_connection(proxy.plain.split(":"), PATIENCE) as connection:
        connection.sendall(f"POST {place.path} HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n".encode())
        for _ in range(size // MIB):
            connection.sendall(piece)
        said = b""
        while b"\r\n\r\n" not in said or not said.partition(b"\r\n\r\n")[2]:
            said += connection.recv(4096)
    assert f"{size} ".encode() in said and place.executions == 1, said
    cost = proxy.memory("VmHWM") - before
    print(f"plain upload of {size // MIB} MiB: {cost:.1f} MiB more at the most; {others.were_served()} others served")
    return cost


def download(world, start, size, key=None):
    """Downloads so many bytes, pausing once; returns how many MiB more it took at the most."""
    gone = threading.Event()
    sent = []

    def large(exchange, number):
        exchange.head(200, {"Content-Length": str(size)})
        piece = bytes(MIB)
        for _ in range(size // MIB):
            exchange.wfile.write(piece)
            sent.append(len(piece))
        gone.set()

    proxy, place = start(ROUTE.format(world.upstream.authority)), world.place(large)
    proxy.forget_peak()
    before = proxy.memory()
    field = f"Idempotency-Key: {key}\r\n" if key else ""
    ask = f"POST {place.path} HTTP/1.1\r\nHost: a\r\n{field}Content-Length: 0\r\n\r\n".encode()
    with Others(world, proxy) as others, socket.create_connection(proxy.plain.split(":"), PATIENCE) as connection:
        connection.sendall(ask)
        head = b""
        while b"\r\n\r\n" not in head:
            head += connection.recv(4096)
        received = len(head.partition(b"\r\n\r\n")[2])
        # Nobody reads: the upstream must be held back, and stop where the buffers of the kernel are full.
        stood = -1
        while stood != len(sent):
            stood = len(sent)
            time.sleep(0.5)
        assert not gone.is_set(), "all was sent although nobody read"
        held = stood
        buffer = bytearray(MIB)
        while received < size:
            received += connection.recv_into(buffer)
        if key:
            connection.sendall(ask)
            assert b"response-not-retained" in connection.recv(65536)
    assert received == size and place.executions == 1
    cost = proxy.memory("VmHWM") - before
    kind = "keyed" if key else "plain"
    print(
        f"{kind} download of {size // MIB} MiB: {cost:.1f} MiB more at the most, held back at {held} MiB; "
        f"{others.were_served()} others served"
    )
    return cost


def test_a_large_plain_upload_is_not_held(world, start):
    assert upload(world, start, 128 * MIB) < 24


@pytest.mark.parametrize("key", [None, "k-1"], ids=["plain", "keyed"])
def test_a_large_download_is_not_held(world, start, key):
    assert download(world, start, 128 * MIB, key) < 24


@pytest.mark.load
def test_a_plain_upload_of_a_gibibyte_is_not_held(world, start):
    assert upload(world, start, 1024 * MIB) < 24


@pytest.mark.load
@pytest.mark.parametrize("key", [None, "k-1"], ids=["plain", "keyed"])
def test_a_download_of_a_gibibyte_is_not_held(world, start, key):
    assert download(world, start, 1024 * MIB, key) < 24
