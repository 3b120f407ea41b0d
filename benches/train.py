"""Has one onceproxy serve each load of the benchmark on each store, for the profile that `scripts/build-optimized` builds by.

What is frequent in production should be frequent here. Nothing is measured.
"""

import pathlib
import sys
import tempfile

import measure
import servers

KEYS = ["none", "unique", "known", "same", "shared"]
CONNECTIONS = [1, 64]
SECONDS = 2


def main(binary):
    with tempfile.TemporaryDirectory(prefix="onceproxy-train-") as folder:
        folder, started = pathlib.Path(folder), []
        try:
            started.append(upstream := servers.upstream(folder, []))
            started.append(redis := servers.redis(folder))
            for store in ["memory:", f"disk:{folder}/records", f"redis://127.0.0.1:{redis.port}"]:
                proxy = servers.onceproxy(store.partition(":")[0], folder, binary, store, upstream.port)
                started.append(proxy)
                for keys in KEYS:
                    for connections in CONNECTIONS:
                        measure.load(proxy, keys, SECONDS, connections)
                # Ended in order: only then does it write its counts.
                proxy.stop()
        finally:
            for server in reversed(started):
                server.stop()


if __name__ == "__main__":
    main(str(pathlib.Path(sys.argv[1]).resolve()))
