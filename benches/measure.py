"""What is measured, and how: load by wrk, processor time from /proc, commands from Redis's own statistics."""

import dataclasses
import itertools
import json
import pathlib
import re
import socket
import statistics
import subprocess

HERE = pathlib.Path(__file__).parent
_words = itertools.count()
# A load without a single answer is repeated with more time, up to about so many seconds.
LONGEST = 30


@dataclasses.dataclass
class Load:
    """One run of one load against one server."""

    rate: float
    p50: float
    p99: float
    processor: float  # microseconds of the server per request
    requests: int
    refused: float = 0.0  # the part that was answered, but not with success


def load(server, keys, seconds, connections=64, path="/", threads=2, word=None, may_refuse=False):
    """Loads a server for a while. An answer that is not a success is a fault of the benchmark, unless it may be one: a
    machine that is too slow for thousands of callers at once is measured by how many of them are refused."""
    word = word or f"run{next(_words)}"
    # Thousands of connections take their time to be made.
    seconds = max(seconds, connections // 800)
    before = server.processor_seconds()
    command = ["wrk", f"-t{min(threads, connections)}", f"-c{connections}", f"-d{seconds}", "--timeout", "30s"]
    command += ["-s", str(HERE / "load.lua"), server.url + path, "--", keys, word]
    done = subprocess.run(command, capture_output=True, text=True)
    spent = server.processor_seconds() - before
    result = re.search(r"^RESULT (.*)$", done.stdout, re.M)
    if not result:
        raise RuntimeError(f"wrk against {server.name}: {done.stdout}{done.stderr}")
    seen = json.loads(result[1])
    if not seen["requests"] and not seen["failed"] and seconds < LONGEST:
        # A machine that has other things to do.
        return load(server, keys, seconds * 4, connections, path, threads, word, may_refuse)
    if seen["failed"] or seen["statuses"] and not may_refuse or not seen["requests"]:
        raise RuntimeError(f"wrk against {server.name}, {keys} keys: {seen}")
    rate, requests = seen["requests"] / seen["seconds"], seen["requests"]
    return Load(rate, seen["p50"], seen["p99"], spent * 1e6 / requests, requests, seen["statuses"] / requests)


class Redis:
    """A connection to a Redis server, just enough of the protocol to ask for what it counted."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.reader = self.socket.makefile("rb")

    def ask(self, *words):
        parts = [word.encode() for word in words]
        lines = b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
        self.socket.sendall(b"*%d\r\n%s" % (len(parts), lines))
        return self.reply()

    def reply(self):
        line = self.reader.readline().rstrip(b"\r\n")
        kind, rest = line[:1], line[1:]
        if kind == b"-":
            raise RuntimeError(rest.decode())
        if kind == b"$":
            return self.reader.read(int(rest) + 2)[:-2].decode() if int(rest) >= 0 else None
        return rest.decode()

    def commands(self):
        """How often each command has run, those inside scripts included."""
        text = self.ask("INFO", "commandstats")
        return {name: int(calls) for name, calls in re.findall(r"^cmdstat_([^:]+):calls=(\d+)", text, re.M)}

    def used_memory(self):
        """Bytes that it holds, without what its allocator keeps in reserve."""
        return int(re.search(r"^used_memory:(\d+)", self.ask("INFO", "memory"), re.M)[1])

    def close(self):
        self.reader.close()
        self.socket.close()


class Trips:
    """Counts round trips about records, as the server's MONITOR shows them; commands inside scripts are none."""

    def __init__(self, port, prefix="once"):
        self.monitor, self.other = Redis(port), Redis(port)
        self.pattern = re.compile(rf'"{prefix}:\{{[0-9a-f]{{2}}\}}:r:'.encode())
        self.monitor.ask("MONITOR")

    def count(self):
        """Those since the last call. Whatever was answered before this call is in it."""
        marker = f"marker{next(_words)}"
        self.other.ask("ECHO", marker)
        trips = 0
        for line in self.monitor.reader:
            if marker.encode() in line:
                return trips
            trips += bool(b" lua]" not in line and self.pattern.search(line))
        raise RuntimeError("Redis went away")

    def close(self):
        self.monitor.close()
        self.other.close()


def round_trip(port=None, socket=None):
    """Microseconds of the median round trip to Redis that does nothing there, one after the other, by a client in C."""
    where = ["-s", str(socket)] if socket else ["-p", str(port)]
    command = ["redis-benchmark", *where, "-c", "1", "-n", "20000", "-t", "ping_mbulk", "--csv"]
    head, row = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[:2]
    values = dict(zip(head.replace('"', "").split(","), row.replace('"', "").split(",")))
    return float(values["p50_latency_ms"]) * 1000


def middle(values):
    """Median, lowest and highest."""
    values = list(values)
    return statistics.median(values), min(values), max(values)
