"""Stripe's SDKs with their base URL set to the proxy: their retries end in one execution, and in the right charge."""

import json

import pytest
import stripe

from programs import HERE, run
from upstream import Upstream

ROUTE = '[[route]]\nname = "stripe"\npreset = "payment"\nupstream = "http://{}"\n'


def charge(number):
    """A charge as Stripe's API shows it."""
    return {"id": f"ch_{number}", "object": "charge", "amount": 1999, "currency": "eur", "status": "succeeded"}


def failure(kind, message):
    """An error as Stripe's API shows it."""
    return json.dumps({"error": {"type": kind, "message": message}}).encode()


class Gateway:
    """The gateway behind the proxy. Charges once for each answer that says so."""

    def __init__(self, start, answers):
        self.server, self.charges, self.answers = Upstream(), 0, answers
        self.place = self.server.place(self._answer, "/v1/charges")
        self.proxy = start(ROUTE.format(self.server.authority))

    def _answer(self, exchange, number):
        say = self.answers[number - 1] if number <= len(self.answers) else "charge"
        fields = {"Content-Type": "application/json", "Request-Id": f"req_{number}"}
        if say == "busy":
            # Another request with this key is running: nothing was done, the SDK is told to come again.
            again = fields | {"Stripe-Should-Retry": "true"}
            exchange.reply(409, failure("idempotency_error", "another request is running"), again)
        elif say == "declined":
            exchange.reply(402, failure("card_error", "the card was declined"), fields)
        else:
            self.charges += 1
            if say == "cut":
                exchange.cut()
            elif say == "broken":
                exchange.reply(500, failure("api_error", "it broke"), fields | {"Stripe-Should-Retry": "true"})
            else:
                exchange.reply(200, json.dumps(charge(self.charges)).encode(), fields)


@pytest.fixture
def gateway(start):
    """Starts a gateway whose first answers are these."""
    running = []

    def gateway(*answers):
        running.append(Gateway(start, answers))
        return running[-1]

    yield gateway
    for one in running:
        one.server.shutdown()
        one.server.server_close()


def by_python(authority):
    """Charges with the SDK for Python; returns the charge, or status and message of the error."""
    client = stripe.StripeClient("sk_test_1", base_addresses={"api": f"http://{authority}"}, max_network_retries=3)
    asked = {"amount": 1999, "currency": "eur", "source": "tok_visa"}
    try:
        made = client.v1.charges.create(asked, {"idempotency_key": "order-1"})
        return {name: made[name] for name in charge(0)}
    except stripe.StripeError as error:
        return {"status": error.http_status, "message": error.user_message}


def by_node(authority):
    """Charges with the SDK for Node; returns what `by_python` does."""
    return json.loads(run("node", HERE / "node" / "charge.mjs", *authority.split(":"), "order-1"))


@pytest.fixture(params=[by_python, by_node], ids=["python", "node"])
def create(request, monkeypatch):
    # The SDKs wait between retries, half a second at first.
    monkeypatch.setattr(stripe.HTTPClient, "INITIAL_DELAY", 0.01)
    return request.param


def test_one_charge(gateway, create):
    stage = gateway()
    assert create(stage.proxy.plain) == charge(1)
    assert create(stage.proxy.plain) == charge(1)
    assert stage.charges == 1 and stage.place.executions == 1
    assert stage.place.requests[0].headers["Idempotency-Key"] == "order-1"
    assert stage.place.requests[0].body == b"amount=1999&currency=eur&source=tok_visa"


def test_answers_lost_on_the_way_back(gateway, create, relay):
    stage = gateway()
    between = relay(stage.proxy.plain, [1, 2])
    assert create(between.authority) == charge(1)
    assert between.lost == 2 and between.posts == 3
    assert stage.charges == 1 and stage.place.executions == 1


def test_a_busy_gateway_is_asked_again(gateway, create):
    stage = gateway("busy", "busy")
    assert create(stage.proxy.plain) == charge(1)
    assert stage.charges == 1 and stage.place.executions == 3


@pytest.mark.parametrize("says, first", [("cut", 502), ("broken", 409)])
def test_a_doubtful_charge_is_not_made_again(gateway, create, says, first):
    # Charged, and then the gateway's connection broke, or it said 500 and to come again: the SDKs would repeat either.
    stage = gateway(says)
    for status in [first, 409]:
        told = create(stage.proxy.plain)
        assert told["status"] == status and "executed" in told["message"], told
    assert stage.charges == 1 and stage.place.executions == 1
    # An operator found it in the gateway's books.
    records = json.loads(stage.proxy.ask_admin("/records?state=unknown"))["records"]
    answer = {"status": 200, "headers": [["content-type", "application/json"]], "body": json.dumps(charge(1))}
    resolved = {"token": records[0]["token"], "outcome": "executed", "response": answer, "force": True}
    stage.proxy.tell_admin(f"/records/{records[0]['id']}/resolve", resolved)
    assert create(stage.proxy.plain) == charge(1)
    assert stage.charges == 1 and stage.place.executions == 1


def test_a_declined_card_is_an_answer(gateway, create):
    stage = gateway("declined")
    for _ in range(2):
        assert create(stage.proxy.plain) == {"status": 402, "message": "the card was declined"}
    assert stage.place.executions == 1 and stage.charges == 0
