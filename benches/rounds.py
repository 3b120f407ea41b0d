"""All loads one after the other, again and again, so that what the machine does meanwhile falls on all of them.

Ratios are to nginx in the same round; what counts is the median over the rounds.
"""

import http.client
import time

import measure

PLAIN, FIRST = "plain POST", "a new key each time"
KNOWN, SAME, JOINED = "2,000 keys that are done", "one key that is done", "one key for 32 at once"
_KEYS = {PLAIN: "none", FIRST: "unique", KNOWN: "known", SAME: "same", JOINED: "shared"}


class Rounds:
    """What was seen: a list of loads, one a round, for each pair of what was asked and who answered."""

    def __init__(self, world, rounds, seconds):
        self.title = f"64 connections, {rounds} rounds of {seconds} s, medians"
        self.seen, self.commands = {}, {}
        self.baseline = (PLAIN, world.nginx.name)
        redis = measure.Redis(world.redis.port)
        for _ in range(rounds):
            redis.ask("FLUSHALL")
            for title, server in _plan(world):
                self._one(world, redis, title, server, seconds)
        redis.close()

    def _one(self, world, redis, title, server, seconds):
        keys, word = _KEYS[title], f"rounds-{time.monotonic_ns()}"
        if keys == "same":
            first_answer(server, word)
        if keys == "known":
            measure.load(server, keys, 1, word=word)
        before, redis_before = redis.commands(), world.redis.processor_seconds()
        got = measure.load(server, keys, seconds, word=word)
        after, redis_after = redis.commands(), world.redis.processor_seconds()
        got.redis = (redis_after - redis_before) * 1e6 / got.requests
        self.seen.setdefault((title, server.name), []).append(got)
        self.commands[title, server.name] = _per_request(before, after, got.requests)

    def ratio(self, title, name, field="rate", to=None):
        """One field beside nginx's, or another's: median, least and most of the rounds; nothing if it did not run."""
        runs, bases = self.seen.get((title, name)), self.seen.get(to or self.baseline)
        if not runs or not bases:
            return None
        return measure.middle(getattr(run, field) / getattr(base, field) for run, base in zip(runs, bases))

    def tables(self):
        """Rates and costs; then what Redis was asked."""
        rows = []
        for (title, name), runs in self.seen.items():
            rate, p50, p99, processor, redis = (
                measure.middle(getattr(run, field) for run in runs)[0]
                for field in ["rate", "p50", "p99", "processor", "redis"]
            )
            fast, cheap = (spread(self.ratio(title, name, field)) for field in ["rate", "processor"])
            row = [title, name, f"{rate:.0f}", fast, f"{p50:.0f}", f"{p99:.0f}", f"{processor:.1f}", cheap]
            rows.append([*row, f"{redis:.1f}" if redis > 1 else "—"])
        head = ["load", "server", "requests/s", "× nginx (least–most)", "p50 µs", "p99 µs", "processor µs"]
        yield self.title, [*head, "× nginx (least–most)", "Redis µs"], rows
        rows = [[title, name, words] for (title, name), words in self.commands.items() if words]
        yield "Redis commands per request, those inside scripts included", ["load", "server", "commands"], rows


def spread(middle):
    """A median, and from where to where it ranges."""
    return "{:.2f} ({:.2f}–{:.2f})".format(*middle)


def _plan(world):
    once, limit = [world.once, world.optimized], world.limit
    keyed = [world.once_memory, world.optimized_memory, world.once_disk]
    plan = [(PLAIN, server) for server in [world.nginx, world.haproxy, limit, *once, world.nginx_unix, world.once_unix]]
    plan += [(FIRST, server) for server in [limit, *once, world.lua, world.once_unix, *keyed]]
    plan += [(KNOWN, server) for server in [limit, *once, world.lua, *keyed]]
    plan += [(SAME, server) for server in [*once, world.lua]]
    plan += [(JOINED, server) for server in once]
    return [row for row in plan if row[1]]


def first_answer(server, key):
    """Has the key's one execution done before the replays of it are measured."""
    client = http.client.HTTPConnection("127.0.0.1", server.port)
    body = b'{"amount":1099,"currency":"eur","note":"' + b"n" * (512 - 42) + b'"}'
    client.request("POST", "/", body, {"Idempotency-Key": key, "Content-Type": "application/json"})
    response = client.getresponse()
    response.read()
    assert response.status == 200, f"{server.name} answered {response.status}"
    client.close()


def _per_request(before, after, requests):
    """What a request asked of Redis, in words. What is too rare to belong to requests is left out, and the sweep's."""
    counted = {name: (calls - before.get(name, 0)) / requests for name, calls in after.items()}
    often = {name: calls for name, calls in counted.items() if calls > 0.01 and name not in ["zcount", "zrangebyscore"]}
    return ", ".join(f"{name} {calls:.2f}" for name, calls in sorted(often.items()))
