"""The worker: charges an order through a ledger, and sends its receipt, over HTTP and through onceproxy.

Every setting here makes Celery deliver a task again rather than lose it. That is right, and it is why the requests need
a key: after a crash, nobody in the worker knows whether the charge was booked.

The key comes with the message. The worker never makes one: a key made inside a task is a new one at each delivery, and
protects nothing.
"""

import json
import os

import celery
import requests

BROKER = os.environ.get("BROKER_URL", "redis://127.0.0.1:6379/0")
# Both through onceproxy. Without it, put the address of the service here, and see what happens.
LEDGER = os.environ.get("LEDGER_URL", "http://127.0.0.1:8080/ledger")
MAIL = os.environ.get("MAIL_URL", "http://127.0.0.1:8080/mail")
# The shop's own service, which marks orders as paid. A PUT of the same state may be repeated, so it needs no guard.
SHOP = os.environ.get("SHOP_URL", "http://127.0.0.1:3000/shop")
# Connecting, and between two bytes of the answer. It should be longer than the proxy's `timeout`: giving up earlier is
# safe, since the next attempt joins the running one, but it costs an attempt.
TIMEOUT = (5, 70)

app = celery.Celery("tasks", broker=BROKER, backend=BROKER)
app.conf.update(
    # The message is acknowledged when the task has ended, so a worker that dies leaves it to another.
    task_acks_late=True,
    # A pool process that is killed (out of memory, kill -9) puts the message back at once.
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    # Redis does not know that a worker died. A message that is not acknowledged within this time is delivered again,
    # also if the task merely takes longer, or waits for its next attempt. Seconds. The default, an hour, only makes the
    # same thing rarer, and each recovery an hour late.
    broker_transport_options={"visibility_timeout": int(os.environ.get("VISIBILITY_TIMEOUT", "120"))},
    broker_connection_retry_on_startup=True,
)


class TryAgain(Exception):
    """The request may be sent again, with the same key. Celery does so."""


class NeedsPerson(Exception):
    """Nobody can tell whether the request was executed. Trying again cannot find out; a person can."""


class Refused(Exception):
    """The service said no, and will say so again."""


def post(url, body, key):
    """Sends a request that must take effect once, and returns its answer as JSON."""
    headers = {
        "Idempotency-Key": key,
        "Content-Type": "application/json",
        # With it, whoever looks at the ledger sees which process asked.
        "User-Agent": f"tasks/{os.getpid()}",
    }
    # Sorted, because the same key must come with the same bytes.
    data = json.dumps(body, sort_keys=True)
    try:
        answer = requests.post(url, data, headers=headers, timeout=TIMEOUT, allow_redirects=False)
    except requests.RequestException as error:
        # No answer says nothing about the charge. With the same key it is safe to ask again.
        raise TryAgain(str(error)) from error
    if answer.status_code in (200, 201):
        return answer.json()
    said = f"{answer.status_code} {answer.text}"
    is_problem = answer.headers.get("Content-Type", "") == "application/problem+json"
    retry = answer.json().get("retry") if is_problem else None
    if retry == "operator":
        raise NeedsPerson(said)
    # A 5xx of the service itself: onceproxy remembers it, and the next answer says what became of it.
    if retry == "same-key" or retry is None and (answer.status_code >= 500 or answer.status_code == 429):
        raise TryAgain(said)
    raise Refused(said)


retried = {"autoretry_for": (TryAgain,), "retry_backoff": True, "retry_backoff_max": 60, "max_retries": 10}


@app.task(**retried)
def charge(order, cents, key):
    """Charges an order, then tells the shop. Returns the charge's id."""
    charged = post(f"{LEDGER}/charges", {"cents": cents, "order": order}, key)["id"]
    # After the charge anything may fail. The whole task runs again then, the charge included.
    try:
        requests.put(f"{SHOP}/orders/{order}/paid", json={"charge": charged}, timeout=TIMEOUT).raise_for_status()
    except requests.RequestException as error:
        raise TryAgain(str(error)) from error
    return charged


@app.task(**retried)
def send_receipt(order, to, key):
    """Sends the receipt of an order. Returns the message's id."""
    return post(f"{MAIL}/messages", {"subject": f"Receipt for {order}", "to": to}, key)["id"]
