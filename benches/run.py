"""`make bench`: onceproxy beside nginx, HAProxy and a hand-written layer, in rounds on this machine.

Everything runs on loopback in a folder of its own. Counts are asserted, times are only printed: compare the ratios to
nginx in the same round, not the rates of two runs.
"""

import argparse
import http.client
import pathlib
import resource
import sys
import tempfile
import time
import types

import counts
import growth
import measure
import servers
import syscalls

# What is asked of whom in each round: a title, who, and the kind of keys.
PLAIN, FIRST = "plain POST", "a new key each time"
KNOWN, SAME = "2,000 keys that are done", "one key that is done"


def main():
    options = arguments()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with tempfile.TemporaryDirectory(prefix="onceproxy-bench-") as folder:
        world = start(pathlib.Path(folder), options.binary)
        try:
            if options.syscalls:
                table(*syscalls.table(world, options.seconds))
                return
            counted(world)
            rounds(world, options)
            one_connection(world, options.seconds)
            sizes(world)
            if options.long:
                for title, head, rows in growth.tables(world, options.seconds):
                    table(title, head, rows)
        finally:
            for server in reversed(world.servers):
                server.stop()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary", help="the release binary of onceproxy")
    parser.add_argument("--long", action="store_true", help="more rounds, and the growth tables")
    parser.add_argument("--syscalls", action="store_true", help="only count system calls per request, by strace")
    parser.add_argument("--rounds", type=int, help="3, or 9 with --long")
    parser.add_argument("--seconds", type=int, help="of one load: 2, or 4 with --long")
    options = parser.parse_args()
    options.binary = str(pathlib.Path(options.binary).resolve())
    options.rounds = options.rounds or (9 if options.long else 3)
    options.seconds = options.seconds or (4 if options.long else 2)
    return options


def start(folder, binary):
    """Starts all that is compared. `servers` lists what must be stopped."""
    world = types.SimpleNamespace(folder=folder, binary=binary, servers=[])

    def add(server):
        world.servers += [server] if server else []
        return server

    try:
        world.upstream = add(servers.upstream(folder, [64, *growth.BYTES]))
        world.redis = add(servers.redis(folder))
        world.nginx = add(servers.nginx_proxy(folder, world.upstream.port))
        world.haproxy = add(servers.haproxy(folder, world.upstream.port))
        world.lua = add(servers.lua_proxy(folder, world.upstream.port, world.redis.port))
        stores = {"": f"redis://127.0.0.1:{world.redis.port}", "-memory": "memory:", "-disk": f"disk:{folder}/records"}
        for suffix, store in stores.items():
            proxy = servers.onceproxy(f"onceproxy{suffix}", folder, binary, store, world.upstream.port)
            setattr(world, f"once{suffix.replace('-', '_')}", add(proxy))
    except BaseException:
        for server in reversed(world.servers):
            server.stop()
        raise
    return world


def counted(world):
    """The round trips to Redis, asserted."""
    rows = counts.assert_round_trips(world.folder, world.binary, world.redis, world.upstream)
    table("Round trips to Redis (asserted)", ["request", "round trips"], [[name, f"{n:g}"] for name, n in rows])


def rounds(world, options):
    """All loads one after the other, again and again, so that what the machine does meanwhile falls on all."""
    plan = [
        (PLAIN, world.nginx, "none"),
        (PLAIN, world.haproxy, "none"),
        (PLAIN, world.once, "none"),
        (FIRST, world.once, "unique"),
        (FIRST, world.lua, "unique"),
        (FIRST, world.once_memory, "unique"),
        (FIRST, world.once_disk, "unique"),
        (KNOWN, world.once, "known"),
        (KNOWN, world.lua, "known"),
        (KNOWN, world.once_memory, "known"),
        (KNOWN, world.once_disk, "known"),
        (SAME, world.once, "same"),
        (SAME, world.lua, "same"),
    ]
    plan = [row for row in plan if row[1]]
    redis = measure.Redis(world.redis.port)
    seen = {(title, server.name): [] for title, server, _ in plan}
    commands = {}
    for _ in range(options.rounds):
        redis.ask("FLUSHALL")
        for title, server, keys in plan:
            word = f"rounds-{time.monotonic_ns()}"
            if keys == "same":
                first_answer(server, word)
            if keys == "known":
                measure.load(server, keys, 1, word=word)
            before, redis_before = redis.commands(), world.redis.processor_seconds()
            got = measure.load(server, keys, options.seconds, word=word)
            after, redis_after = redis.commands(), world.redis.processor_seconds()
            got.redis = (redis_after - redis_before) * 1e6 / got.requests
            seen[title, server.name].append(got)
            commands[title, server.name] = per_request(before, after, got.requests)
    redis.close()
    baselines = seen[PLAIN, world.nginx.name]
    rows = []
    for (title, name), runs in seen.items():
        ratio = measure.middle(run.rate / base.rate for run, base in zip(runs, baselines))
        cost = measure.middle(run.processor / base.processor for run, base in zip(runs, baselines))
        figures = [measure.middle(getattr(run, field) for run in runs)[0] for field in ["rate", "p50", "p99", "processor"]]
        of_redis = measure.middle(run.redis for run in runs)[0]
        rows.append(
            [
                title,
                name,
                f"{figures[0]:.0f}",
                "{:.2f} ({:.2f}–{:.2f})".format(*ratio),
                f"{figures[1]:.0f}",
                f"{figures[2]:.0f}",
                f"{figures[3]:.1f}",
                "{:.2f} ({:.2f}–{:.2f})".format(*cost),
                f"{of_redis:.1f}" if of_redis > 1 else "—",
            ]
        )
    head = ["load", "server", "requests/s", "× nginx (least–most)", "p50 µs", "p99 µs", "processor µs"]
    head += ["× nginx (least–most)", "Redis µs"]
    table(f"64 connections, {options.rounds} rounds of {options.seconds} s, medians", head, rows)
    rows = [[title, name, words] for (title, name), words in commands.items() if words]
    table("Redis commands per request, those inside scripts included", ["load", "server", "commands"], rows)


def first_answer(server, key):
    """Has the key's one execution done before the replays of it are measured."""
    client = http.client.HTTPConnection("127.0.0.1", server.port)
    body = b'{"amount":1099,"currency":"eur","note":"' + b"n" * (512 - 42) + b'"}'
    client.request("POST", "/", body, {"Idempotency-Key": key, "Content-Type": "application/json"})
    response = client.getresponse()
    response.read()
    assert response.status == 200, f"{server.name} answered {response.status}"
    client.close()


def per_request(before, after, requests):
    """What a request asked of Redis, in words. What is too rare to belong to requests is left out."""
    counted = {name: (calls - before.get(name, 0)) / requests for name, calls in after.items()}
    return ", ".join(f"{name} {calls:.2f}" for name, calls in sorted(counted.items()) if calls > 0.01)


def one_connection(world, seconds):
    """What one caller waits, without any queue."""
    rows = []
    plan = [(world.nginx, "none"), (world.haproxy, "none"), (world.once, "none"), (world.once, "unique")]
    plan += [(world.lua, "unique"), (world.once_memory, "unique"), (world.once_disk, "unique"), (world.once, "same")]
    for server, keys in plan:
        if server:
            got = measure.load(server, keys, seconds, connections=1)
            rows.append([server.name, keys, f"{got.p50:.0f}", f"{got.p99:.0f}"])
    table("One connection", ["server", "keys", "p50 µs", "p99 µs"], rows)


def sizes(world):
    """Memory idle and after the load, and the time from start to the first answer."""
    rows = [[name, f"{getattr(world, name).peak_mib():.1f}"] for name in ["once", "once_memory", "once_disk", "nginx"]]
    table("Most memory used so far", ["server", "MiB"], rows)
    rows = []
    for store in ["memory:", f"disk:{world.folder}/started", f"redis://127.0.0.1:{world.redis.port}"]:
        kind, times = store.partition(":")[0], []
        for number in range(5):
            proxy = servers.onceproxy(
                f"start-{kind}-{number}", world.folder, world.binary, store, world.upstream.port, tried=False
            )
            first_answer(proxy, f"start-{kind}-{number}")
            times.append(time.monotonic() - proxy.started)
            idle = proxy.resident_mib()
            proxy.stop()
        rows.append([kind, *(f"{t * 1e3:.0f}" for t in measure.middle(times)), f"{idle:.1f}"])
    head = ["store", "ms from start to the first keyed answer", "least", "most", "MiB then"]
    table("Start, 5 times each", head, rows)


def table(title, head, rows):
    """Prints a table in Markdown, as it stands in docs/performance.md."""
    print(f"\n### {title}\n\n| {' | '.join(head)} |\n|{' --- |' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
