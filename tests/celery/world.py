"""What a scenario runs in: services that can hold an answer or lose it, a broker, workers, and onceproxy or nothing.

Everything is a process or a socket of its own, found by port 0 and ended by its process id. Nothing sleeps to wait for
something to be ready: a wait looks at what it waits for, and ends a run that takes too long.
"""

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "celery"
sys.path.insert(0, str(EXAMPLE))

import celery  # noqa: E402
from services import Services  # noqa: E402

# For one step of a scenario. A redelivery by Redis takes ten seconds at most, a start of a worker a few.
PATIENCE = 60
# Seconds: what is taken and not acknowledged for longer is delivered again, at the worker's next look.
VISIBILITY_TIMEOUT = 1
# No proxy of the environment stands in between.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


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


class WatchedServices(Services):
    """The services of the example, with answers that wait for a word, or never leave.

    `held` and `lost` hold pairs of a path and the number of the effect there: ("/charges", 1) is the first charge.
    """

    def __init__(self):
        super().__init__(("127.0.0.1", 0))
        self.held, self.lost = set(), set()
        self.let_go = threading.Event()
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def may_answer(self, method, path, number):
        if (path, number) in self.held and not self.let_go.wait(PATIENCE):
            return False
        return (path, number) not in self.lost

    def count(self, path):
        with self.lock:
            return len(self.effects.get(path, ()))

    def reached(self, path, number):
        """Waits for this effect and returns who asked for it."""
        until(f"number {number} of {path}", lambda: self.count(path) >= number)
        return self.effects[path][number - 1]["by"]

    def handle_error(self, *_):
        """A worker that was killed while it waited for its answer is no error here."""


class Relay:
    """A connection between worker and service, which loses the first answer that it carries."""

    def __init__(self, target):
        host, port = target.removeprefix("http://").split(":")
        self.target = (host, int(port))
        self.lost = 0
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
            far = socket.create_connection(self.target)
            threading.Thread(target=self._copy, args=(near, far), daemon=True).start()
            threading.Thread(target=self._copy, args=(far, near, self.lost == 0), daemon=True).start()

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


class World:
    """One run of one scenario, with onceproxy between worker and services (`guarded`) or without."""

    def __init__(self, folder, binary, broker, guarded):
        self.folder, self.binary, self.guarded = folder, binary, guarded
        self.processes = []
        self.services = WatchedServices()
        self.admin = None
        self.base = self._start_proxy() if guarded else self.services.url
        self.environment = clean_environment() | {
            "BROKER_URL": broker,
            "SHOP_URL": f"{self.services.url}/shop",
            "VISIBILITY_TIMEOUT": str(VISIBILITY_TIMEOUT),
        }
        self._call_through(self.base)
        self.client = celery.Celery(broker=broker, backend=broker)

    def _call_through(self, base):
        self.environment["LEDGER_URL"] = f"{base}/ledger"
        self.environment["MAIL_URL"] = f"{base}/mail"

    def _popen(self, name, command, **how):
        process = subprocess.Popen(
            [str(part) for part in command],
            env=getattr(self, "environment", None) or clean_environment(),
            stderr=(self.folder / f"{name}.log").open("ab"),
            text=True,
            **how,
        )
        self.processes.append(process)
        return process

    def _start_proxy(self):
        """Starts onceproxy with the settings of the example, but for the ports, and returns its address."""
        settings = (EXAMPLE / "onceproxy.toml").read_text()
        upstream = '"http://127.0.0.1:3000"'
        assert settings.count(upstream) == 2, "the example's upstream has another address"
        file = self.folder / "onceproxy.toml"
        log = '[log]\nformat = "json"\n'
        file.write_text(settings.replace(upstream, f'"{self.services.url}"') + log)
        listen = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--store", f"disk:{self.folder}/data"]
        self._popen("onceproxy", [self.binary, "serve", "--config", file, *listen])

        def addresses():
            lines = (self.folder / "onceproxy.log").read_text().splitlines(keepends=True)
            if self.processes[-1].poll() is not None:
                raise Fault(f"onceproxy ended:\n{''.join(lines)}")
            lines = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]
            fields = [line.get("fields", line) for line in lines]
            found = {line["listener"]: line["address"] for line in fields if "listener" in line}
            return found if len(found) == 2 else None

        found = until("onceproxy to listen", addresses)
        self.admin = found.pop("admin")
        return "http://{}".format(*found.values())

    def lose_first_answer(self):
        """Puts a relay before what the worker calls, which loses the first answer."""
        self.relay = Relay(self.base)
        self._call_through(self.relay.url)

    def worker(self):
        """Starts a worker of the example, with one task at a time."""
        number = sum(process.args[1:2] == ["-m"] for process in self.processes) + 1
        command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--concurrency", "1"]
        quiet = ["--loglevel", "INFO", "--without-gossip", "--without-mingle", "--hostname", f"worker-{number}@%h"]
        out = (self.folder / f"worker-{number}.log").open("ab")
        return self._popen(f"worker-{number}", command + quiet, cwd=EXAMPLE, stdout=out)

    def _run(self, name, command):
        process = self._popen(name, command, cwd=EXAMPLE, stdout=subprocess.PIPE)
        out, _ = process.communicate(timeout=PATIENCE)
        if process.returncode:
            raise Fault(f"{command} exited with {process.returncode}")
        return out.strip()

    def publish(self, *arguments):
        """Publishes a task as the shop does, and returns it."""
        return self.client.AsyncResult(self._run("publish", [sys.executable, "publish.py", *arguments]))

    def call(self, task, **arguments):
        """Publishes a task as a person does, by hand, and returns it."""
        command = [sys.executable, "-m", "celery", "-A", "tasks", "call", task, "--kwargs", json.dumps(arguments)]
        return self.client.AsyncResult(self._run("call", command))

    def onceproxy(self, *arguments):
        """Runs a command of onceproxy against the one that runs, and returns what it prints."""
        return self._run("command", [self.binary, *arguments, "--admin", self.admin])

    def waiting(self):
        """How many duplicates wait at onceproxy for a running attempt."""
        with OPENER.open(f"http://{self.admin}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        return sum(float(value) for value in re.findall(r"^onceproxy_waiting\{.*\} (\S+)$", text, re.MULTILINE))

    def second_request(self, path):
        """Waits until a second request for the same effect has come while the first has no answer yet."""
        if self.guarded:
            until("a duplicate to wait at onceproxy", lambda: self.waiting() >= 1)
        else:
            self.services.reached(path, 2)

    def close(self):
        self.services.let_go.set()
        # In order of their start, and each worker with the children that it would leave behind.
        for process in self.processes:
            for child in children(process.pid) if process.poll() is None else ():
                kill(child)
            end(process)
        self.services.shutdown()
        self.services.server_close()

    def logs(self):
        """What all the processes said, for a scenario that failed."""
        return "".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-6000:]}\n" for path in sorted(self.folder.glob("*.log"))
        )


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
