"""What the worker calls: a ledger, a mail service and the shop, in one server that keeps everything in memory.

    python services.py 3000

It is as careless as many: each POST of a charge or a message takes effect, and nobody looks at the Idempotency-Key.
GET answers with all that took effect.
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Services(ThreadingHTTPServer):
    """The server, and what took effect: path -> list of entries."""

    daemon_threads = True

    def __init__(self, address):
        super().__init__(address, Handler)
        self.lock = threading.Lock()
        self.effects = {}

    def take_effect(self, path, body, agent):
        """Does what was asked for, and returns the entry with its id."""
        with self.lock:
            entries = self.effects.setdefault(path, [])
            entry = {"id": f"{path.strip('/').replace('/', '-')}-{len(entries) + 1}", "asked": body, "by": agent}
            entries.append(entry)
            return entry

    def may_answer(self, method, path, number):
        """Called between an effect and its answer; False closes the connection without one."""
        return True


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        entry = self.server.take_effect(self.path, body, self.headers.get("User-Agent", ""))
        number = int(entry["id"].rsplit("-", 1)[1])
        if self.server.may_answer(self.command, self.path, number):
            self.answer(201, entry)
        else:
            self.close_connection = True

    do_PUT = do_POST

    def do_GET(self):
        with self.server.lock:
            self.answer(200, self.server.effects)

    def answer(self, status, value):
        data = json.dumps(value, indent=1).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    Services(("127.0.0.1", int(sys.argv[1]))).serve_forever()
