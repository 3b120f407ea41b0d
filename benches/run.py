"""`make bench`: onceproxy beside nginx, HAProxy and a hand-written layer, in rounds on this machine.

Everything runs on loopback in a folder of its own. Counts are asserted, times are only printed: compare the ratios to
nginx in the same round, not the rates of two runs. What is printed is Markdown, as docs/performance.md has it.
"""

import argparse
import pathlib
import resource
import sys
import tempfile
import time
import traceback
import types

import counts
import growth
import rounds
import servers
import single
import sizes
import syscalls
import targets
import threads


def main():
    options = arguments()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with tempfile.TemporaryDirectory(prefix="onceproxy-bench-") as folder:
        world = start(pathlib.Path(folder), options)
        try:
            failed = [part.__name__ for part in parts(options) if not done(part, world, options)]
        finally:
            stop(world)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary", help="the release binary of onceproxy")
    parser.add_argument("--optimized", help="beside it: the binary of scripts/build-optimized")
    parser.add_argument("--limit", help="beside it: the least that a proxy can do, the example `limit`")
    parser.add_argument("--long", action="store_true", help="more rounds, and the growth tables")
    parser.add_argument("--syscalls", action="store_true", help="only count system calls per request, by strace")
    parser.add_argument("--only", choices=[part.__name__ for part in ALL], nargs="+", help="only these parts")
    parser.add_argument("--rounds", type=int, help="3, or 5 with --long")
    parser.add_argument("--seconds", type=int, help="of one load: 2, or 3 with --long")
    options = parser.parse_args()
    for name in ["binary", "optimized", "limit"]:
        path = getattr(options, name)
        setattr(options, name, path and str(pathlib.Path(path).resolve()))
    options.rounds = options.rounds or (5 if options.long else 3)
    options.seconds = options.seconds or (3 if options.long else 2)
    return options


def start(folder, options):
    """Starts all that is compared. `servers` lists what must be stopped."""
    world = types.SimpleNamespace(folder=folder, binary=options.binary, servers=[])

    def add(server):
        world.servers += [server] if server else []
        return server

    def once(name, store, upstream, binary=options.binary):
        return add(servers.onceproxy(name, folder, binary, store, upstream)) if binary else None

    try:
        world.upstream = add(servers.upstream(folder, [64, *growth.BYTES]))
        world.redis = add(servers.redis(folder))
        upstream, socket = world.upstream.port, f"unix:{servers.upstream_socket(folder)}"
        world.nginx = add(servers.nginx_proxy("nginx", folder, f"127.0.0.1:{upstream}"))
        world.nginx_unix = add(servers.nginx_proxy("nginx-unix", folder, socket))
        world.haproxy = add(servers.haproxy(folder, upstream))
        world.lua = add(servers.lua_proxy(folder, upstream, world.redis.port))
        records = f"redis://127.0.0.1:{world.redis.port}"
        world.once = once("onceproxy", records, upstream)
        world.optimized = once("onceproxy-optimized", records, upstream, options.optimized)
        world.optimized_memory = once("onceproxy-optimized-memory", "memory:", upstream, options.optimized)
        world.limit = add(options.limit and servers.limit(folder, options.limit, upstream, world.redis.port))
        world.once_unix = once("onceproxy-unix", f"redis+unix://{servers.redis_socket(folder)}", socket)
        world.once_memory = once("onceproxy-memory", "memory:", upstream)
        world.once_disk = once("onceproxy-disk", f"disk:{folder}/records", upstream)
    except BaseException:
        stop(world)
        raise
    return world


def stop(world):
    for server in reversed(world.servers):
        server.stop()


def parts(options):
    """What is to be measured."""
    if options.syscalls:
        return [system_calls]
    chosen = ALL if options.long else QUICK
    return [part for part in ALL if part.__name__ in options.only] if options.only else chosen


def done(part, world, options):
    """Measures one part and prints its tables. What fails is said, and the others still run."""
    begun = time.monotonic()
    try:
        for title, head, rows in part(world, options):
            table(title, head, rows)
    except Exception:
        traceback.print_exc()
        return False
    print(f"{part.__name__}: {time.monotonic() - begun:.0f} s", file=sys.stderr)
    return True


def round_trips(world, options):
    """The round trips to Redis, asserted."""
    rows = counts.assert_round_trips(world.folder, world.binary, world.redis, world.upstream)
    yield "Round trips to Redis (asserted)", ["request", "round trips"], [[name, f"{n:g}"] for name, n in rows]


def side_by_side(world, options):
    """Rates, one connection, memory and start, and what they say about the targets."""
    seen = rounds.Rounds(world, options.rounds, options.seconds)
    yield from seen.tables()
    alone = single.Single(world, max(2, options.rounds - 1), 1)
    yield from alone.tables()
    memory, begin = sizes.Memory(world, 1), sizes.Start(world)
    yield from memory.tables()
    yield from begin.tables()
    yield from targets.tables(seen, alone, memory, begin)


def cores(world, options):
    """By how many runtimes there are."""
    yield from threads.tables(world, 3, max(1, options.seconds - 1))


def by_bytes(world, options):
    """By the bytes of the answer."""
    yield growth.by_bytes(world, options.seconds)


def by_connections(world, options):
    """By the number of connections."""
    yield growth.by_connections(world, options.seconds)


def by_joins(world, options):
    """By the callers of one key."""
    yield growth.by_joins(world)


def by_keys(world, options):
    """By the records that are stored already."""
    yield growth.by_keys(world, options.seconds)


def system_calls(world, options):
    """System calls per request."""
    yield syscalls.table(world, options.seconds)


QUICK = [round_trips, side_by_side]
ALL = [*QUICK, cores, by_bytes, by_connections, by_joins, by_keys]


def table(title, head, rows):
    """Prints a table in Markdown, as it stands in docs/performance.md."""
    print(f"\n### {title}\n\n| {' | '.join(head)} |\n|{' --- |' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
