"""Deliveries signed by the senders' own libraries pass `verify`, and the same under another secret do not."""

import base64
import datetime
import hashlib
import hmac
import json
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest
import stripe
from slack_sdk.signature import SignatureVerifier
from standardwebhooks.webhooks import Webhook
from twilio.request_validator import RequestValidator

from proxy import OPENER, PATIENCE

BODY = json.dumps({"id": "evt_1", "object": "event", "text": "späße"})
FORM = {"CallSid": "CA1", "Digits": "1234", "From": "+14158675309", "Body": "a b&c=ä"}


def of_stripe(secret, _):
    """What Stripe's library would call genuine."""
    moment = int(time.time())
    signature = stripe.WebhookSignature._compute_signature(f"{moment}.{BODY}", secret)
    return {"Stripe-Signature": f"t={moment},v1={signature}"}, BODY


def of_standard(secret, _):
    """Signed by the library of Standard Webhooks."""
    now = datetime.datetime.now(tz=datetime.timezone.utc)
    signature = Webhook(secret).sign("msg_1", now, BODY)
    return {"webhook-id": "msg_1", "webhook-timestamp": str(int(now.timestamp())), "webhook-signature": signature}, BODY


def of_slack(secret, _):
    """Signed by Slack's library, which does it to verify."""
    moment = str(int(time.time()))
    signature = SignatureVerifier(secret).generate_signature(timestamp=moment, body=BODY)
    return {"X-Slack-Signature": signature, "X-Slack-Request-Timestamp": moment}, BODY


def of_twilio(secret, url):
    """A form, signed by Twilio's library."""
    signature = RequestValidator(secret).compute_signature(url, FORM)
    form = {"X-Twilio-Signature": signature, "Content-Type": "application/x-www-form-urlencoded"}
    return form, urllib.parse.urlencode(FORM)


def of_shopify(secret, _):
    """As Shopify's documentation does it."""
    tag = hmac.new(secret.encode(), BODY.encode(), hashlib.sha256).digest()
    return {"X-Shopify-Hmac-Sha256": base64.b64encode(tag).decode()}, BODY


SECRETS = {"standard-webhooks": ["whsec_" + base64.b64encode(name).decode() for name in (b"one" * 8, b"two" * 8, b"three" * 8)]}
SENDERS = {
    "stripe": of_stripe,
    "standard-webhooks": of_standard,
    "slack": of_slack,
    "twilio": of_twilio,
    "shopify": of_shopify,
}


def post(url, headers, body):
    """The status of a delivery."""
    request = urllib.request.Request(url, body.encode(), headers, method="POST")
    try:
        with OPENER.open(request, timeout=PATIENCE) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize("sender", SENDERS)
def test_what_the_library_signs_is_genuine(sender, start, upstream, tmp_path):
    one, two, other = SECRETS.get(sender, ["whsec_one", "two", "three"])
    files = []
    for number, secret in enumerate((one, two)):
        files.append(tmp_path / str(number))
        files[-1].write_text(secret + "\n")
    places = ", ".join(f'{{ file = "{file}" }}' for file in files)
    place = upstream.place()
    proxy = start(
        f'[[route]]\nname = "hooks"\nupstream = "http://{upstream.authority}"\npreset = "webhook"\n'
        f'[route.verify]\npreset = "{sender}"\nsecrets = [{places}]\n'
    )
    url = f"http://{proxy.plain}{place.path}?a=1&b=%2F"
    for secret, status in ((one, 201), (two, 201), (other, 401)):
        headers, body = SENDERS[sender](secret, url)
        assert post(url, {"Content-Type": "application/json"} | headers, body) == status, secret
        # Twilio signs what a form means: one more pair is another one.
        assert post(url, {"Content-Type": "application/json"} | headers, body + "&x=1") == 401
    assert place.executions in (1, 2)
