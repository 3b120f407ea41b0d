"""The servers of a benchmark: each is a process of ours, on a free loopback port, ended by its id."""

import http.client
import os
import pathlib
import signal
import socket
import subprocess
import time

HERE = pathlib.Path(__file__).parent
TICKS = os.sysconf("SC_CLK_TCK")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    """One running server: where it listens, and what it costs."""

    def __init__(self, name, command, port, folder, env=None):
        self.name, self.port, self.folder = name, port, folder
        self.log = (folder / f"{name}.log").open("ab")
        self.started = time.monotonic()
        self.process = subprocess.Popen(command, cwd=folder, env=env, stdout=self.log, stderr=self.log)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def wait_until_listening(self):
        """Returns once a connection can be made; a server that ended says why."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                text = pathlib.Path(self.log.name).read_text()
                raise RuntimeError(f"{self.name} ended with {self.process.returncode}:\n{text}")
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return self
            except OSError:
                time.sleep(0.002)
        raise RuntimeError(f"{self.name} does not listen")

    def thread_seconds(self, prefix):
        """User and system time of each of its threads whose name begins so."""
        return [ticks / TICKS for ticks in _ticks_of_threads(self.process.pid, prefix)]

    def pids(self):
        """The process and its children: nginx works in workers."""
        pid = self.process.pid
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [pid, *map(int, children)]

    def processor_seconds(self):
        """User and system time of all its processes so far."""
        total = 0
        for pid in self.pids():
            total += _ticks(pathlib.Path(f"/proc/{pid}/stat").read_text())
        return total / TICKS

    def resident_mib(self):
        """Memory in use now, of all its processes."""
        return sum(_status_kib(pid, "VmRSS:") for pid in self.pids()) / 1024

    def peak_mib(self):
        """The most memory that each of its processes ever used."""
        return sum(_status_kib(pid, "VmHWM:") for pid in self.pids()) / 1024

    def forget_peak(self):
        """Has `peak_mib` count from now on."""
        for pid in self.pids():
            pathlib.Path(f"/proc/{pid}/clear_refs").write_text("5")

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()


def _ticks(stat):
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _ticks_of_threads(pid, prefix):
    texts = [(task / "stat").read_text() for task in sorted(pathlib.Path(f"/proc/{pid}/task").iterdir())]
    return [_ticks(text) for text in texts if text.partition("(")[2].startswith(prefix)]


def _status_kib(pid, field):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    return 0


def workers():
    """As many as onceproxy's `threads = "auto"`: the processors, at most four."""
    return min(len(os.sched_getaffinity(0)), 4)


def nginx(name, folder, http, modules="", worker_processes=None):
    """An nginx with this in its `http` block, where PORT stands for its port."""
    port = free_port()
    home = folder / name
    (home / "tmp").mkdir(parents=True)
    temp = "\n".join(
        f"    {kind}_temp_path {home}/tmp/{kind};" for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
    )
    # As root its workers would change to a user who may not read this folder.
    user = "user root;" if os.geteuid() == 0 else ""
    (home / "nginx.conf").write_text(
        f"""{modules}{user}
worker_processes {worker_processes or workers()};
daemon off;
pid {home}/nginx.pid;
error_log {home}/error.log warn;
worker_rlimit_nofile 20000;
events {{ worker_connections 9000; }}
http {{
    access_log off;
{temp}
    client_body_buffer_size 16k;
    keepalive_requests 1000000000;
    keepalive_timeout 300s;
{http.replace("PORT", str(port))}
}}
"""
    )
    command = ["nginx", "-p", str(home), "-e", str(home / "error.log"), "-c", str(home / "nginx.conf")]
    return Server(name, command, port, folder).wait_until_listening()


def upstream(folder, sizes):
    """Answers every POST at once: `/` with 1 KiB of JSON, `/N` with N bytes."""
    files = folder / "answers"
    files.mkdir()
    for size in sizes:
        (files / str(size)).write_bytes(json_of(size))
    return nginx(
        "upstream",
        folder,
        f"""
    default_type application/json;
    server {{
        listen 127.0.0.1:PORT backlog=8192;
        listen unix:{upstream_socket(folder)} backlog=8192;
        location = /status {{ stub_status; }}
        location = / {{ return 200 '{json_of(1024).decode()}'; }}
        # A file is not for POST; the error is answered with the file.
        location / {{ root {files}; error_page 405 =200 $uri; }}
    }}""",
    )


def upstream_socket(folder):
    """Where the upstream listens besides."""
    return folder / "upstream.sock"


def connections_taken(upstream):
    """How many connections the upstream has accepted so far."""
    client = http.client.HTTPConnection("127.0.0.1", upstream.port)
    client.request("GET", "/status")
    text = client.getresponse().read().decode()
    client.close()
    return int(text.splitlines()[2].split()[0])


def json_of(size):
    shell = b'{"id":"ch_1","note":""}'
    return shell[:-2] + b"n" * (size - len(shell)) + shell[-2:]


def nginx_proxy(name, folder, upstream):
    """A plain reverse proxy with connections kept: what all ratios are to."""
    return nginx(
        name,
        folder,
        f"""
    upstream up {{ server {upstream}; keepalive 256; keepalive_requests 1000000000; }}
    server {{
        listen 127.0.0.1:PORT backlog=8192;
        location / {{ proxy_pass http://up; proxy_http_version 1.1; proxy_set_header Connection ""; }}
    }}""",
    )


def lua_proxy(folder, upstream_port, redis_port):
    """nginx with a hand-written idempotency layer (`once.lua`), or None where the module is not installed."""
    folder_of_modules = pathlib.Path("/usr/lib/nginx/modules")
    modules = [folder_of_modules / name for name in ["ndk_http_module.so", "ngx_http_lua_module.so"]]
    if not all(module.exists() for module in modules):
        return None
    return nginx(
        "nginx-lua",
        folder,
        f"""
    lua_package_path "{HERE}/?.lua;/usr/share/lua/5.1/?.lua;;";
    upstream up {{ server 127.0.0.1:{upstream_port}; keepalive 256; keepalive_requests 1000000000; }}
    server {{
        listen 127.0.0.1:PORT backlog=8192;
        lua_socket_log_errors off;
        location / {{ content_by_lua_block {{ require("once").serve({redis_port}) }} }}
        location = /once-upstream {{
            internal;
            proxy_pass http://up/;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
        }}
        location @upstream {{ proxy_pass http://up; proxy_http_version 1.1; proxy_set_header Connection ""; }}
    }}""",
        modules="".join(f"load_module {module};\n" for module in modules),
    )


def haproxy(folder, upstream_port):
    """The other usual plain proxy."""
    port = free_port()
    config = folder / "haproxy.cfg"
    config.write_text(
        f"""
global
    nbthread {workers()}
    maxconn 9000
defaults
    mode http
    timeout client 300s
    timeout server 300s
    timeout connect 5s
    http-reuse always
frontend in
    bind 127.0.0.1:{port} backlog 8192
    default_backend up
backend up
    server up 127.0.0.1:{upstream_port} pool-max-conn 256
"""
    )
    return Server("haproxy", ["haproxy", "-db", "-f", str(config)], port, folder).wait_until_listening()


def redis(folder):
    """A Redis that keeps its records in memory alone: what durability costs is the server's affair."""
    port = free_port()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    command += ["--unixsocket", str(redis_socket(folder)), "--tcp-backlog", "4096"]
    return Server("redis", [*command, "--maxmemory-policy", "noeviction"], port, folder).wait_until_listening()


def redis_socket(folder):
    """Where Redis listens besides."""
    return folder / "redis.sock"


def limit(folder, binary, upstream_port, redis_port):
    """The least that a proxy on the same libraries can do (`limit.rs`)."""
    port = free_port()
    command = [binary, str(port), str(upstream_port), str(redis_port)]
    return Server("limit", command, port, folder).wait_until_listening()


def onceproxy(name, folder, binary, store, upstream, tried=True, threads="auto"):
    """The product, with all settings at their defaults but the addresses; `tried` waits until it has tried its store.

    `upstream` is the port of one on loopback, or its URL.
    """
    port, admin_port = free_port(), free_port()
    env = {key: value for key, value in os.environ.items() if not key.startswith("ONCEPROXY_")}
    upstream = upstream if isinstance(upstream, str) else f"http://127.0.0.1:{upstream}"
    config = folder / f"{name}.toml"
    config.write_text(
        f"""
listen = "127.0.0.1:{port}"
threads = {f'"{threads}"' if isinstance(threads, str) else threads}
[admin]
listen = "127.0.0.1:{admin_port}"
[store]
url = "{store}"
[[route]]
name = "bench"
upstream = "{upstream}"
"""
    )
    server = Server(name, [binary, "serve", "--config", str(config)], port, folder, env)
    server.admin_port = admin_port
    server.wait_until_listening()
    # It listens before that, and the trial must not count as load.
    end = time.monotonic() + 10
    while tried and not _is_ready(admin_port):
        if time.monotonic() > end:
            raise RuntimeError(f"{name} is not ready")
        time.sleep(0.01)
    return server


def _is_ready(admin_port):
    client = http.client.HTTPConnection("127.0.0.1", admin_port, timeout=5)
    try:
        client.request("GET", "/readyz")
        return client.getresponse().status == 200
    except OSError:
        return False
    finally:
        client.close()
