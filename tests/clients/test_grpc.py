"""gRPC by its own library: calls pass, a keyed unary call is replayed whole with its status, streams flow."""

import concurrent.futures
import threading
import time

import grpc
import pytest

from proxy import PATIENCE

SERVICE = "ledger.Ledger"
ROUTE = """
[[route]]
name = "grpc"
path = "/ledger.Ledger"
upstream = "http://{}"
upstream_protocol = "h2"
idle_timeout = "50ms"
"""
# What makes the server take its time.
SLOW = b"slow"


class Ledger(grpc.GenericRpcHandler):
    """Messages are plain bytes: what matters here is how they travel."""

    def __init__(self):
        self.charges, self.lock, self.seen, self.gate = 0, threading.Lock(), threading.Event(), threading.Event()
        self.gate.set()

    def service(self, details):
        name = details.method.rpartition("/")[2]
        if name == "Watch":
            return grpc.unary_stream_rpc_method_handler(self.watch)
        return grpc.unary_unary_rpc_method_handler({"Charge": self.charge, "Decline": self.decline}[name])

    def _count(self):
        with self.lock:
            self.charges += 1
            return self.charges

    def charge(self, request, context):
        number = self._count()
        if request == SLOW:
            time.sleep(1)
        self.gate.wait(PATIENCE)
        context.send_initial_metadata([("x-initial", "begins")])
        context.set_trailing_metadata([("x-number", str(number)), ("x-raw-bin", b"\x00\xff")])
        return b"charged " + request

    def decline(self, request, context):
        self._count()
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no money: 0 \N{EURO SIGN}")

    def watch(self, request, context):
        self._count()
        for number in range(3):
            yield b"event %d" % number
            assert self.seen.wait(PATIENCE)
        context.set_trailing_metadata([("x-number", "3")])


@pytest.fixture
def ledger(start, request):
    """A server, and a channel to it through the proxy."""
    ledger = Ledger()
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(16), handlers=[ledger])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    ledger.proxy = start(ROUTE.format(f"127.0.0.1:{port}"))
    ledger.channel = grpc.insecure_channel(ledger.proxy.plain, options=[("grpc.enable_http_proxy", 0)])
    yield ledger
    ledger.channel.close()
    server.stop(None).wait()


def call(ledger, name, request=b"10", key=None):
    """Calls a unary method; returns the answer and the call."""
    method = ledger.channel.unary_unary(f"/{SERVICE}/{name}")
    metadata = [("idempotency-key", key)] if key else []
    return method.with_call(request, metadata=metadata, timeout=PATIENCE)


def told(pairs):
    """Metadata without what the proxy and the library add."""
    return {name: value for name, value in pairs if name.startswith("x-")}


def marks(pairs):
    """What the proxy says of the answer."""
    return dict(pairs).get("idempotent-replayed")


def test_a_plain_call_passes(ledger):
    for number in [1, 2]:
        answer, done = call(ledger, "Charge")
        assert answer == b"charged 10" and done.code() == grpc.StatusCode.OK
        assert told(done.initial_metadata()) == {"x-initial": "begins"}
        assert told(done.trailing_metadata()) == {"x-number": str(number), "x-raw-bin": b"\x00\xff"}
    assert ledger.charges == 2


def test_a_keyed_call_is_replayed_with_its_trailers(ledger):
    for replayed in [None, "true"]:
        answer, done = call(ledger, "Charge", key="k-1")
        assert answer == b"charged 10" and done.code() == grpc.StatusCode.OK
        assert told(done.initial_metadata()) == {"x-initial": "begins"}
        assert told(done.trailing_metadata()) == {"x-number": "1", "x-raw-bin": b"\x00\xff"}
        assert marks(done.initial_metadata()) == replayed
    assert ledger.charges == 1


def test_duplicates_at_once_are_one_execution(ledger):
    ledger.gate.clear()
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        calls = [pool.submit(call, ledger, "Charge", b"10", "k-1") for _ in range(6)]
        try:
            ledger.proxy.waiting(5)
        finally:
            ledger.gate.set()
        answers = [one.result() for one in calls]
    assert [answer for answer, _ in answers] == [b"charged 10"] * 6
    assert [told(done.trailing_metadata())["x-number"] for _, done in answers] == ["1"] * 6
    assert ledger.charges == 1


@pytest.mark.parametrize("key", [None, "k-1"], ids=["plain", "keyed"])
def test_an_error_status_arrives(ledger, key):
    for _ in range(2):
        with pytest.raises(grpc.RpcError) as error:
            call(ledger, "Decline", key=key)
        assert error.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert error.value.details() == "no money: 0 \N{EURO SIGN}"
    assert ledger.charges == (1 if key else 2)


def test_a_stream_flows(ledger):
    events = ledger.channel.unary_stream(f"/{SERVICE}/Watch")(b"", timeout=PATIENCE)
    # The server sends nothing more until the first one was seen.
    assert next(events) == b"event 0"
    ledger.seen.set()
    assert list(events) == [b"event 1", b"event 2"]
    assert events.code() == grpc.StatusCode.OK and told(events.trailing_metadata()) == {"x-number": "3"}


def test_a_keyed_stream_is_recorded_whole(ledger):
    # Nothing says beforehand that more than one message will come.
    ledger.seen.set()
    for replayed in [None, "true"]:
        events = ledger.channel.unary_stream(f"/{SERVICE}/Watch")(b"", metadata=[("idempotency-key", "k-1")])
        assert list(events) == [b"event 0", b"event 1", b"event 2"]
        assert told(events.trailing_metadata()) == {"x-number": "3"}
        assert marks(events.initial_metadata()) == replayed
    assert ledger.charges == 1


@pytest.mark.parametrize("key", [None, "k-1"], ids=["plain", "keyed"])
def test_a_silent_call_is_not_ended_for_pings(ledger, key):
    # gRPC's servers end connections on which too many pings come.
    answer, _ = call(ledger, "Charge", SLOW, key)
    assert answer == b"charged " + SLOW


def test_another_request_under_a_used_key_is_refused(ledger):
    call(ledger, "Charge", key="k-1")
    with pytest.raises(grpc.RpcError) as error:
        call(ledger, "Charge", b"20", key="k-1")
    # The library makes this of an answer that is not gRPC; the status is in its words.
    assert error.value.code() == grpc.StatusCode.UNKNOWN and "422" in error.value.details()
    assert ledger.charges == 1
