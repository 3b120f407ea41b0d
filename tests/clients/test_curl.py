"""What curl shows and the other clients do not: trailers, `Expect`, HEAD, uploads of unknown length, Unix sockets."""

import re

import pytest

from programs import heads, run

LARGE = 2 << 20


def summed(exchange, number):
    """A chunked answer with trailers."""
    exchange.head(200, {"Transfer-Encoding": "chunked", "Trailer": "X-Sum, X-Number"})
    exchange.chunk(b"one")
    exchange.chunk(b"two")
    exchange.end_chunks({"X-Sum": "6", "X-Number": str(number)})


@pytest.fixture
def curl(world, tmp_path):
    """Runs curl, and returns what -v says."""

    def curl(*arguments):
        log = tmp_path / "curl.log"
        run("curl", "-sS", "-v", "--cacert", world.cert, "--stderr", log, *arguments)
        return log.read_bytes().decode(errors="replace")

    return curl


def trailing(path):
    """The trailers among the fields that `curl -D` wrote: those after the head."""
    text = path.read_bytes().decode().replace("\r\n", "\n")
    return dict(re.findall(r"^(x-\w+): (.*)$", text.partition("\n\n")[2], re.MULTILINE | re.IGNORECASE))


@pytest.mark.parametrize(
    "over, option", [("http", "--http1.1"), ("https", "--http2"), ("http", "--http2-prior-knowledge")]
)
@pytest.mark.parametrize("key", [True, False], ids=["keyed", "plain"])
def test_trailers_of_answers_arrive(world, curl, tmp_path, over, option, key):
    place, repeats = world.place(summed), 2 if key else 1
    asked = ["-H", f"Idempotency-Key: {world.key()}"] if key else []
    for number in range(repeats):
        written = ["-D", tmp_path / f"{number}.head", "-o", tmp_path / f"{number}"]
        curl(option, "-H", "TE: trailers", "-d", "a=1", *asked, *written, world.url(place, over))
    assert place.executions == 1
    for number in range(repeats):
        assert (tmp_path / f"{number}").read_bytes() == b"onetwo"
        found = {name.lower(): value for name, value in trailing(tmp_path / f"{number}.head").items()}
        assert found == {"x-sum": "6", "x-number": "1"}


def test_a_large_body_is_asked_for(world, curl, tmp_path):
    place, body = world.place(), tmp_path / "body"
    body.write_bytes(b"x" * LARGE)
    for key in [f"Idempotency-Key: {world.key()}", "X-Plain: 1"]:
        said = curl("--expect100-timeout", "60", "-H", key, "--data-binary", f"@{body}", world.url(place))
        assert "> Expect: 100-continue" in said and "< HTTP/1.1 100 Continue" in said and "< HTTP/1.1 201" in said
    assert [received.length for received in place.requests] == [LARGE, LARGE]
    assert [received.headers["Expect"] for received in place.requests] == [None, None]


def test_a_refusal_does_not_ask_for_the_body(world, curl, tmp_path):
    place, body = world.place(), tmp_path / "body"
    body.write_bytes(b"x" * LARGE)
    asked = ["--expect100-timeout", "60", "-H", "Idempotency-Key: has,a-comma", "--data-binary", f"@{body}"]
    said = curl(*asked, world.url(place))
    assert "> Expect: 100-continue" in said and "< HTTP/1.1 400" in said and "100 Continue" not in said
    assert place.executions == 0


def test_a_replay_does_not_ask_for_a_body_that_does_not_count(world, start, curl, tmp_path):
    place, body = world.place(), tmp_path / "body"
    body.write_bytes(b"x" * LARGE)
    route = f'[[route]]\nname = "api"\nupstream = "http://{world.upstream.authority}"\nfingerprint.body = "ignore"\n'
    proxy = start(route)
    asked = ["--expect100-timeout", "60", "-H", "Idempotency-Key: k-1", "--data-binary", f"@{body}"]
    first, second = (curl(*asked, f"http://{proxy.plain}{place.path}") for _ in range(2))
    assert "100 Continue" in first and "< HTTP/1.1 201" in first
    assert "100 Continue" not in second and "< HTTP/1.1 201" in second and "idempotent-replayed: true" in second
    assert place.executions == 1 and place.requests[0].length == LARGE


@pytest.mark.parametrize("over, option", [("http", "--http1.1"), ("https", "--http2")])
def test_head_has_fields_and_no_body(world, over, option):
    place = world.place(lambda exchange, number: exchange.reply(200, b"a body of 17 byte"))
    said = run("curl", "-sS", "-I", "--cacert", world.cert, option, world.url(place, over)).decode()
    _, status, fields, rest = heads(said)
    assert status == 200 and rest == ""
    assert {name.lower(): value for name, value in fields.items()}["content-length"] == "17"
    assert [received.method for received in place.requests] == ["HEAD"]


@pytest.mark.parametrize("option", ["--http1.1", "--http2-prior-knowledge"])
def test_an_upload_of_unknown_length_arrives(world, curl, tmp_path, option):
    place, key = world.place(), world.key()
    pieces = tmp_path / "pieces"
    pieces.write_bytes(b"0123456789" * 20_000)
    chunked = [option, "-H", "Transfer-Encoding: chunked"] if option == "--http1.1" else [option]
    for field in [f"Idempotency-Key: {key}", f"Idempotency-Key: {key}", "X-Plain: 1"]:
        # From a pipe curl cannot tell the length.
        run("sh", "-c", 'cat "$0" | curl -sS -f -T - -X POST "$@"', pieces, *chunked, "-H", field, world.url(place))
    assert [received.length for received in place.requests] == [200_000, 200_000]
    assert len({received.digest.hexdigest() for received in place.requests}) == 1


def test_a_connection_goes_on_after_a_refusal(world):
    place = world.place()
    url = world.url(place)
    one = ["-w", "%{http_code} %{num_connects}\\n", "-o", "/dev/null", "-d", "a=1", "-H"]
    keys = ['Idempotency-Key: "open', f"Idempotency-Key: {world.key()}", "Idempotency-Key: a,b"]
    arguments = [*one, keys[0], url, "--next", "-sS", *one, keys[1], url, "--next", "-sS", *one, keys[2], url]
    printed = run("curl", "-sS", *arguments).decode()
    # Only the first transfer made a connection.
    assert printed.splitlines() == ["400 1", "201 0", "400 0"]
    assert place.executions == 1


def test_a_unix_socket_is_a_listener_too(world):
    place, key = world.place(), world.key()
    command = ["curl", "-sS", "-i", "--unix-socket", world.proxy.socket, "-d", "a=1"]
    answers = [heads(run(*command, "-H", f"Idempotency-Key: {key}", f"http://api{place.path}").decode()) for _ in "12"]
    assert [(status, body) for _, status, _, body in answers] == [(201, '{"id": "ch_1"}')] * 2
    assert answers[1][2]["idempotent-replayed"] == "true"
    # The same record as by TCP, where the host is the same: it counts.
    named = ["-H", f"Idempotency-Key: {key}", "-H", "Host: api"]
    by_tcp = heads(run("curl", "-sS", "-i", "-d", "a=1", *named, world.url(place)).decode())
    assert by_tcp[2]["idempotent-replayed"] == "true" and place.executions == 1


def test_an_upgrade_to_http2_is_not_one(world):
    place, key = world.place(), world.key()
    asked = ["curl", "-sS", "-i", "--http2", "-d", "a=1", "-H", f"Idempotency-Key: {key}", world.url(place)]
    version, status, _, _ = heads(run(*asked).decode())
    assert (version, status) == ("1.1", 201)
    assert heads(run(*asked).decode())[2]["idempotent-replayed"] == "true" and place.executions == 1
    assert place.requests[0].headers["Upgrade"] is None and place.requests[0].headers["HTTP2-Settings"] is None
