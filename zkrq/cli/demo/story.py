"""Run the demo's schedule: producers push, consumers work, and meanwhile processes are killed one after the other.

    0 %     producers push, consumers in their own processes work
    15 %    kill -9 a consumer that holds claims
    45 %    kill -9 the Redis server that decides for the queue
    70 %    kill -9 the ZooKeeper leader
    100 %   producers stop; the remaining items are worked off and counted

Without ZooKeeper on this machine, everything but the Redis servers runs in this process, and only the second kill is
shown.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from zkrq import local
from zkrq.base.errors import NotEnoughReplicas, OutcomeUnknown, Unavailable
from zkrq.base.ids import new_id
from zkrq.base.settings import Settings
from zkrq.cli.command import count
from zkrq.cli.demo.consumer import (
    CLAIM_TIMEOUT,
    HANDLERS,
    QUEUE,
    RETRY_PAUSE,
    SESSION_TIMEOUT,
    ConsumerProcess,
    crew,
    work,
)
from zkrq.cli.demo.tally import Report, Result, Tally
from zkrq.cli.demo.words import Display, sentence
from zkrq.client.cluster import Cluster
from zkrq.client.connecting import connect
from zkrq.coordination.memory import Hub, MemoryCoordinator

if TYPE_CHECKING:
    from zkrq.base.events import Event
    from zkrq.client.queue import Queue

SERVERS = 3
CONSUMERS = 3
PRODUCERS = 8
SECONDS = 18.0
RATE = 500.0

PUSH_PATIENCE = 60.0
"""Seconds after which a push that has not returned is abandoned, and counted as a trouble."""

HOLDING = 5
"""Items that a consumer should be working on when it is killed ..."""

HOLDING_TIMEOUT = 5.0
"""... if it has that many within this number of seconds."""

DRAIN_PATIENCE = 20.0
"""Seconds without an ack after which the remaining items count as lost."""

POLL = 0.002
SHOW_INTERVAL = 0.1
DRAIN_POLL = 0.05


async def run(display: Display, *, seconds: float = SECONDS, rate: float = RATE) -> Result:
    """Run the demo; return its result.  Raises ``ConfigError`` if no Redis server can be started.

    ``seconds``: how long producers push; ``rate``: items per second that they push at most.
    """
    story = _Story(display, seconds, rate)
    if "zookeeper" in local.available():
        display.say(f"starting {SERVERS} Redis servers, {SERVERS} ZooKeeper servers, {CONSUMERS} consumer processes")
        async with local.servers(SERVERS, SERVERS) as servers:
            return await story.tell_in_full(servers)
    display.say("ZooKeeper is not installed: everything runs in one process, so only a Redis server can be killed")
    async with local.servers(SERVERS, 0) as servers:
        return await story.tell_in_one_process(servers)


Scene = tuple[float, Callable[[], Awaitable[None]]]
"""A part of the run time, and what happens then."""


class _Story:
    def __init__(self, display: Display, seconds: float, rate: float) -> None:
        self._display = display
        self._seconds = seconds
        self._rate = rate
        self._tally = Tally()
        self._tellers: dict[str, str] = {}
        self._owners: dict[str, str] = {}

    # -- with ZooKeeper, and without -------------------------------------------------------------------------------

    async def tell_in_full(self, servers: local.Servers) -> Result:
        urls, hosts = servers.redis_urls, servers.zookeeper_hosts
        async with (
            connect(
                urls,
                hosts,
                found=True,
                description="the producer",
                session_timeout=SESSION_TIMEOUT,
                on_event=self._hear_event,
            ) as cluster,
            crew(CONSUMERS, urls, hosts, self._tally, self._hear) as processes,
        ):
            scenes = [
                (0.15, partial(self._kill_consumer, cluster, processes)),
                (0.45, partial(self._kill_primary, cluster, servers)),
                (0.70, partial(self._kill_leader, servers)),
            ]
            await self._play(cluster, servers, scenes)
            await asyncio.gather(*(process.leave() for process in processes if process.alive))
            return self._tally.result()

    async def tell_in_one_process(self, servers: local.Servers) -> Result:
        async with self._open_alone(servers) as cluster, anyio.create_task_group() as handlers:
            for _ in range(HANDLERS):
                handlers.start_soon(work, cluster.queue(QUEUE, claim_timeout=CLAIM_TIMEOUT), self._note)
            await self._play(cluster, servers, [(0.45, partial(self._kill_primary, cluster, servers))])
            handlers.cancel_scope.cancel()
        return self._tally.result()

    @asynccontextmanager
    async def _open_alone(self, servers: local.Servers) -> AsyncGenerator[Cluster, None]:
        """Open a cluster as ``zkrq.embedded()`` does, on servers that the demo can kill."""
        settings = Settings(found=True, description="the demo", on_event=self._hear_event)
        async with Cluster(servers.redis_urls, MemoryCoordinator(Hub()), settings) as cluster:
            yield cluster

    async def _play(self, cluster: Cluster, servers: local.Servers, scenes: Sequence[Scene]) -> None:
        queue = cluster.queue(QUEUE, claim_timeout=CLAIM_TIMEOUT)
        async with anyio.create_task_group() as background:
            background.start_soon(self._keep_showing, cluster, servers)
            async with anyio.create_task_group() as producers:
                began, closing = time.monotonic(), asyncio.Event()
                self._display.say(f"producers push for {self._seconds:g} s")
                for _ in range(PRODUCERS):
                    producers.start_soon(self._produce, queue, closing)
                for part, scene in scenes:
                    await _sleep_until(began + part * self._seconds)
                    await scene()
                await _sleep_until(began + self._seconds)
                closing.set()
            self._tally.stop_measuring()
            self._display.say("producers have stopped: working off the remaining items")
            await self._drain(queue)
            background.cancel_scope.cancel()

    # -- the work --------------------------------------------------------------------------------------------------

    async def _produce(self, queue: Queue[Any], closing: asyncio.Event) -> None:
        due = time.monotonic()
        while not closing.is_set():
            due += random.expovariate(self._rate / PRODUCERS)
            await _sleep_until(due)
            id = new_id()
            if await self._push(queue, id):
                self._tally.note_push(id, time.monotonic())

    async def _push(self, queue: Queue[Any], id: str) -> bool:
        """Retry until the push returns; under the same id the item exists once, however often it is pushed."""
        give_up = time.monotonic() + PUSH_PATIENCE
        while True:
            try:
                await queue.push({"order": self._tally.pushed}, id=id)
            except (OutcomeUnknown, NotEnoughReplicas, Unavailable) as error:
                self._tally.retried += 1
                if time.monotonic() > give_up:
                    self._tally.troubles.append(f"a push did not return within {PUSH_PATIENCE:g} s: {error}")
                    return False
                await asyncio.sleep(RETRY_PAUSE)
            else:
                return True

    def _note(self, report: Report, id: str) -> None:
        self._tally.note("the demo", report, id, time.monotonic())

    async def _drain(self, queue: Queue[Any]) -> None:
        """Wait until every item is done and the queue says that it is empty."""
        done, since = -1, time.monotonic()
        while self._tally.unfinished() or any(await queue.size()):
            if self._tally.done > done:
                done, since = self._tally.done, time.monotonic()
            elif time.monotonic() - since > DRAIN_PATIENCE:
                self._tally.troubles.append(f"nothing more was done for {DRAIN_PATIENCE:g} s: {await queue.size()}")
                return
            await asyncio.sleep(DRAIN_POLL)

    # -- the kills -------------------------------------------------------------------------------------------------

    async def _kill_consumer(self, cluster: Cluster, processes: Sequence[ConsumerProcess]) -> None:
        """Kill the consumer that works on the most items."""
        self._owners = {owner: one.description for owner, one in (await cluster.consumers()).items()}
        busiest = processes[0]
        with anyio.move_on_after(HOLDING_TIMEOUT):
            while self._tally.in_hand(busiest.name) < HOLDING:
                await asyncio.sleep(POLL)
                busiest = max(processes, key=lambda process: self._tally.in_hand(process.name))
        held = await busiest.kill()
        self._display.say(f"kill -9 {busiest.name}, in the middle of {count(held, 'item')}", deed=True)

    async def _kill_primary(self, cluster: Cluster, servers: local.Servers) -> None:
        primary = cluster.view.primary(QUEUE)
        self._display.say(f"kill -9 {primary}, which decides for the queue", deed=True)
        await next(server for server in servers.redis if server.name == primary).kill()

    async def _kill_leader(self, servers: local.Servers) -> None:
        leader = await servers.zookeeper_leader()
        self._display.say(f"kill -9 {leader.name}, the leader", deed=True)
        await leader.kill()

    # -- showing ---------------------------------------------------------------------------------------------------

    def _hear_event(self, event: Event) -> None:
        if text := sentence(event, "the producer"):
            self._hear("the producer", text)

    def _hear(self, who: str, text: str) -> None:
        """Say what a process reports, unless another one has reported the same."""
        if self._tellers.setdefault(text, who) == who:
            for owner, name in self._owners.items():
                text = text.replace(owner, name)
            self._display.say(text)

    async def _keep_showing(self, cluster: Cluster, servers: local.Servers) -> None:
        while True:
            view, tally = cluster.view, self._tally
            self._display.show(
                {
                    "pushed": f"{tally.pushed:,}",
                    "delivered": f"{tally.delivered:,}",
                    "done": f"{tally.done:,}",
                    "redelivered": f"{tally.redelivered:,}",
                    "in sync": f"{len(view.members)} of {len(servers.redis)}",
                    "epoch": f"{view.epoch}",
                }
            )
            await asyncio.sleep(SHOW_INTERVAL)


async def _sleep_until(at: float) -> None:
    await asyncio.sleep(max(0.0, at - time.monotonic()))
