"""Clients that know of the proxy by HTTP_PROXY alone."""

import pytest
import requests

from programs import BODY, fields, heads, run

ROUTE = '[egress]\nallow = ["{}"]\n[[route]]\nname = "out"\nupstream = "http://{{host}}"\n'


@pytest.fixture
def egress(world, start):
    """A proxy that lets requests out to the upstream alone."""
    return start(ROUTE.format(world.upstream.authority))


def by_curl(proxy, url, key):
    """curl with -x."""
    asked = ["-H", f"Idempotency-Key: {key}", "-d", BODY.decode(), "-H", "Content-Type: application/json"]
    _, status, found, body = heads(run("curl", "-sS", "-i", "-x", f"http://{proxy}", *asked, url).decode())
    return status, found.get("idempotent-replayed"), body


def by_requests(proxy, url, key):
    """requests with HTTP_PROXY in its environment, as it is for programs that nobody changes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("http_proxy", f"http://{proxy}")
        patch.setenv("no_proxy", "")
        answer = requests.post(url, data=BODY, headers=fields(key), timeout=60)
    return answer.status_code, answer.headers.get("Idempotent-Replayed"), answer.text


@pytest.mark.parametrize("ask", [by_curl, by_requests])
def test_an_unmodified_client_is_protected(world, egress, ask):
    place = world.place()
    url = f"http://{world.upstream.authority}{place.path}"
    assert ask(egress.plain, url, "k-1") == (201, None, '{"id": "ch_1"}')
    assert ask(egress.plain, url, "k-1") == (201, "true", '{"id": "ch_1"}')
    assert place.executions == 1
    assert place.requests[0].target == place.path


@pytest.mark.parametrize("ask", [by_curl, by_requests])
def test_other_hosts_are_refused(egress, ask):
    status, _, body = ask(egress.plain, "http://169.254.169.254/latest", "k-1")
    assert status == 403 and "egress-refused" in body
