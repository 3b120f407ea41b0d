"""The guides' programs, as they stand on the page, against the proxy with the guide's settings.

    .venv/bin/python tests/guides [WORD OF A GUIDE'S NAME ...]

A fence whose first line is a comment with a file's name is that file; the other ones of `sh` are run. Only addresses are
replaced. Between the program and the proxy the first answer is lost, so each program must send again; and each guide sends
the same operation more than once. The service behind must see it once.
"""

import concurrent.futures
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "celery"))

from processes import Broker, Proxy, Relay, binary, children, clean_environment, end, kill, until  # noqa: E402

# A worker does not end by itself: how its log says that a job is done.
DONE = {"sidekiq": "INFO: done", "bullmq": "completed"}


class Service(ThreadingHTTPServer):
    """Does whatever is POSTed, each time."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock, self.posted = threading.Lock(), []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.lock:
            self.server.posted.append((self.path, self.headers.get("Idempotency-Key"), body))
            data = b'{"id": "done_%d"}\n' % len(self.server.posted)
        self.send_response(201)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


def parts(page):
    """The files of a guide, and its commands."""
    files, commands = {}, ""
    for language, text in re.findall(r"^```(\w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        name = re.match(r"(?:#|//) ([\w.]+\.\w+)\n", text)
        if name:
            files[name[1]] = text
        elif language == "sh":
            commands += text
    return files, commands


def run(name, folder):
    """Runs a guide, and returns what the service saw."""
    files, commands = parts((ROOT / "docs" / "guides" / f"{name}.md").read_text())
    service = Service()
    upstream = "https://api.stripe.com" if name == "stripe" else "http://127.0.0.1:3000"
    assert files["onceproxy.toml"].count(upstream) == 1 and commands, f"{name}: the guide has another shape"
    settings = files.pop("onceproxy.toml").replace(upstream, service.url)
    proxy = broker = None
    try:
        proxy = Proxy(folder, settings)
        relay = Relay(proxy.url)
        replaced = {"http://127.0.0.1:8080": relay.url}
        if name in DONE:
            broker = Broker(folder)
            replaced["port: 6379"] = f"port: {broker.port}"
        for file, text in files.items():
            for old, new in replaced.items():
                text = text.replace(old, new)
            (folder / file).write_text(text)
        shell(name, folder, commands, broker)
        assert relay.lost == 1, "no answer was lost, so nothing was sent again"
        return service.posted
    finally:
        for process in (proxy, broker):
            if process:
                end(process.process)
        service.shutdown()
        service.server_close()


def shell(name, folder, commands, broker):
    """Runs the commands as a reader would type them, with the tools of this checkout first on the path."""
    environment = clean_environment()
    # `python` is this one, `onceproxy` the one that was built.
    environment["PATH"] = f"{pathlib.Path(sys.executable).parent}:{binary().parent}:{environment['PATH']}"
    if broker:
        environment["REDIS_URL"] = f"redis://127.0.0.1:{broker.port}/0"
    if name == "bullmq":
        modules = ROOT / "tests" / "guides" / "node" / "node_modules"
        assert (modules / "bullmq").exists(), "scripts/install-celery installs bullmq"
        (folder / "node_modules").symlink_to(modules)
    log = folder / "commands.log"
    with log.open("wb") as out:
        process = subprocess.Popen(["sh", "-ec", commands], cwd=folder, env=environment, stdout=out, stderr=out)
    try:
        done = DONE.get(name)
        until(
            f"the commands of {name} to end",
            lambda: process.poll() is not None or done and log.read_text().count(done) == 2,
        )
        assert done or process.returncode == 0, f"exit code {process.returncode}"
        assert not done or process.returncode is None, "the worker ended"
    except Exception as fault:
        raise AssertionError(f"{fault}; the commands said\n{log.read_text()[-3000:]}") from fault
    finally:
        for pid in children(process.pid) if process.poll() is None else ():
            kill(pid)
        end(process)


def main(words):
    guides = sorted(path.stem for path in (ROOT / "docs" / "guides").glob("*.md") if path.stem != "README")
    chosen = [name for name in guides if not words or any(word in name for word in words)]
    assert chosen, "there is no such guide"
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        failed = [name for name, passed in zip(chosen, pool.map(check, chosen)) if not passed]
    return 1 if failed else 0


def check(name):
    """Runs a guide, prints what came of it, and returns whether that is right."""
    begun = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as folder:
            posted = run(name, pathlib.Path(folder))
        assert len(posted) == 1, f"the service saw {posted}"
    except Exception as fault:  # The other guides go on.
        print(f"{name:10}  failed: {fault}", flush=True)
        return False
    print(f"{name:10}  1 execution, {time.monotonic() - begun:.1f} s", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
