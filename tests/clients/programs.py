"""The clients that every question is put to: functions that ask several times at once and return the answers."""

import asyncio
import atexit
import concurrent.futures
import functools
import json
import pathlib
import re
import shutil
import ssl
import subprocess
import tempfile

import aiohttp
import httpx
import requests

from proxy import PATIENCE, clean_environment

HERE = pathlib.Path(__file__).parent
BODY = b'{"amount": 10}'


class Answer:
    """What a client made of an answer: names of fields are in lower case."""

    def __init__(self, status, headers, body):
        self.status, self.body = int(status), body if isinstance(body, str) else body.decode()
        self.headers = {name.lower(): value for name, value in headers.items()}

    @property
    def replayed(self):
        """Whether the proxy says that it comes from a record."""
        return self.headers.get("idempotent-replayed") == "true"

    def __repr__(self):
        return f"{self.status} {self.headers} {self.body!r}"


def run(*command, **environment):
    """Runs a program to its end, and returns what it printed. Failing is a failed test, with what it said."""
    done = subprocess.run(
        [str(part) for part in command], env=clean_environment(**environment), capture_output=True, timeout=PATIENCE
    )
    said = f"{command} exited with {done.returncode}:\n{done.stdout[-3000:]!r}\n{done.stderr[-3000:]!r}"
    assert done.returncode == 0, said
    return done.stdout


def fields(key):
    """The fields of a request."""
    return {"Content-Type": "application/json"} | ({"Idempotency-Key": key} if key else {})


def heads(text):
    """What `curl -i` printed, interim answers left out: (version, status, fields, the rest)."""
    while True:
        head, _, rest = text.partition("\r\n\r\n")
        line, *lines = head.split("\r\n")
        version, status = re.match(r"HTTP/([\d.]+) (\d+)", line).groups()
        if not status.startswith("1"):
            return version, int(status), dict(one.split(": ", 1) for one in lines), rest
        text = rest


def together(count, ask):
    """Calls it so many times at once."""
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda _: ask(), range(count)))


def curl(world, url, key, count, method, *options):
    """curl; over TLS with HTTP/2 all transfers of a call share a connection."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["curl", "-sS", "-i", "--parallel", "--cacert", world.cert, *options]
        # Elsewhere curl would have the others wait for the first answer, to see whether they may share its connection.
        command += [] if url.startswith("https") else ["--parallel-immediate"]
        command += [part for pair in fields(key).items() for part in ("-H", ": ".join(pair))]
        command += ["--data-raw", BODY.decode()] if method == "POST" else []
        # A fragment is not sent: it only makes the URLs several.
        run(*command, "-o", f"{folder}/#1", f"{url}#[1-{count}]")
        answers = []
        for number in range(1, count + 1):
            version, status, found, body = heads(pathlib.Path(f"{folder}/{number}").read_bytes().decode())
            assert version == ("2" if options else "1.1"), version
            answers.append(Answer(status, found, body))
        return answers


def by_requests(world, url, key, count, method):
    """requests, with a session for each thread."""

    def ask():
        with requests.Session() as session:
            session.trust_env = False
            data = BODY if method == "POST" else None
            answer = session.request(method, url, headers=fields(key), data=data, verify=world.cert, timeout=PATIENCE)
            return Answer(answer.status_code, answer.headers, answer.text)

    return together(count, ask)


def by_httpx(world, url, key, count, method, http2):
    """httpx; with HTTP/2 all requests share a connection."""

    async def main():
        verify = ssl.create_default_context(cafile=world.cert)
        # Over cleartext httpx speaks HTTP/2 only if it is not to speak HTTP/1.1.
        how = {"http2": http2, "http1": not http2, "verify": verify, "trust_env": False, "timeout": PATIENCE}
        async with httpx.AsyncClient(**how) as client:
            body = {"content": BODY} if method == "POST" else {}
            ask = functools.partial(client.request, method, url, headers=fields(key), **body)
            answers = await asyncio.gather(*(ask() for _ in range(count)))
            assert all(one.http_version == ("HTTP/2" if http2 else "HTTP/1.1") for one in answers)
            return [Answer(one.status_code, one.headers, one.text) for one in answers]

    return asyncio.run(main())


def by_aiohttp(world, url, key, count, method):
    """aiohttp, with one session."""

    async def main():
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(PATIENCE)) as session:

            async def ask():
                body = {"data": BODY} if method == "POST" else {}
                async with session.request(method, url, headers=fields(key), **body) as answer:
                    return Answer(answer.status, answer.headers, await answer.text())

            return await asyncio.gather(*(ask() for _ in range(count)))

    return asyncio.run(main())


def answers(printed):
    """Answers from lines of JSON."""
    lines = [json.loads(line) for line in printed.splitlines()]
    return [Answer(line["status"], line["headers"], line["body"]) for line in lines]


def node(world, url, key, count, method, how, **environment):
    """Node: fetch, or node:http with an agent that keeps connections."""
    command = ["node", HERE / "node" / "ask.mjs", how, url, key or "", count, method]
    return answers(run(*command, NODE_EXTRA_CA_CERTS=str(world.cert), **environment))


@functools.cache
def compiled():
    """The client in Go, compiled once."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    environment = {"GO111MODULE": "off", "GOCACHE": f"{folder}/cache", "GOPATH": f"{folder}/path", "GOFLAGS": ""}
    run("go", "build", "-o", f"{folder}/ask", HERE / "go" / "ask.go", **environment)
    return f"{folder}/ask"


def go(world, url, key, count, method, *warm):
    """Go's net/http."""
    return answers(run(compiled(), url, key or "", count, method, *warm, SSL_CERT_FILE=str(world.cert)))


def with_options(*options):
    """curl with these options."""
    return lambda *asked: curl(*asked, *options)


# By name: over http or https, and how to ask.
CLIENTS = {
    "curl": ("http", curl),
    "curl-tls-h2": ("https", with_options("--http2")),
    "curl-h2c": ("http", with_options("--http2-prior-knowledge")),
    "requests": ("http", by_requests),
    "requests-tls": ("https", by_requests),
    "httpx": ("http", functools.partial(by_httpx, http2=False)),
    "httpx-tls-h2": ("https", functools.partial(by_httpx, http2=True)),
    "httpx-h2c": ("http", functools.partial(by_httpx, http2=True)),
    "aiohttp": ("http", by_aiohttp),
    "node-fetch": ("http", functools.partial(node, how="fetch")),
    "node-agent-tls": ("https", functools.partial(node, how="agent")),
    "go": ("http", go),
    "go-tls-h2": ("https", go),
}
