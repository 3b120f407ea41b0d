"""What stands between client and proxy, and loses answers: it resets the connection after the request went through."""

import contextlib
import socket
import struct
import threading


class Relay:
    """Passes bytes on. Of the POSTs that come through, those whose numbers are in `loses` (from 1) get no answer."""

    def __init__(self, target, loses):
        host, port = target.split(":")
        self.target, self.loses = (host, int(port)), set(loses)
        self.lock, self.posts, self.lost, self.connections = threading.Lock(), 0, 0, 0
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.authority = "127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                self.connections += 1
                pair = Pair(near, socket.create_connection(self.target))
                threading.Thread(target=self._requests, args=(pair,), daemon=True).start()
                threading.Thread(target=self._answers, args=(pair,), daemon=True).start()

    def _requests(self, pair):
        with contextlib.suppress(OSError):
            while data := pair.near.recv(65536):
                if data.startswith(b"POST "):
                    with self.lock:
                        self.posts += 1
                        pair.doomed = self.posts in self.loses
                pair.far.sendall(data)
        pair.close()

    def _answers(self, pair):
        with contextlib.suppress(OSError):
            while data := pair.far.recv(65536):
                if pair.doomed and not data.startswith(b"HTTP/1.1 100"):
                    self.lost += 1
                    pair.reset()
                    return
                pair.near.sendall(data)
        pair.close()

    def close(self):
        """Accepts no more."""
        self.listener.close()


class Pair:
    """A connection of a client, and the one to the proxy that belongs to it."""

    def __init__(self, near, far):
        self.near, self.far, self.doomed, self.is_reset = near, far, False, False
        for side in (near, far):
            side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self):
        """Ends both sides; whoever reads there is told."""
        for side in (self.far,) if self.is_reset else (self.near, self.far):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

    def reset(self):
        """Resets the client's side, as a machine does that lost the connection."""
        self.is_reset = True
        self.near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with contextlib.suppress(OSError):
            self.far.shutdown(socket.SHUT_RDWR)
            # The other thread reads here; as long as it does the socket is not closed.
            self.near.shutdown(socket.SHUT_RD)
        self.near.close()
