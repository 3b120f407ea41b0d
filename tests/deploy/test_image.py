"""The image, as far as it can be checked without a container engine: what the Dockerfile says, and, given a static
binary (`make static`), a root filesystem laid out by its last stage, in which that binary runs as the image would.
"""

import http.server
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import stat
import subprocess
import time
import threading
import tomllib

import pytest
from conftest import ROOT, Running, free_port, run

STATIC = os.environ.get("ONCEPROXY_STATIC")
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"


def stages():
    """The Dockerfile's stages, each a list of (instruction, rest)."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    starts = [number for number, (instruction, _) in enumerate(lines) if instruction == "FROM"]
    return [[tuple(line) for line in lines[start:end]] for start, end in zip(starts, starts[1:] + [None])]


class Image:
    """What the last stage makes."""

    def __init__(self):
        stage = stages()[-1]
        self.base = stage[0][1]
        self.copies = [rest.split() for instruction, rest in stage if instruction == "COPY"]
        single = {instruction: rest for instruction, rest in stage if instruction != "COPY"}
        assert "ENV" not in single, "the environment would win over a settings file"
        self.user, self.group = (int(number) for number in single["USER"].split(":"))
        self.folder = single["WORKDIR"]
        self.entrypoint = json.loads(single["ENTRYPOINT"])
        self.command = json.loads(single["CMD"])
        self.health = json.loads(single["HEALTHCHECK"].partition("CMD")[2])
        self.stop = getattr(signal, single["STOPSIGNAL"])
        self.ports = [int(port) for port in single["EXPOSE"].split()]


def test_the_image_is_the_binary_and_the_certificates():
    image = Image()
    assert image.base == "scratch"
    assert [copy[-1] for copy in image.copies] == [CERTIFICATES, "/onceproxy", "/data"]
    assert all(copy[0] == "--from=build" for copy in image.copies)
    assert image.user > 0 and image.folder == "/data"


def test_what_the_image_runs_is_known_to_the_binary(binary):
    image = Image()
    assert image.entrypoint == ["/onceproxy"]
    help_text = run(binary, "--help")
    for command in (image.command, image.health[1:]):
        assert re.search(rf"^  {command[0]} ", help_text, re.MULTILINE)
    assert image.health[0] == image.entrypoint[0]
    defaults = tomllib.loads((ROOT / "config.toml").read_text())
    listeners = [defaults["listen"], defaults["admin"]["listen"]]
    assert image.ports == [int(listener.rpartition(":")[2]) for listener in listeners]


def test_the_build_stage_has_what_the_package_needs():
    package = tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]
    build = stages()[0]
    assert build[0][1] == f"rust:{package['rust-version']}-alpine AS build"
    copied = [word for instruction, rest in build if instruction == "COPY" for word in rest.split()[:-1]]
    let_in = [line[1:].rstrip("/") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"]
    assert copied == ["Cargo.toml", "Cargo.lock", "src"] and sorted(copied) == sorted(let_in)
    platforms = next(rest for instruction, rest in build if instruction == "RUN" and "TARGETARCH" in rest)
    for pair in ("amd64) echo x86_64-unknown-linux-musl", "arm64) echo aarch64-unknown-linux-musl"):
        assert pair in platforms


def test_an_image_builder_is_looked_for_or_asked_for(tmp_path):
    # A PATH on which there is none: the script says what to do, and fails.
    for name in ("sh", "dirname"):
        (tmp_path / name).symlink_to(shutil.which(name))
    script = ROOT / "scripts/build-image"
    done = subprocess.run([script, "x:1"], env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 1 and "install Podman or Buildah" in done.stderr


needs_static = pytest.mark.skipif(not STATIC, reason="make static builds the binary that this needs")
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can change the root folder")


@needs_static
def test_the_binary_asks_for_no_loader_and_no_library():
    headers = run("readelf", "--program-headers", "--dynamic", "--wide", STATIC)
    assert not re.search("INTERP|NEEDED", headers)
    # All that the image holds; what an image adds to its files is a few kilobytes of JSON.
    sizes = [os.path.getsize(file) / 1e6 for file in (STATIC, CERTIFICATES)]
    print("binary {:.1f} MB, certificates {:.1f} MB".format(*sizes))
    assert sum(sizes) < 15


@pytest.fixture
def root(tmp_path):
    """The image's root folder, with what every container engine adds: two files about names, and the devices."""
    image = Image()
    sources = {CERTIFICATES: pathlib.Path(CERTIFICATES), "/onceproxy": pathlib.Path(STATIC), "/data": None}
    for *flags, _, target in image.copies:
        place = tmp_path / target[1:]
        place.parent.mkdir(parents=True, exist_ok=True)
        if sources[target] is None:
            place.mkdir()
            owner = next((flag.partition("=")[2] for flag in flags if flag.startswith("--chown=")), "0:0")
            os.chown(place, *(int(number) for number in owner.split(":")))
        else:
            shutil.copy(sources[target], place)
    (tmp_path / "etc/hosts").write_text("127.0.0.1 localhost\n127.0.0.1 by-file.test\n")
    (tmp_path / "etc/resolv.conf").write_text(f"nameserver {NAMESERVER}\n")
    (tmp_path / "dev").mkdir()
    # A static glibc binary cannot look the C library's getrandom up: its keys and tokens come from these.
    for device, minor in (("null", 3), ("random", 8), ("urandom", 9)):
        os.mknod(tmp_path / "dev" / device, stat.S_IFCHR, os.makedev(1, minor))
        (tmp_path / "dev" / device).chmod(0o666)
    # Only what is to be written to is the user's; the folders above are made so that this user can pass.
    for folder in [tmp_path, *tmp_path.parents][: len(tmp_path.parts) - 2]:
        folder.chmod(folder.stat().st_mode | 0o111)
    return tmp_path


# The resolver's port is fixed, so the answering server gets an address of its own in the loopback range.
NAMESERVER = "127.0.53.1"


def as_the_image(root):
    """What Popen needs to run something in that root as the image's user, with nothing in its environment."""
    image = Image()

    def enter():
        os.chroot(root)
        os.chdir(image.folder)
        os.setgroups([])
        os.setgid(image.group)
        os.setuid(image.user)

    return {"preexec_fn": enter, "env": {}}


@needs_static
@needs_root
def test_the_binary_runs_in_the_image(root):
    image = Image()
    inside = as_the_image(root)
    version = subprocess.run([*image.entrypoint, "--version"], **inside, capture_output=True, text=True)
    assert (version.returncode, version.stdout.split()[0]) == (0, "onceproxy")
    # Without a proxy it is not healthy.
    admin = f"127.0.0.1:{free_port()}"
    inside["env"] = {"ONCEPROXY_ADMIN_LISTEN": admin}
    assert subprocess.run(image.health, **inside, stderr=subprocess.DEVNULL).returncode == 1
    upstream = counting_upstream()
    names = name_server({"by-dns.test": ["127.0.0.1"]})
    try:
        for name in ("by-file.test", "by-dns.test"):
            (root / "onceproxy.toml").write_text(
                f'listen = "127.0.0.1:0"\n[log]\nformat = "json"\n'
                f'[[route]]\nname = "r"\nupstream = "http://{name}:{upstream.server_port}"\n'
            )
            # A settings file in the environment, as the manifests have it, is found by the health check too.
            inside["env"]["ONCEPROXY_CONFIG"] = "/onceproxy.toml"
            upstream.count = 0
            proxy = Running([*image.entrypoint, *image.command], **inside)
            try:
                # It listens before it has tried its store.
                end = time.monotonic() + 30
                while subprocess.run(image.health, **inside, capture_output=True).returncode != 0:
                    assert time.monotonic() < end, "".join(proxy.log)
                for _ in range(2):
                    status, body = proxy.ask("proxy", "/", "{}", **{"Idempotency-Key": name})
                    assert (status, body) == (201, "first"), "".join(proxy.log)
                assert upstream.count == 1
                proxy.process.send_signal(image.stop)
                assert proxy.process.wait(timeout=30) == 0
            finally:
                proxy.process.kill()
                proxy.process.wait()
        # The records are where the volume belongs.
        assert list((root / "data/onceproxy-data").iterdir())
    finally:
        upstream.shutdown()
        names.close()


@needs_static
@needs_root
def test_a_name_is_resolved_anew_and_addresses_that_do_not_answer_are_passed_over(root):
    # Servers of one name have one port. Wherever the resolver puts an address, of two pairs one has the silent one first.
    first = counting_upstream()
    second = counting_upstream("127.0.0.2", first.server_port)
    low, high = counting_upstream("127.0.0.1"), counting_upstream("127.0.0.3")
    silent = [*silence("127.0.0.3", low.server_port), *silence("127.0.0.1", high.server_port)]
    addresses = {
        "moves.test": ["127.0.0.1"],
        "low.test": ["127.0.0.3", "127.0.0.1"],
        "high.test": ["127.0.0.1", "127.0.0.3"],
    }
    expected = [("low", low), ("high", high)]
    if socket.has_ipv6 and pathlib.Path("/proc/net/if_inet6").exists():
        six, refused, quiet = counting_upstream("::1"), counting_upstream(), counting_upstream()
        silent += silence("::1", quiet.server_port)
        expected += [("six", six), ("refused", refused), ("quiet", quiet)]
        addresses |= {"six.test": ["::1"], "refused.test": ["::1", "127.0.0.1"], "quiet.test": ["::1", "127.0.0.1"]}
    # The other test's server may hold its address for a moment longer than it runs.
    (root / "etc/resolv.conf").write_text("nameserver 127.0.53.2\n")
    names = name_server(addresses, "127.0.53.2")
    routes = "".join(
        f'[[route]]\nname = "{name}"\npath = "/{name}"\nupstream = "http://{name}.test:{server.server_port}"\n'
        for name, server in [("moves", first), *expected]
    )
    (root / "onceproxy.toml").write_text(f'listen = "127.0.0.1:0"\n[log]\nformat = "json"\n[store]\nurl = "memory:"\n{routes}')
    inside = as_the_image(root)
    inside["env"] = {"ONCEPROXY_ADMIN_LISTEN": "127.0.0.1:0", "ONCEPROXY_CONFIG": "/onceproxy.toml"}
    image = Image()
    proxy = Running([*image.entrypoint, *image.command], **inside)
    try:
        charge = lambda name, key: proxy.ask("proxy", f"/{name}", "{}", **{"Idempotency-Key": key})
        assert charge("moves", "a") == (201, "first"), "".join(proxy.log)
        # The old server is there still, and gets nothing more.
        addresses["moves.test"] = ["127.0.0.2"]
        assert charge("moves", "b") == (201, "first"), "".join(proxy.log)
        assert (first.count, second.count) == (1, 1)
        for name, server in expected:
            assert charge(name, "a") == (201, "first"), "".join(proxy.log)
            assert server.count == 1
        assert charge("moves", "c") == (201, "again") and second.count == 2
    finally:
        proxy.process.kill()
        proxy.process.wait()
        names.close()
        for one in silent:
            one.close()
        for server in [first, second] + [server for _, server in expected]:
            server.shutdown()
            server.server_close()


def silence(address, port):
    """An address that answers no attempt to connect: its queue of connections is full. Returns what keeps it so."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen(0)
    held = [listener]
    for _ in range(4):
        caller = socket.socket(family)
        caller.setblocking(False)
        caller.connect_ex((address, port))
        held.append(caller)
    return held


def counting_upstream(address="127.0.0.1", port=0):
    class Upstream(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.server.count += 1
            self.send_response(201)
            body = b"first" if self.server.count == 1 else b"again"
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    class Server(http.server.ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in address else socket.AF_INET

    server = Server((address, port), Upstream)
    server.count = 0
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def name_server(names, address=NAMESERVER):
    """Answers with what the names have at that moment, until its socket is closed (RFC 1035 section 4, RFC 3596)."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((address, 53))

    def records(question):
        labels, at = [], 0
        while question[at]:
            labels.append(question[at + 1 : at + 1 + question[at]].decode())
            at += 1 + question[at]
        kinds = {b"\0\1": socket.AF_INET, b"\0\x1c": socket.AF_INET6}
        addresses, family = names.get(".".join(labels)), kinds.get(question[at + 1 : at + 3])
        if addresses is None:
            return None
        fitting = [one for one in addresses if family == (socket.AF_INET6 if ":" in one else socket.AF_INET)]
        packed = [socket.inet_pton(family, one) for one in fitting]
        return [b"\xc0\x0c" + question[at + 1 :] + b"\0\0\0\x3c" + bytes([0, len(one)]) + one for one in packed]

    def answer():
        while True:
            try:
                query, peer = server.recvfrom(512)
            except OSError:
                return
            end = query.index(b"\0", 12) + 5
            question = query[12:end]
            found = records(question)
            flags = b"\x81\x83" if found is None else b"\x81\x80"
            head = query[:2] + flags + b"\0\1" + bytes([0, len(found or [])]) + b"\0\0\0\0"
            server.sendto(head + question + b"".join(found or []), peer)

    threading.Thread(target=answer, daemon=True).start()
    return server
