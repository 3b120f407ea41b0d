"""The upstream: an HTTP/1.1 server that counts what it is asked, and answers as a test says.

A test takes a place of its own, a path that nobody else uses, with a function that answers there. Written on sockets and
not on a framework, because a test wants to send trailers, to cut an answer in the middle, or to hold it back.
"""

import hashlib
import itertools
import socket
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from proxy import PATIENCE, until


def created(exchange, number):
    """A charge, with another id each time."""
    exchange.reply(201, b'{"id": "ch_%d"}' % number, {"Content-Type": "application/json"})


class Received:
    """One request, as it arrived. Of a large body only the beginning is kept."""

    KEPT = 64 * 1024

    def __init__(self, handler):
        self.method, self.target, self.headers = handler.command, handler.path, handler.headers
        self.body, self.length, self.trailers = b"", 0, {}
        self.digest = hashlib.sha256()

    def take(self, data):
        """Adds a piece of the body."""
        self.digest.update(data)
        self.length += len(data)
        self.body += data[: max(0, self.KEPT - len(self.body))]


class Place:
    """A path of the upstream that one test has for itself."""

    def __init__(self, path, answer):
        self.path, self.answer = path, answer
        self.requests, self.lock = [], threading.Lock()
        self.gate = threading.Event()
        self.gate.set()

    def hold(self):
        """Answers wait from now on, until `let_go`."""
        self.gate.clear()

    def let_go(self):
        """The answers that were held back may leave."""
        self.gate.set()

    @property
    def executions(self):
        """How many requests arrived whole."""
        return len(self.requests)

    def reached(self, number):
        """Waits until so many requests have arrived."""
        until(f"request {number} at {self.path}", lambda: self.executions >= number)


class Upstream(ThreadingHTTPServer):
    """Listens on a free port until it is closed."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Exchange)
        self.places, self.numbers = {}, itertools.count(1)
        self.authority = "127.0.0.1:%d" % self.server_address[1]
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def place(self, answer=created, path=None):
        """A new place: everything at this path, or at one of its own, and below."""
        place = Place(path or f"/place-{next(self.numbers)}", answer)
        self.places[place.path] = place
        return place

    def at(self, target):
        """The place of a request's target: the longest path that it is at or below."""
        path = target.partition("?")[0]
        while path and path not in self.places:
            path = path.rpartition("/")[0]
        return self.places.get(path)

    def handle_error(self, *_):
        """A connection that the other side broke is no error here."""


class Exchange(BaseHTTPRequestHandler):
    """One connection: reads a request whole, then answers as its place says."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_POST(self):
        self.received = Received(self)
        self._read_body()
        place = self.server.at(self.path)
        if place is None:
            self.reply(404, b"no test has this place")
            return
        with place.lock:
            place.requests.append(self.received)
            number = place.executions
        place.gate.wait(PATIENCE)
        place.answer(self, number)
        self.wfile.flush()

    do_GET = do_HEAD = do_PUT = do_POST

    def _read_body(self):
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            while size := int(self.rfile.readline().partition(b";")[0], 16):
                self._take(size)
                self.rfile.readline()
            while (line := self.rfile.readline().decode().strip()) != "":
                name, _, value = line.partition(":")
                self.received.trailers[name.lower()] = value.strip()
        else:
            self._take(int(self.headers.get("Content-Length", 0)))

    def _take(self, size):
        while size:
            data = self.rfile.read(min(size, 1 << 20))
            if not data:
                raise ConnectionError("the request ended early")
            self.received.take(data)
            size -= len(data)

    def head(self, status, headers):
        """Sends the head of an answer."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def reply(self, status, body=b"", headers=None):
        """Sends a whole answer."""
        self.head(status, {"Content-Length": str(len(body))} | (headers or {}))
        if self.command != "HEAD":
            self.wfile.write(body)

    def chunk(self, data):
        """Sends a piece of a chunked body at once; an empty one is the last."""
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data) if data else b"0\r\n")
        self.wfile.flush()

    def end_chunks(self, trailers=None):
        """Ends a chunked body."""
        self.chunk(b"")
        for name, value in (trailers or {}).items():
            self.wfile.write(f"{name}: {value}\r\n".encode())
        self.wfile.write(b"\r\n")

    def cut(self):
        """Resets the connection: what was asked is done, and nobody hears of it."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def log_message(self, *_):
        pass
