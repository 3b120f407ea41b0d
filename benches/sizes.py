"""Memory at rest and under load, and the time from start to the first answer."""

import time

import measure
import rounds
import servers

CONNECTIONS = [64, 4096]


class Memory:
    """The most that a proxy of its own ever used, in MiB: idle, and with each number of connections."""

    def __init__(self, world, seconds):
        self.seen = {}
        for name, upstream in [("nginx", world.nginx), ("onceproxy", None)]:
            server = upstream or _once(world, "sized", f"redis://127.0.0.1:{world.redis.port}")
            self.seen[name] = [server.resident_mib()]
            for connections in CONNECTIONS:
                server.forget_peak()
                for keys in ["none", "unique"]:
                    measure.load(server, keys, seconds, connections, may_refuse=connections > 1000)
                self.seen[name].append(server.peak_mib())
            if not upstream:
                server.stop()

    def tables(self):
        head = ["server", "idle, MiB", *(f"at the most with {n:,} connections" for n in CONNECTIONS)]
        rows = [[name, *(f"{mib:.1f}" for mib in row)] for name, row in self.seen.items()]
        yield "Resident memory, records on Redis", head, rows


class Start:
    """Seconds from start to the first keyed answer, five times each."""

    def __init__(self, world):
        self.seen = {}
        for store in ["memory:", f"disk:{world.folder}/started", f"redis://127.0.0.1:{world.redis.port}"]:
            kind = store.partition(":")[0]
            for number in range(5):
                name = f"start-{kind}-{number}"
                proxy = servers.onceproxy(name, world.folder, world.binary, store, world.upstream.port, tried=False)
                try:
                    rounds.first_answer(proxy, name)
                    self.seen.setdefault(kind, []).append((time.monotonic() - proxy.started, proxy.resident_mib()))
                finally:
                    proxy.stop()

    def tables(self):
        head = ["store", "ms from start to the first keyed answer", "least", "most", "MiB then"]
        rows = []
        for kind, seen in self.seen.items():
            times = measure.middle(seconds for seconds, _ in seen)
            rows.append([kind, *(f"{t * 1e3:.0f}" for t in times), f"{measure.middle(mib for _, mib in seen)[0]:.1f}"])
        yield "Start, 5 times each", head, rows


def _once(world, name, store):
    return servers.onceproxy(name, world.folder, world.binary, store, world.upstream.port)
