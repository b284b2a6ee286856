"""Calls from another event loop, or from a forked process: refused, and the cluster still works on its loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

import zkrq
from tests.harness import HANG, in_process, new_namespace, take
from zkrq import local

pytestmark = pytest.mark.anyio

Call = Callable[[], Awaitable[object]]


async def nothing(item: object) -> None: ...


async def every(cluster: zkrq.Cluster, queue: zkrq.Queue[Any]) -> None:
    cluster.every(60, queue, 1)


async def enter(claim: zkrq.Claim[Any]) -> None:
    async with claim:
        pytest.fail("the work begins")


def calls(cluster: zkrq.Cluster, queue: zkrq.Queue[Any], claim: zkrq.Claim[Any], open_loop: Any) -> Mapping[str, Call]:
    return {
        "push": lambda: queue.push(1),
        "push_many": lambda: queue.push_many([1, 2]),
        "pop": lambda: anext(queue.pop()),
        "an open pop": lambda: anext(open_loop),
        "pop that is left": open_loop.aclose,
        "pop_one": lambda: queue.pop_one(timeout=1),
        "pop_many": lambda: queue.pop_many(2, timeout=0),
        "async with claim": lambda: enter(claim),
        "ack": claim.ack,
        "nack": claim.nack,
        "release": claim.release,
        "bury": lambda: claim.bury("bad"),
        "extend": claim.extend,
        "ack_many": lambda: queue.ack_many([claim]),
        "size": queue.size,
        "get": lambda: queue.get(claim.id),
        "cancel": lambda: queue.cancel(claim.id),
        "clear": queue.clear,
        "pause": queue.pause,
        "work": lambda: queue.work(nothing),
        "worker": lambda: zkrq.Worker().add(queue, nothing).run(),
        "every": lambda: every(cluster, queue),
        "queues": cluster.queues,
        "statistics": cluster.statistics,
        "consumers": cluster.consumers,
        "add_server": lambda: cluster.add_server("redis://127.0.0.1:1"),
        "aclose": cluster.aclose,
    }


async def attempt(table: Mapping[str, Call]) -> dict[str, str]:
    """What each call says."""
    outcomes: dict[str, str] = {}
    for name, call in table.items():
        try:
            async with asyncio.timeout(HANG):
                await call()
            outcomes[name] = "no error"
        except zkrq.WrongLoop as error:
            outcomes[name] = str(error)
        except BaseException as error:
            outcomes[name] = repr(error)
    return outcomes


async def works_on(queue: zkrq.Queue[Any], claim: zkrq.Claim[Any]) -> None:
    await claim.ack()
    await queue.push("at home")
    assert (await take(queue)).item == "at home"


async def test_another_event_loop(servers: local.Servers) -> None:
    async with in_process(servers, new_namespace()) as cluster:
        queue = cluster.queue("jobs")
        await queue.push_many(range(2))
        claim, open_loop = await take(queue), queue.pop(prefetch=0)
        await (await anext(open_loop)).ack()
        table = calls(cluster, queue, claim, open_loop)
        outcomes = await asyncio.to_thread(asyncio.run, attempt(table))
        assert {name: text for name, text in outcomes.items() if "in another event loop" not in text} == {}
        assert (await queue.size())[:3] == (0, 0, 1)
        await open_loop.aclose()
        await works_on(queue, claim)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
async def test_a_forked_process(servers: local.Servers) -> None:
    async with in_process(servers, new_namespace()) as cluster:
        queue = cluster.queue("jobs")
        await queue.push_many(range(2))
        claim, open_loop = await take(queue), queue.pop(prefetch=0)
        await (await anext(open_loop)).ack()
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:  # nothing of pytest may run here
            try:
                outcomes = asyncio.run(attempt(calls(cluster, queue, claim, open_loop)))
                wrong = {name: text for name, text in outcomes.items() if f"process {os.getppid()}" not in text}
                os.write(writing, (repr(wrong) if wrong else "all refused").encode())
            except BaseException as error:
                os.write(writing, repr(error).encode())
            finally:
                os._exit(0)
        os.close(writing)
        with open(reading, "rb") as pipe:
            assert await asyncio.to_thread(pipe.read) == b"all refused"
        await asyncio.to_thread(os.waitpid, child, 0)
        await open_loop.aclose()
        await works_on(queue, claim)
