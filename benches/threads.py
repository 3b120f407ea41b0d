"""One runtime a core, by the number of client connections: what two cores give over one, and whether both work."""

import measure
import servers

CONNECTIONS = [1, 2, 8, 64, 1024]


def tables(world, rounds, seconds):
    """Rates and costs of each number of connections, with one core and with all, in rounds."""
    store = f"redis://127.0.0.1:{world.redis.port}"
    many = servers.workers()
    proxies = []
    try:
        for threads in dict.fromkeys([1, many]):
            name = f"cores-{threads}"
            proxy = servers.onceproxy(name, world.folder, world.binary, store, world.upstream.port, threads=threads)
            proxies.append((f"{threads} core{'s' if threads > 1 else ''}", proxy))
        seen = {}
        for _ in range(rounds):
            for connections in CONNECTIONS:
                for name, proxy in proxies:
                    for keys in ["none", "unique"]:
                        before = proxy.thread_seconds("core-")
                        got = measure.load(proxy, keys, seconds, connections)
                        after = proxy.thread_seconds("core-")
                        spent = [end - begin for begin, end in zip(before, after)]
                        got.busiest = max(spent) / (sum(spent) or 1)
                        seen.setdefault((connections, keys, name), []).append(got)
    finally:
        for _, proxy in proxies:
            proxy.stop()
    rows = []
    for (connections, keys, name), runs in seen.items():
        rate, p50, processor, busiest = (
            measure.middle(getattr(run, field) for run in runs)[0] for field in ["rate", "p50", "processor", "busiest"]
        )
        row = [f"{connections:,}", keys, name, f"{rate:.0f}", f"{p50:.0f}", f"{processor:.1f}"]
        rows.append([*row, "—" if name == "1 core" else f"{busiest:.0%}"])
    head = ["connections", "keys", "runtimes", "requests/s", "p50 µs", "processor µs", "share of the busiest core"]
    yield f"Cores, {rounds} rounds of {seconds} s, medians", head, rows
