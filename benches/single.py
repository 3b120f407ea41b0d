"""What one caller waits, without any queue: rounds of one connection, and in each the round trip to Redis itself."""

import measure
import servers


def spread(middle):
    """A median in microseconds more, and from where to where it ranges."""
    return "{:+.0f} ({:+.0f}–{:+.0f})".format(*middle)


class Single:
    """Medians of each round, in microseconds."""

    def __init__(self, world, rounds, seconds):
        once = [world.limit, world.once, world.optimized]
        plan = [(server, "none") for server in [world.nginx, *once, world.nginx_unix, world.once_unix]]
        plan += [(server, "unique") for server in [*once, world.lua, world.once_unix, world.once_memory]]
        plan += [(world.once_disk, "unique"), (world.once, "same")]
        self.seen, self.trips = {}, {"TCP": [], "a Unix socket": []}
        for _ in range(rounds):
            self.trips["TCP"].append(measure.round_trip(port=world.redis.port))
            self.trips["a Unix socket"].append(measure.round_trip(socket=servers.redis_socket(world.folder)))
            for server, keys in plan:
                if server:
                    got = measure.load(server, keys, seconds, connections=1)
                    self.seen.setdefault((server.name, keys), []).append(got)

    def over(self, name, keys, trips=0, by="TCP", base="nginx"):
        """What it takes longer than nginx and so many round trips to Redis, in microseconds: median, least, most."""
        runs, bases = self.seen[name, keys], self.seen[base, "none"]
        return measure.middle(
            run.p50 - nginx.p50 - trips * trip for run, nginx, trip in zip(runs, bases, self.trips[by])
        )

    def tables(self):
        rows = []
        for (name, keys), runs in self.seen.items():
            p50, p99 = (measure.middle(getattr(run, field) for run in runs)[0] for field in ["p50", "p99"])
            unix = name.endswith("-unix")
            over = self.over(name, keys, base="nginx-unix" if unix else "nginx")
            row = [name, keys, f"{p50:.0f}", f"{p99:.0f}", spread(over), "—"]
            if keys == "unique" and name not in ["onceproxy-memory", "onceproxy-disk"]:
                by, base = ("a Unix socket", "nginx-unix") if unix else ("TCP", "nginx")
                row[-1] = spread(self.over(name, keys, 2, by, base))
            rows.append(row)
        for by, trips in self.trips.items():
            p50 = "{:.0f} ({:.0f}–{:.0f})".format(*measure.middle(trips))
            rows.append([f"Redis itself, by {by}: `PING`", "—", p50, "—", "—", "—"])
        head = ["server", "keys", "p50 µs", "p99 µs", "over nginx, µs (least–most)", "and two round trips to Redis"]
        yield f"One connection, {len(self.trips['TCP'])} rounds", head, rows
