"""What was measured, beside what is aimed at. Times are compared here and never asserted: they are the machine's."""

from rounds import FIRST, JOINED, KNOWN, PLAIN, SAME
from single import spread

ONCE = "onceproxy"
# What may run beside it, each a column more.
BESIDE = ["onceproxy-optimized", "limit"]


def tables(rounds, single, memory, start):
    """One row for each target."""
    servers = [ONCE, *(name for name in BESIDE if (PLAIN, name) in rounds.seen)]
    rows = []

    def row(what, least, aim, measured, *beside):
        rows.append([what, least, aim, measured, *beside, *["—"] * (len(servers) - 1 - len(beside))])

    def ratio(what, least, aim, title, store="", **options):
        got = [rounds.ratio(title, name + store, **options) for name in servers]
        row(what, least, aim, *("{:.2f} × ({:.2f}–{:.2f})".format(*middle) if middle else "—" for middle in got))

    ratio("plain POST, rate", "0.95 ×", "1.1 ×", PLAIN)
    ratio("first execution on Redis, rate", "0.55 ×", "0.70 ×", FIRST)
    ratio("… to the hand-written layer", "2.5 ×", "", FIRST, to=(FIRST, "nginx-lua"))
    ratio("replay from Redis, rate: one key", "1.3 ×", "1.7 ×", SAME)
    ratio("… 2,000 keys", "", "", KNOWN)
    ratio("join in the same process, rate", "", "2.5 ×", JOINED)
    ratio("memory store, first execution, rate", "0.8 ×", "1.0 ×", FIRST, store="-memory")
    ratio("processor time: plain", "1.1 ×", "0.95 ×", PLAIN, field="processor")
    ratio("… first execution", "1.6 ×", "1.3 ×", FIRST, field="processor")
    ratio("… replay: one key", "0.85 ×", "0.65 ×", SAME, field="processor")
    ratio("… replay: 2,000 keys", "", "", KNOWN, field="processor")
    plain = [spread(single.over(name, "none")) for name in servers]
    first = [spread(single.over(name, "unique", trips=2)) for name in servers]
    row("one connection, µs, plain: nginx and", "10", "3", *plain)
    row("… first execution: nginx, 2 round trips to Redis and", "25", "12", *first)
    used = " / ".join(f"{mib:.0f}" for mib in memory.seen[ONCE])
    row("memory: idle / 64 / 4,096 connections, MiB", "20 / 30 / 250", "8 / 14 / 120", used)
    slowest = max(seconds for seen in start.seen.values() for seconds, _ in seen)
    row("start to the first keyed answer, the slowest", "100 ms", "", f"{slowest * 1e3:.0f} ms")
    row("round trips to Redis: first / replay / join", "2 / 1 / 0", "", "2 / 1 / 0, asserted")
    head = ["× nginx, unless it says otherwise", "at least", "aim", *servers]
    yield "Against the targets", head, rows
