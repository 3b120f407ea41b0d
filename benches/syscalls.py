"""System calls per request, counted by strace: what a proxy costs the kernel. No load disturbs them much."""

import pathlib
import re
import signal
import subprocess
import time

import measure

# Rarer ones belong to connections, timers and the sweep.
PER_REQUEST = 0.02


def table(world, seconds):
    """Title, head and rows: nginx plain, then onceproxy plain, first execution and replay, at 64 connections."""
    plan = [
        ("plain POST", world.nginx, "none"),
        ("plain POST", world.once, "none"),
        ("a new key each time", world.once, "unique"),
        ("2,000 keys that are done", world.once, "known"),
        ("one key that is done", world.once, "same"),
    ]
    rows = []
    for title, server, keys in plan:
        word = f"syscalls-{keys}"
        measure.load(server, keys, 1, word=word)
        word += "-counted" if keys == "unique" else ""
        counted, requests = count(world.folder, server, lambda: measure.load(server, keys, seconds, word=word))
        shares = {name: calls / requests for name, calls in counted.items()}
        often = {name: share for name, share in shares.items() if share > PER_REQUEST}
        words = ", ".join(f"{name} {share:.2f}" for name, share in sorted(often.items(), key=lambda pair: -pair[1]))
        rows.append([title, server.name, f"{sum(shares.values()):.2f}", words])
    return "System calls per request, 64 connections", ["load", "server", "all", "which"], rows


def count(folder, server, load):
    """How often each call was made while the load ran, and by how many requests."""
    report = folder / "strace"
    command = ["strace", "--follow-forks", "--summary-only", "--quiet=all", "-o", str(report)]
    command += [word for pid in server.pids() for word in ("-p", str(pid))]
    tracer = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    for pid in server.pids():
        while not is_traced(pid):
            assert tracer.poll() is None, "strace ended: is it installed, and may it trace?"
            time.sleep(0.01)
    requests = load().requests
    tracer.send_signal(signal.SIGINT)
    tracer.wait()
    lines = re.findall(r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s+(?:\d+\s+)?(\w+)$", report.read_text(), re.M)
    return {name: int(calls) for calls, name in lines if name != "total"}, requests


def is_traced(pid):
    """Whether all threads of a process have a tracer."""
    tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
    return all("TracerPid:\t0\n" not in (task / "status").read_text() for task in tasks)
