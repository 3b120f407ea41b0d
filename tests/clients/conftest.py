"""What the tests share: one upstream and one proxy for all of them. Each test takes a place of its own at the upstream.

    make test-clients                                       all
    .venv/bin/python -m pytest tests/clients -k curl        some of those that are not marked `load`
    .venv/bin/python -m pytest tests/clients -m load -s     the large ones with their figures, as make test-load does

The binary is ONCEPROXY_BIN, or the release that cargo built last.
"""

import concurrent.futures
import itertools
import pathlib
import signal
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from proxy import PATIENCE, Proxy, certificate  # noqa: E402
from relay import Relay  # noqa: E402
from upstream import Upstream  # noqa: E402


class World:
    """The upstream, the proxy in front of it, and keys that nobody used yet."""

    def __init__(self, folder, upstream):
        self.upstream, self.secured = upstream, certificate(folder)
        self.cert = self.secured[0]
        route = f'[[route]]\nname = "api"\nupstream = "http://{upstream.authority}"\n'
        self.proxy = Proxy(folder, route, secured=self.secured)
        self.keys = itertools.count(1)

    def place(self, *answer):
        """A path of the upstream for this test alone."""
        return self.upstream.place(*answer)

    def key(self):
        """A new idempotency key."""
        return f"key-{next(self.keys)}"

    def url(self, place, over="http"):
        """The address of a place through the proxy, by http or https."""
        return f"{over}://{self.proxy.tls if over == 'https' else self.proxy.plain}{place.path}"


@pytest.fixture(autouse=True)
def ends(request):
    """Fails a test that hangs, so that the others are run."""

    def give_up(*_):
        raise AssertionError("this test hangs")

    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(PATIENCE * (10 if request.node.get_closest_marker("load") else 2))
    yield
    signal.alarm(0)


@pytest.fixture(scope="session")
def upstream():
    server = Upstream()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def world(tmp_path_factory, upstream):
    world = World(tmp_path_factory.mktemp("world"), upstream)
    yield world
    world.proxy.end()


@pytest.fixture
def start(tmp_path_factory):
    """Starts proxies with settings of their own, and ends them after the test."""
    running = []

    def start(routes, more="", **how):
        running.append(Proxy(tmp_path_factory.mktemp("proxy"), routes, more, **how))
        return running[-1]

    yield start
    for proxy in running:
        proxy.end()


@pytest.fixture
def relay():
    """Starts relays that lose answers, and closes them after the test."""
    running = []

    def relay(target, loses):
        running.append(Relay(target, loses))
        return running[-1]

    yield relay
    for one in running:
        one.close()


@pytest.fixture
def held(world):
    """Calls something whose first request the upstream holds, until so many duplicates wait for its answer."""

    def held(place, duplicates, call):
        place.hold()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            asked = pool.submit(call)
            try:
                place.reached(1)
                world.proxy.waiting(duplicates)
            finally:
                place.let_go()
            return asked.result()

    return held
