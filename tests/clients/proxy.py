"""The proxy under test, a process of its own: the release binary on free ports, ready by /readyz, ended by its id."""

import json
import os
import pathlib
import re
import subprocess
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Seconds, for one step. All of them take far less; a loaded machine takes longer.
PATIENCE = 60
# No proxy of the environment stands in between.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def until(what, look):
    """Looks until there is something to see, and returns it."""
    deadline = time.monotonic() + PATIENCE
    while not (seen := look()):
        assert time.monotonic() < deadline, f"waited {PATIENCE} s for {what}"
        time.sleep(0.01)
    return seen


def binary():
    """The proxy: ONCEPROXY_BIN, else the release that cargo built last."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    path = pathlib.Path(os.environ.get("ONCEPROXY_BIN", target / "release" / "onceproxy")).resolve()
    assert path.exists(), f"there is no {path}; run make test-clients, which builds it"
    return path


def clean_environment(**more):
    """This environment without settings of a proxy, and with these."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("ONCEPROXY_") and not name.lower().endswith("_proxy")
    }
    return kept | more


def certificate(folder):
    """Makes a certificate for localhost and 127.0.0.1 that is its own authority; returns its file and its key's."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        + ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
        + ["-keyout", str(key), "-out", str(cert)],
        check=True,
        capture_output=True,
    )
    return cert, key


class Proxy:
    """A proxy that runs. `plain` and `tls` are the addresses of its listeners, `socket` the path of its Unix socket."""

    def __init__(self, folder, routes, more="", secured=None, h2c=True):
        """Starts it with these routes; `more` goes to the top of the settings. With `secured` it has all listeners."""
        self.folder, self.socket, self.secured = folder, folder / "proxy.sock", secured
        listen = ["http://127.0.0.1:0"] + (["127.0.0.1:0", f"unix:{self.socket}"] if secured else [])
        tls = f'\n[tls]\ncert_file = "{secured[0]}"\nkey_file = "{secured[1]}"\n' if secured else ""
        file, self.log = folder / "onceproxy.toml", folder / "onceproxy.log"
        file.write_text(
            f"listen = {json.dumps(listen)}\nh2c = {json.dumps(h2c)}\n{more}{tls}\n"
            f'[log]\nformat = "json"\n[admin]\nlisten = "127.0.0.1:0"\n'
            f'[store]\nurl = "disk:{folder}/data"\ntimeout = "10s"\n{routes}'
        )
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [binary(), "serve", "--config", file], env=clean_environment(), stdout=log, stderr=log
            )
        try:
            found = until("onceproxy to listen", lambda: self._listeners(len(listen) + 1))
            self.admin = found["admin"][0]
            self.plain = next(address for address in found["proxy"] if self.is_plain[address])
            self.tls = next((address for address in found["proxy"] if not self.is_plain[address]), None)
            until("onceproxy to be ready", lambda: self.ask_admin("/readyz") is not None)
        except BaseException:
            self.end()
            raise

    def _listeners(self, count):
        """The addresses that the log names, once there are so many."""
        text = self.log.read_text()
        assert self.process.poll() is None, f"onceproxy ended:\n{text}"
        lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        fields = [line.get("fields", line) for line in lines]
        fields = [line for line in fields if "listener" in line]
        self.is_plain = {line["address"]: not line.get("tls") and ":" in line["address"][:15] for line in fields}
        found = {}
        for line in fields:
            found.setdefault(line["listener"], []).append(line["address"])
        return found if len(fields) == count else None

    def ask_admin(self, path):
        """What the operator's listener answers, or None if it is an error."""
        try:
            with OPENER.open(f"http://{self.admin}{path}", timeout=PATIENCE) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError:
            return None

    def tell_admin(self, path, content):
        """Posts this to the operator's listener."""
        request = urllib.request.Request(f"http://{self.admin}{path}", json.dumps(content).encode())
        request.add_header("Content-Type", "application/json")
        OPENER.open(request, timeout=PATIENCE).close()

    def metric(self, name, **labels):
        """The sum of a metric over all its lines with these labels."""
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        lines = re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", self.ask_admin("/metrics"), re.MULTILINE)
        return sum(float(value) for found, value in lines if all(one in found for one in wanted))

    def waiting(self, count):
        """Waits until so many duplicates wait for an answer."""
        until(f"{count} duplicates to wait", lambda: self.metric("onceproxy_waiting") == count)

    def memory(self, what="VmRSS"):
        """Its resident memory in MiB; with VmHWM the most since `forget_peak`."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"^{what}:\s+(\d+) kB$", status, re.MULTILINE)[1]) / 1024

    def forget_peak(self):
        """The most memory counts from now on."""
        pathlib.Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def stop(self):
        """Tells it to stop as an orchestrator does, and returns its exit code."""
        self.process.terminate()
        return self.process.wait(PATIENCE)

    def end(self):
        """Ends it."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
