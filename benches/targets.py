"""What was measured, beside what is aimed at. Times are compared here and never asserted: they are the machine's."""

from rounds import FIRST, JOINED, KNOWN, PLAIN, SAME
from single import spread

ONCE = "onceproxy"


def tables(rounds, single, memory, start):
    """One row for each target."""
    rows = []

    def ratio(what, least, aim, *keys, **options):
        got = rounds.ratio(*keys, **options)
        if got:
            rows.append([what, least, aim, "{:.2f} × ({:.2f}–{:.2f})".format(*got)])

    ratio("plain POST, rate", "0.95 ×", "1.1 ×", PLAIN, ONCE)
    ratio("first execution on Redis, rate", "0.55 ×", "0.70 ×", FIRST, ONCE)
    ratio("… to the hand-written layer", "2.5 ×", "", FIRST, ONCE, to=(FIRST, "nginx-lua"))
    ratio("replay from Redis, rate: one key", "1.3 ×", "1.7 ×", SAME, ONCE)
    ratio("… 2,000 keys", "", "", KNOWN, ONCE)
    ratio("join in the same process, rate", "", "2.5 ×", JOINED, ONCE)
    ratio("memory store, first execution, rate", "0.8 ×", "1.0 ×", FIRST, "onceproxy-memory")
    ratio("processor time: plain", "1.1 ×", "0.95 ×", PLAIN, ONCE, field="processor")
    ratio("… first execution", "1.6 ×", "1.3 ×", FIRST, ONCE, field="processor")
    ratio("… replay: one key", "0.85 ×", "0.65 ×", SAME, ONCE, field="processor")
    ratio("… replay: 2,000 keys", "", "", KNOWN, ONCE, field="processor")
    plain, first = single.over(ONCE, "none"), single.over(ONCE, "unique", trips=2)
    rows.append(["one connection, µs, plain: nginx and", "10", "3", spread(plain)])
    rows.append(["… first execution: nginx, 2 round trips to Redis and", "25", "12", spread(first)])
    used = " / ".join(f"{mib:.0f}" for mib in memory.seen[ONCE])
    rows.append(["memory: idle / 64 / 4,096 connections, MiB", "20 / 30 / 250", "8 / 14 / 120", used])
    slowest = max(seconds for seen in start.seen.values() for seconds, _ in seen)
    rows.append(["start to the first keyed answer, the slowest", "100 ms", "", f"{slowest * 1e3:.0f} ms"])
    rows.append(["round trips to Redis: first / replay / join", "2 / 1 / 0", "", "2 / 1 / 0, asserted"])
    yield "Against the targets", ["× nginx, unless it says otherwise", "at least", "aim", "measured"], rows
