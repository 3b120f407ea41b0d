"""What a scenario runs in: services that can hold an answer or lose it, a broker, workers, and onceproxy or nothing."""

import json
import re
import subprocess
import sys
import threading
import urllib.request

from processes import PATIENCE, ROOT, Fault, Proxy, Relay, binary, children, clean_environment, end, kill, until

EXAMPLE = ROOT / "examples" / "celery"
sys.path.insert(0, str(EXAMPLE))

import celery  # noqa: E402
from services import Services  # noqa: E402

# Seconds: what is taken and not acknowledged for longer is delivered again, at the worker's next look.
VISIBILITY_TIMEOUT = 1
# No proxy of the environment stands in between.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


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


class World:
    """One run of one scenario, with onceproxy between worker and services (`guarded`) or without."""

    def __init__(self, folder, broker, guarded):
        self.folder, self.guarded = folder, guarded
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
            env=self.environment,
            stderr=(self.folder / f"{name}.log").open("ab"),
            text=True,
            **how,
        )
        self.processes.append(process)
        return process

    def _start_proxy(self):
        """Starts onceproxy with the settings of the example, but for the ports."""
        settings = (EXAMPLE / "onceproxy.toml").read_text()
        upstream = '"http://127.0.0.1:3000"'
        assert settings.count(upstream) == 2, "the example's upstream has another address"
        proxy = Proxy(self.folder, settings.replace(upstream, f'"{self.services.url}"'))
        self.processes.append(proxy.process)
        self.admin = proxy.admin
        return proxy.url

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
        return self._run("command", [binary(), *arguments, "--admin", self.admin])

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
