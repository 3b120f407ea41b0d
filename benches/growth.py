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
PATIENCE = 150


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
    rows = []
    redis = measure.Redis(world.redis.port)
    for kind in ["memory", "disk", "redis"]:
        redis.ask("FLUSHALL")
        folder = world.folder / f"keys-{kind}"
        store = {
            "memory": "memory:",
            "disk": f"disk:{folder}",
            "redis": f"redis://127.0.0.1:{world.redis.port}",
        }[kind]
        proxy = servers.onceproxy(f"keys-{kind}", world.folder, world.binary, store, world.upstream.port)
        # What holds the records, and how much it holds without any.
        used = {
            "memory": lambda: proxy.resident_mib() * 2**20,
            "disk": lambda: sum(file.stat().st_size for file in folder.iterdir()),
            "redis": redis.used_memory,
        }[kind]
        try:
            rows += _of_store(kind, proxy, world.redis, used, seconds)
        finally:
            proxy.stop()
    redis.ask("FLUSHALL")
    redis.close()
    head = ["store", "keys before", *FIGURES, "Redis µs", "bytes a record", "MiB of the proxy"]
    return "Stored keys: first executions, 64 connections, answers of 64 bytes", head, rows


def _of_store(kind, proxy, redis, used, seconds):
    rows, stored, empty = [], 0, used()
    deadline = time.monotonic() + PATIENCE
    for wanted in KEYS:
        while stored < wanted and time.monotonic() < deadline:
            # Small answers: it is the number that is to grow. Many callers: so the disk is filled by large commits.
            stored += measure.load(proxy, "unique", 1 if wanted < KEYS[-1] else 5, 512, path="/64").requests
        before, busy = stored, redis.processor_seconds()
        got = measure.load(proxy, "unique", seconds, path="/64")
        stored += got.requests
        of_redis = (redis.processor_seconds() - busy) * 1e6 / got.requests
        row = [kind, f"{before:,}", *_figures(got), f"{of_redis:.1f}" if kind == "redis" else "—"]
        rows.append([*row, f"{(used() - empty) / stored:.0f}", f"{proxy.resident_mib():.0f}"])
    return rows


def _flush(world):
    redis = measure.Redis(world.redis.port)
    redis.ask("FLUSHALL")
    redis.close()


FIGURES = ["requests/s", "p50 µs", "p99 µs", "processor µs"]


def _figures(got):
    return [f"{got.rate:.0f}", f"{got.p50:.0f}", f"{got.p99:.0f}", f"{got.processor:.1f}"]
