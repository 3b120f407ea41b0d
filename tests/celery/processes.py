"""Processes and sockets that the tests in Python start: the proxy, Redis, and a relay that loses an answer.

Each is found by port 0 or a free port, and ended by its process id. Nothing sleeps to wait for something to be ready: a wait
looks at what it waits for, and ends a run that takes too long.
"""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Seconds, for one step. A redelivery by Redis takes ten at most, a start of a worker a few.
PATIENCE = 60


class Fault(Exception):
    """What a scenario waited for did not happen, or something else did."""


def until(what, look):
    """Looks until there is something to see, and returns it."""
    deadline = time.monotonic() + PATIENCE
    while not (seen := look()):
        if time.monotonic() > deadline:
            raise Fault(f"waited {PATIENCE} s for {what}")
        time.sleep(0.05)
    return seen


def binary():
    """The proxy: ONCEPROXY_BIN, else the one that cargo built last for development."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    path = pathlib.Path(os.environ.get("ONCEPROXY_BIN", target / "debug" / "onceproxy")).resolve()
    if not path.exists():
        sys.exit(f"there is no {path}; run make test-celery, which builds it")
    return path


class Relay:
    """What stands between worker and service, and loses the answer on its first connection."""

    def __init__(self, target):
        host, port = target.removeprefix("http://").split(":")
        self.target = (host, int(port))
        self.lost, self.accepted = 0, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def _accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            self.accepted += 1
            far = socket.create_connection(self.target)
            threading.Thread(target=self._copy, args=(near, far), daemon=True).start()
            threading.Thread(target=self._copy, args=(far, near, self.accepted == 1), daemon=True).start()

    def _copy(self, source, sink, loses=False):
        try:
            while data := source.recv(65536):
                if loses:
                    self.lost += 1
                    break
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def clean_environment():
    """This environment without settings of a proxy, and without a proxy for HTTP."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ONCEPROXY_")}
    return kept | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "PYTHONUNBUFFERED": "1"}


def end(process):
    """Ends a process that this run started."""
    if process.poll() is None:
        process.kill()
    process.wait()


class Proxy:
    """A proxy that runs, with these settings, records in this folder, and listeners on free ports."""

    def __init__(self, folder, settings):
        file, log = folder / "onceproxy.toml", folder / "onceproxy.log"
        file.write_text(f'{settings}\n[log]\nformat = "json"\n')
        listen = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--store", f"disk:{folder}/data"]
        self.process = subprocess.Popen(
            [binary(), "serve", "--config", file, *listen], env=clean_environment(), stderr=log.open("ab")
        )

        def addresses():
            text = log.read_text()
            if self.process.poll() is not None:
                raise Fault(f"onceproxy ended:\n{text}")
            lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
            fields = [line.get("fields", line) for line in lines]
            found = {line["listener"]: line["address"] for line in fields if "listener" in line}
            return found if len(found) == 2 else None

        found = until("onceproxy to listen", addresses)
        self.admin = found.pop("admin")
        self.url = "http://{}".format(*found.values())


class Broker:
    """A Redis server of this run, with a database for each world."""

    def __init__(self, folder):
        log = folder / "redis.log"
        # A port that was free a moment ago may be taken by now.
        for _ in range(5):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self.port = probe.getsockname()[1]
            self.process = subprocess.Popen(
                ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--databases", "64"],
                cwd=folder,
                stdout=log.open("ab"),
                stderr=subprocess.STDOUT,
            )
            if until("Redis to listen, or to end", self._listens_or_ended) == "listens":
                self.database = 0
                return
        raise Fault(f"Redis does not start:\n{log.read_text()}")

    def _listens_or_ended(self):
        if self.process.poll() is not None:
            return "ended"
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                connection.sendall(b"PING\r\n")
                return "listens" if connection.recv(16) == b"+PONG\r\n" else None
        except OSError:
            return None

    def url(self):
        """The URL of a database that nobody else has."""
        self.database += 1
        return f"redis://127.0.0.1:{self.port}/{self.database}"


def children(pid):
    """The processes that a process started."""
    try:
        return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def kill(pid):
    """Ends a process as the kernel does when memory is short: it gets no chance to say anything."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
