"""How the cost grows: with stored keys, bytes of the answer, connections, and callers of one key.

Each table is bounded in time: a store that cannot be filled in its share of it is shown as far as it came.
"""

import time

import counts
import measure
import servers

BYTES = [1024, 16 * 1024, 64 * 1024, 256 * 1024, 1024 * 1024]
CONNECTIONS = [1, 16, 64, 256, 1024, 4096]
JOINS = [2, 10, 100, 1000, 10_000]
KEYS = [1000, 10_000, 100_000, 1_000_000]
# Seconds for filling one store.
PATIENCE = 120


def by_bytes(world, seconds):
    rows = []
    for size in BYTES:
        plan = [(world.nginx, "none"), *((world.once, keys) for keys in ["none", "unique", "same"])]
        for proxy, keys in plan:
            got = measure.load(proxy, keys, seconds, connections=8, path=f"/{size}")
            rows.append([f"{size // 1024} KiB", f"{proxy.name}, {keys} keys", *_figures(got)])
        # A megabyte each: they would be all that Redis holds from here on.
        _flush(world)
    return "Bytes of the answer, 8 connections", ["answer", "load", *FIGURES], rows


def by_connections(world, seconds):
    rows = []
    for connections in CONNECTIONS:
        for proxy, keys in [(world.nginx, "none"), (world.once, "none"), (world.once, "unique")]:
            before = servers.connections_taken(world.upstream)
            got = measure.load(proxy, keys, seconds, connections, may_refuse=connections > 1000)
            # The one that asked is among them.
            opened = servers.connections_taken(world.upstream) - before - 1
            row = [f"{connections:,}", f"{proxy.name}, {keys} keys", *_figures(got), f"{proxy.resident_mib():.0f}"]
            rows.append([*row, f"{opened:,}", f"{opened / got.requests * 1000:.1f}", f"{got.refused:.0%}"])
        _flush(world)
    head = ["connections", "load", *FIGURES, "MiB then", "connections to the upstream opened", "of 1,000 requests"]
    head += ["refused"]
    return "Connections", head, rows


def by_joins(world):
    # What a load has left behind would be counted as well.
    deadline = time.monotonic() + 60
    while counts.gauge(world.once, "onceproxy_in_flight") > 0:
        if time.monotonic() > deadline:
            raise RuntimeError("requests of an earlier load are still under way")
        time.sleep(0.1)
    rows = []
    for callers in JOINS:
        got = counts.join(world.folder, world.binary, world.redis, callers)
        row = [f"{callers:,}", f"{got['trips']}", f"{got['answered'] * 1e3:.0f}", f"{got['processor']:.0f}"]
        rows.append([*row, f"{got['memory']:.1f}"])
    head = ["callers", "round trips in all", "ms until all are answered", "processor µs each", "MiB while they wait"]
    return "Callers of one key at once: one execution", head, rows


def by_keys(world, seconds):
    """Each store as it fills, and beside it one of its kind that is empty: what else the machine does falls on both."""
    rows = []
    for kind in ["memory", "disk", "redis"]:
        folder = world.folder / f"keys-{kind}"
        folder.mkdir()
        stores = []
        try:
            stores.append(_Filled(world, folder, kind))
            rows += _of_store(world, folder, stores, seconds)
        finally:
            for store in stores:
                store.stop()
    head = ["store", "keys before", *FIGURES, "processor × an empty store", "bytes a record", "MiB of the proxy"]
    return "Stored keys: first executions, 64 connections, answers of 64 bytes", head, rows


class _Filled:
    """A proxy on a store of its own."""

    def __init__(self, world, folder, name):
        self.kind, self.stored = name.partition("-")[0], 0
        self.folder = folder / f"{name}-records"
        self.redis = None
        url = {"memory": "memory:", "disk": f"disk:{self.folder}"}.get(self.kind)
        if not url:
            self.folder.mkdir()
            self.redis = servers.redis(self.folder)
            url = f"redis://127.0.0.1:{self.redis.port}"
        try:
            self.proxy = servers.onceproxy(f"keys-{name}", folder, world.binary, url, world.upstream.port)
            # The buffers of the connections are none of the records'.
            measure.load(self.proxy, "none", 1, 512, path="/64")
        except BaseException:
            self.stop()
            raise
        self.empty = self.used()

    def load(self, seconds, connections=64):
        """First executions with small answers: it is the number of them that is to grow. Its cost includes Redis's."""
        busy = self.redis.processor_seconds() if self.redis else 0
        got = measure.load(self.proxy, "unique", seconds, connections, path="/64", may_refuse=True)
        self.stored += got.requests
        if self.redis:
            got.processor += (self.redis.processor_seconds() - busy) * 1e6 / got.requests
        return got

    def used(self):
        """Bytes that hold the records."""
        if self.kind == "memory":
            return self.proxy.resident_mib() * 2**20
        if self.kind == "disk":
            return sum(file.stat().st_size for file in self.folder.iterdir())
        redis = measure.Redis(self.redis.port)
        used = redis.used_memory()
        redis.close()
        return used

    def stop(self):
        for server in [getattr(self, "proxy", None), self.redis]:
            if server:
                server.stop()


def _of_store(world, folder, stores, seconds):
    rows, full = [], stores[0]
    deadline = time.monotonic() + PATIENCE
    for number, wanted in enumerate(KEYS):
        while full.stored < wanted and time.monotonic() < deadline:
            # Many callers, so that the disk is filled by large commits.
            full.load(1 if wanted < KEYS[-1] else 5, 512)
        before, empty = full.stored, _Filled(world, folder, f"{full.kind}-empty-{number}")
        stores.append(empty)
        pairs = [(full.load(1), empty.load(1)) for _ in range(max(3, seconds))]
        stores.pop().stop()
        middle = sorted((one for one, _ in pairs), key=lambda got: got.processor)[len(pairs) // 2]
        ratio = measure.middle(one.processor / other.processor for one, other in pairs)
        row = [full.kind, f"{before:,}", *_figures(middle), "{:.2f} ({:.2f}–{:.2f})".format(*ratio)]
        rows.append([*row, f"{(full.used() - full.empty) / full.stored:.0f}", f"{full.proxy.resident_mib():.0f}"])
    return rows


def _flush(world):
    redis = measure.Redis(world.redis.port)
    redis.ask("FLUSHALL")
    redis.close()


FIGURES = ["requests/s", "p50 µs", "p99 µs", "processor µs"]


def _figures(got):
    return [f"{got.rate:.0f}", f"{got.p50:.0f}", f"{got.p99:.0f}", f"{got.processor:.1f}"]
