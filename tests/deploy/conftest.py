"""What the checks share: the binary, proxies that run, rendered manifests, tools that are run.

The checks hold what runs and watches the proxy (image, manifests, alerts, dashboard) against the proxy itself, because
nothing else notices when a flag, a port, a path or a metric gets another name.
"""

import base64
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
# No proxy of the environment stands in between.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
OVERLAYS = sorted(path.parent.name for path in ROOT.glob("k8s/overlays/*/kustomization.yaml"))


def tool(name):
    """The path of a tool: the one beside this Python, else the one on the PATH."""
    beside = pathlib.Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    assert found, f"{name} is missing; run scripts/install-deploy-tools"
    return found


def run(*command, environment=None, directory=ROOT):
    """Runs a command to its end and returns what it printed. Failing is a failed test, with what it said."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=directory,
        env=clean_environment(environment),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, f"{command} exited with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


def clean_environment(more=None):
    """This environment without settings of a proxy, and with these."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ONCEPROXY_")}
    return kept | (more or {})


def free_port():
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def binary():
    """The proxy: ONCEPROXY_BIN, else the one that cargo built last for development."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    path = pathlib.Path(os.environ.get("ONCEPROXY_BIN", target / "debug" / "onceproxy"))
    assert path.exists(), f"there is no {path}; run make test-deploy, which builds it"
    return path


class Running:
    """A proxy that runs, found by what it logs about its listeners, as text or as JSON."""

    LISTENER = re.compile(r'listener"?[=:] ?"(proxy|admin)"[ ,]+"?address"?[=:] ?"?([\d.]+:\d+)')

    def __init__(self, command, **how):
        self.process = subprocess.Popen(
            [str(part) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **how
        )
        self.log = []
        self.addresses = {}
        watch = threading.Timer(30, self.process.kill)
        watch.start()
        while len(self.addresses) < 2:
            line = self.process.stderr.readline()
            assert line, f"{command} ended before it listened:\n{''.join(self.log)}"
            self.log.append(line)
            if found := self.LISTENER.search(line):
                self.addresses[found[1]] = found[2]
        watch.cancel()
        threading.Thread(target=self._read_on, daemon=True).start()

    def _read_on(self):
        self.log.extend(self.process.stderr)

    def get(self, path):
        """The status and body of a GET on the admin listener, without a token."""
        return self.ask("admin", path)

    def ask(self, listener, path, body=None, **headers):
        """The status and body of a GET, or of a POST if there is a body."""
        data = None if body is None else body.encode()
        request = urllib.request.Request(f"http://{self.addresses[listener]}{path}", data, headers)
        try:
            with OPENER.open(request, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def stop(self):
        """Tells it to stop as an orchestrator does, and returns its exit code."""
        self.process.terminate()
        return self.process.wait(timeout=30)


@pytest.fixture
def start(binary):
    """Starts proxies, and ends what a test left running."""
    running = []

    def start(*command, environment=None, **how):
        proxy = Running(command or (binary, "serve"), env=clean_environment(environment), **how)
        running.append(proxy)
        return proxy

    yield start
    for proxy in running:
        if proxy.process.poll() is None:
            proxy.process.kill()
            proxy.process.wait()


@pytest.fixture(scope="session")
def render():
    """Renders a folder of k8s/ as `kubectl apply -k` would, each once."""
    rendered = {}

    def render(folder):
        if folder not in rendered:
            text = run(tool("kubectl"), "kustomize", ROOT / "k8s" / folder)
            rendered[folder] = [document for document in yaml.safe_load_all(text) if document]
            assert rendered[folder], f"{folder} renders to nothing"
        return rendered[folder]

    return render


class Workload:
    """The workload of an overlay that holds the proxy, seen from the proxy's container."""

    def __init__(self, documents):
        self.documents = documents
        holding = [document for document in documents if self._container(document)]
        assert len(holding) == 1, f"{len(holding)} workloads hold the proxy"
        self.document = holding[0]
        self.pod = self.document["spec"]["template"]["spec"]
        self.labels = self.document["spec"]["template"]["metadata"]["labels"]
        self.container = self._container(self.document)

    @staticmethod
    def _container(document):
        pod = document.get("spec", {}).get("template", {}).get("spec", {})
        containers = pod.get("containers", []) + pod.get("initContainers", [])
        return next((container for container in containers if container["name"] == "onceproxy"), None)

    def of_kind(self, kind):
        return [document for document in self.documents if document["kind"] == kind]

    def named(self, kind, name):
        return next(one for one in self.of_kind(kind) if one["metadata"]["name"] == name)

    def ports(self):
        return {port["name"]: port["containerPort"] for port in self.container["ports"]}

    def environment(self):
        """What the container would find in its environment."""
        found = {}
        for variable in self.container["env"]:
            reference = variable.get("valueFrom", {}).get("secretKeyRef")
            if reference is None:
                found[variable["name"]] = variable["value"]
                continue
            data = self.named("Secret", reference["name"])["data"]
            if reference["key"] in data:
                found[variable["name"]] = base64.b64decode(data[reference["key"]]).decode()
            else:
                assert reference.get("optional"), f"the secret has no {reference['key']}, so the pod would not start"
        return found

    def settings_file(self, folder):
        """Puts the mounted settings into this folder and returns the file that ONCEPROXY_CONFIG names."""
        wanted = pathlib.PurePosixPath(self.environment()["ONCEPROXY_CONFIG"])
        mount = next(mount for mount in self.container["volumeMounts"] if mount["mountPath"] == str(wanted.parent))
        volume = next(volume for volume in self.pod["volumes"] if volume["name"] == mount["name"])
        path = folder / wanted.name
        path.write_text(self.named("ConfigMap", volume["configMap"]["name"])["data"][wanted.name])
        return path


@pytest.fixture(params=OVERLAYS)
def workload(request, render):
    """The proxy of each overlay in turn."""
    return Workload(render(f"overlays/{request.param}"))
