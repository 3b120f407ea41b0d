"""An endpoint that handles whatever is delivered, and says so. It listens on loopback: only the proxy reaches it."""

import http.server
import signal
import sys


class Endpoint(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        print("handled", self.path, self.headers.get("X-GitHub-Delivery"), len(body), "bytes", flush=True)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


# The first process of a container has no default for this signal.
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
http.server.ThreadingHTTPServer(("127.0.0.1", 3000), Endpoint).serve_forever()
