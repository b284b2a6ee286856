"""Names are resolved, and credentials read, in threads of the package's own."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from functools import partial

import pytest

from tests.harness import HANG
from tests.names import Resolver, full_executor, resolving
from zkrq.base import network
from zkrq.base.credentials import Source
from zkrq.base.errors import Unavailable
from zkrq.base.network import NAME_THREADS, Unresolved, resolve
from zkrq.base.threads import Threads

pytestmark = pytest.mark.anyio


@pytest.fixture
def resolver() -> Generator[Resolver]:
    with resolving() as made:
        yield made


def limit(seconds: float = HANG) -> asyncio.Timeout:
    return asyncio.timeout(seconds)


async def test_handlers_that_fill_the_default_executor(resolver: Resolver) -> None:
    with full_executor():
        found = await resolve("redis.test", 6379, limit())
        assert [place for _, place in found.addresses] == [("127.0.0.1", 6379)]
        assert await Source("redis_auth", lambda: ("user", "password")).logins() == [("user", "password")]


async def test_an_address_is_no_question(resolver: Resolver) -> None:
    for host in ("127.0.0.1", "::1"):
        assert (await resolve(host, 1, limit())).addresses[0].place[:2] == (host, 1)
    assert resolver.asked == []


async def test_a_name_that_is_gone(resolver: Resolver) -> None:
    """Without an address that is an error; with one, that is used and the trouble told."""
    resolver.gone.add("redis.test")
    with pytest.raises(Unresolved, match=r"its name could not be resolved: .*Name or service not known"):
        await resolve("redis.test", 6379, limit())
    resolver.gone.clear()
    known = await resolve("redis.test", 6379, limit())
    assert known.trouble == ""
    resolver.gone.add("redis.test")
    found = await resolve("redis.test", 6379, limit())
    assert found.addresses == known.addresses
    assert "its name could not be resolved" in found.trouble


async def test_a_resolver_that_hangs_has_one_thread_for_a_name(resolver: Resolver) -> None:
    """A question that comes meanwhile waits for the same answer; one that comes late serves the next question."""
    resolver.answers.clear()
    for _ in range(NAME_THREADS + 1):
        with pytest.raises(Unresolved, match="the resolver does not answer in time"):
            await resolve("redis.test", 6379, limit(0.01))
    assert resolver.asked == ["redis.test"]
    waiting = asyncio.create_task(resolve("other.test", 6379, limit()))
    while resolver.asked == ["redis.test"]:
        await asyncio.sleep(0.01)
    resolver.answers.set()
    assert (await waiting).addresses
    resolver.answers.clear()
    assert (await resolve("other.test", 6379, limit(0.01))).addresses


async def look_up(host: str) -> network.Resolved:
    return await resolve(host, 6379, limit())


def on_a_loop(host: str, result: Future[network.Resolved]) -> None:
    result.set_result(asyncio.run(look_up(host)))


async def test_several_loops_share_a_lookup(resolver: Resolver) -> None:
    resolver.answers.clear()
    results = [Future[network.Resolved]() for _ in range(3)]
    threads = [threading.Thread(target=on_a_loop, args=("redis.test", result)) for result in results]
    for thread in threads:
        thread.start()
    while not resolver.asked:
        await asyncio.sleep(0.01)
    resolver.answers.set()
    found = await asyncio.gather(*map(asyncio.wrap_future, results))
    assert all(each.addresses for each in found)
    for thread in threads:
        thread.join()


def in_child(act: Callable[[], bool]) -> bool:
    """Fork; whether the call returned True there."""
    child = os.fork()
    if not child:
        try:
            os._exit(0 if act() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # from Python 3.12 on, of a fork beside threads
def test_a_forked_child_asks_anew(resolver: Resolver) -> None:
    """The thread that was asking is the parent's, and so was the lock that it may have held."""

    async def give_up() -> None:
        with pytest.raises(Unresolved):
            await resolve("redis.test", 6379, limit(0.01))

    def ask_in_child() -> bool:
        resolver.answers.set()
        return bool(asyncio.run(look_up("redis.test")).addresses)

    resolver.answers = threading.Event()
    asyncio.run(give_up())
    assert in_child(ask_in_child)


HANGING = """
import asyncio, socket, time
from zkrq.base import network
numeric = socket.getaddrinfo
def hang(*arguments, flags=0, **options):
    return numeric(*arguments, flags=flags, **options) if flags else time.sleep(3600)
socket.getaddrinfo = hang
async def main():
    try:
        await network.open_connection("redis.test", 6379, name_seconds=0.01)
    except network.Unresolved as error:
        print(error)
asyncio.run(main())
"""


def test_a_lookup_that_hangs_does_not_keep_the_process() -> None:
    ended = subprocess.run([sys.executable, "-c", HANGING], capture_output=True, text=True, timeout=HANG, check=True)
    assert ended.stdout == "its name could not be resolved: the resolver does not answer in time\n"


async def test_threads_are_bounded_and_end() -> None:
    threads, may_end, running = Threads("zkrq test", most=2), threading.Event(), list[int]()

    def work(number: int) -> int:
        running.append(number)
        may_end.wait(HANG)
        return number

    calls = [asyncio.create_task(threads.run(partial(work, number))) for number in range(4)]
    while len(running) < 2:
        await asyncio.sleep(0.01)
    calls[3].cancel()  # it is still in line, and is never made
    await asyncio.wait([calls[3]])
    may_end.set()
    assert await asyncio.gather(*calls[:3]) == [0, 1, 2]
    assert running == [0, 1, 2]
    while any(thread.name == "zkrq test" for thread in threading.enumerate()):
        await asyncio.sleep(0.01)


async def test_credentials_that_hang_are_given_up() -> None:
    may_end = threading.Event()

    def hang() -> tuple[str, str]:
        may_end.wait(HANG)
        return "user", "password"

    try:
        with pytest.raises(Unavailable, match="redis_auth was not read within 1 s"):
            await Source("redis_auth", hang).logins()
    finally:
        may_end.set()


async def test_the_addresses_of_a_name_are_tried_in_turn() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    here = network.Address(socket.AF_INET, ("127.0.0.1", port))
    closed = network.Address(socket.AF_INET, ("127.0.0.2", port))
    async with server:
        reader, writer = await network.connect("redis.test", [closed, here])
        made: socket.socket = writer.get_extra_info("socket")
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert await reader.read() == b""
        writer.close()
    with pytest.raises(OSError, match=r"no address accepts: .*127.0.0.2.*127.0.0.1"):
        await network.connect("redis.test", [closed, here])
