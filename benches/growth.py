"""How the cost grows: with stored keys, bytes of the answer, connections, and callers of one key."""

import time

import counts
import measure
import servers

BYTES = [1024, 16 * 1024, 64 * 1024, 256 * 1024, 1024 * 1024]
CONNECTIONS = [1, 16, 64, 256, 1024, 4096]
JOINS = [2, 10, 100, 1000, 10_000]
KEYS = [1000, 10_000, 100_000, 1_000_000]


def tables(world, seconds):
    """All of them, each as a title, a head and rows."""
    yield by_bytes(world, seconds)
    yield by_connections(world, seconds)
    yield by_joins(world)
    yield by_keys(world, seconds)


def by_bytes(world, seconds):
    rows = []
    for size in BYTES:
        for proxy, keys in [(world.nginx, "unique"), (world.once, "unique"), (world.once, "same")]:
            got = measure.load(proxy, keys, seconds, connections=8, path=f"/{size}")
            rows.append([f"{size // 1024} KiB", f"{proxy.name}, {keys} keys", *_figures(got)])
    return "Bytes of the answer, 8 connections", ["answer", "load", *FIGURES], rows


def by_connections(world, seconds):
    rows = []
    for connections in CONNECTIONS:
        for proxy in [world.nginx, world.once]:
            got = measure.load(proxy, "unique", seconds, connections)
            rows.append([f"{connections}", f"{proxy.name}, unique keys", *_figures(got)])
    return "Connections", ["connections", "load", *FIGURES], rows


def by_joins(world):
    # What a load has left behind would be counted as well.
    while counts.gauge(world.once, "onceproxy_in_flight") > 0:
        time.sleep(0.1)
    rows = []
    for callers in JOINS:
        got = counts.join(world.folder, world.binary, world.redis, callers)
        rows.append(
            [
                f"{callers}",
                f"{got['trips']}",
                f"{got['answered'] * 1e3:.0f}",
                f"{got['processor']:.0f}",
                f"{got['memory']:.1f}",
            ]
        )
    head = ["callers", "round trips in all", "ms until all are answered", "processor µs each", "MiB while they wait"]
    return "Callers of one key at once: one execution", head, rows


def by_keys(world, seconds):
    rows = []
    redis = measure.Redis(world.redis.port)
    redis.ask("FLUSHALL")
    for wanted in KEYS:
        while int(redis.ask("DBSIZE")) < wanted:
            # Small answers: it is the number that is to grow.
            measure.load(world.once, "unique", 1, path="/64")
        stored = int(redis.ask("DBSIZE"))
        got = measure.load(world.once, "unique", seconds)
        rows.append(["Redis", f"{stored}", *_figures(got), f"{world.redis.resident_mib():.0f}"])
    redis.ask("FLUSHALL")
    redis.close()
    for store in ["memory:", f"disk:{world.folder}/growth"]:
        name = store.partition(":")[0]
        proxy = servers.onceproxy(f"growth-{name}", world.folder, world.binary, store, world.upstream.port)
        stored = 0
        for wanted in KEYS[:-1]:
            while stored < wanted:
                stored += measure.load(proxy, "unique", 1, path="/64").requests
            got = measure.load(proxy, "unique", seconds)
            rows.append([name, f"{stored}", *_figures(got), f"{proxy.resident_mib():.0f}"])
            stored += got.requests
        proxy.stop()
    return "Stored keys, first executions, 64 connections", ["store", "keys", *FIGURES, "MiB of the store"], rows


FIGURES = ["requests/s", "p50 µs", "p99 µs", "processor µs"]


def _figures(got):
    return [f"{got.rate:.0f}", f"{got.p50:.0f}", f"{got.p99:.0f}", f"{got.processor:.1f}"]
