"""Fixtures for all tests: the event loop, and real servers shared by the whole run."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from tests import eager, prepared, suites
from tests.security import certificates
from zkrq import local

# Where the run was started with Ctrl-C ignored, as a shell does in the background, the processes that tests start and
# interrupt would ignore it as well.
signal.signal(signal.SIGINT, signal.default_int_handler)

HERE = Path(__file__).parent

WAITING = ("coordination", "faults", "chaos", "advice", "integration", "security", "frameworks", "outbox", "release")
"""Folders of tests that mostly wait for servers, in the order in which they are run: what is long begins early, so that
no processor idles at the end."""

COMPUTING = ("simulation", "mutants", "model", "behaviour", "lua", "unit")
"""Folders of tests that keep a processor busy.  Workers take files of both kinds by turns, so that processors do not
idle first and are fought for afterwards."""


def pytest_configure(config: pytest.Config) -> None:
    """Workers collect a whole run from different folders on: so they share the rewriting of a fresh clone's asserts."""
    worker, workers = os.environ.get("PYTEST_XDIST_WORKER"), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if worker and config.args_source is config.ArgsSource.TESTPATHS:
        files = [path for path in HERE.rglob("test_*.py") if not _is_left_out(path, config)]
        folders = sorted({path.parent for path in files})
        first = len(folders) * int(worker.removeprefix("gw")) // workers
        config.args[:] = map(str, folders[first:] + folders[:first])


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import the files that have no test of the suite."""
    return _is_left_out(collection_path, config) or None


def _is_left_out(path: Path, config: pytest.Config) -> bool:
    chosen = config.getoption("suite")
    if chosen is None or path == HERE or not path.is_relative_to(HERE):
        return False
    if chosen == suites.LONG:
        return path.suffix == ".py" and not suites.may_be_long(path)
    place = path.relative_to(HERE).as_posix()
    return place.partition("/")[0] not in suites.PLACES or suites.RUNS[chosen].isdisjoint(suites.suites(place))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Hardly anything that a collection makes is garbage, so looking for it takes a quarter of the time in vain."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(trylast=True)  # after pytest has put together what shares a fixture
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The tests of the suite, and files in their places; within one, first what needs no cluster of the module's: what
    moves the clock of the event loop would take such a cluster along, which then does in a moment what it does in so
    many minutes."""
    if chosen := config.getoption("suite"):
        parts = [(_suite(item) in suites.RUNS[chosen], item) for item in items]
        config.hook.pytest_deselected(items=[item for runs, item in parts if not runs])
        items[:] = [item for runs, item in parts if runs]
    places = _places({item.path for item in items})
    items.sort(key=lambda item: (places[item.path], "backend" in getattr(item, "fixturenames", ())))


def _suite(item: pytest.Item) -> str:
    return suites.LONG if item.get_closest_marker("chaos") else suites.suite(item.nodeid)


def pytest_collection_finish() -> None:
    """Thousands of tests, and all that they import, stay to the end of a whole run: the collector need not look at them
    again, a third of a second each time that a test has it look at everything.

    Hypothesis, which a whole run has imported by now, has to find out while it is imported who refers to a generator.
    """
    if "hypothesis" in sys.modules:
        gc.collect()
        gc.freeze()


def _places(files: set[Path]) -> dict[Path, tuple[float, Path]]:
    """Place files: each kind in its order, and evenly spread over the whole run; the same in every worker."""

    def place(file: Path) -> tuple[int, Path]:
        folder = file.relative_to(HERE).parts[0]
        return (*WAITING, *COMPUTING, folder).index(folder), file

    waiting = {file for file in files if file.relative_to(HERE).parts[0] in WAITING}
    kinds = sorted(waiting, key=place), sorted(files - waiting, key=place)
    return {file: (number / len(kind), file) for kind in kinds for number, file in enumerate(kind)}


IDLE = ("asyncio_", "zkrq probes_", "AnyIO worker thread", "asyncio-waitpid-")
"""Threads that wait for work or for a process to end, and do nothing meanwhile."""

END_SECONDS = 5.0
"""Seconds that a thread has to end after the last test of its file."""


@pytest.fixture(scope="module", autouse=True)
def no_thread_stays_behind() -> Generator[None]:
    """A client that a file leaves open goes on in its thread: it disturbs the files after it, one time in many."""
    before = set(threading.enumerate())
    yield
    left = [one for one in threading.enumerate() if one not in before and not one.name.startswith(IDLE)]
    for thread in left:
        thread.join(END_SECONDS)
    assert [thread for thread in left if thread.is_alive()] == []


LOOPS: dict[str, dict[str, object]] = {
    "asyncio": {},
    "eager": {"loop_factory": eager.new_event_loop},
    "uvloop": {"use_uvloop": True},
}
"""Event loops on which tests may run: the usual one, one whose tasks run as soon as they are made, and uvloop's."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--loop", choices=LOOPS, default="asyncio", help="event loop on which the tests run")
    parser.addoption("--suite", choices=suites.RUNS, default=None, help="only these tests (see tests/suites.py)")


@pytest.fixture(scope="session")
def anyio_backend(pytestconfig: pytest.Config) -> tuple[str, dict[str, object]]:
    """One asyncio event loop for the run, so that session-wide fixtures may live in it."""
    return "asyncio", LOOPS[str(pytestconfig.getoption("loop"))]


@pytest.fixture(scope="session")
async def shared_servers(anyio_backend: str) -> AsyncGenerator[local.Servers, None]:
    """Three Redis and three ZooKeeper servers for the run; tests take ``servers``."""
    if missing := {"redis", "zookeeper"} - local.available():
        pytest.skip(f"not installed: {', '.join(sorted(missing))}")
    async with local.servers(redis=3, zookeeper=3) as servers:
        yield servers


@pytest.fixture
async def servers(shared_servers: local.Servers) -> AsyncGenerator[local.Servers, None]:
    """The shared servers, all of them running; whatever the test does to them is undone, except for data."""
    yield shared_servers
    for server in shared_servers.all:
        server.resume()
    await shared_servers.start()


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> certificates.Certificates:
    """Certificates of servers and clients, and their keys."""
    if not certificates.AVAILABLE:
        pytest.skip("not installed: openssl")
    return certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def prepared_zkrq(tmp_path_factory: pytest.TempPathFactory) -> Generator[list[str], None, None]:
    """What to start in place of ``zkrq``: a process that has imported everything (see ``tests.prepared``)."""
    path = tmp_path_factory.mktemp("prepared") / "socket"
    with subprocess.Popen([sys.executable, "-m", prepared.__name__, path], stdout=subprocess.PIPE) as server:
        assert server.stdout
        server.stdout.readline()
        yield [sys.executable, "-I", "-S", str(Path(prepared.__file__)), str(path)]
        server.terminate()


@pytest.fixture
def unheard() -> Generator[None]:
    """Keep what is logged of surrogates from pytest, one process of which cannot report it to another."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
