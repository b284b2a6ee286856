"""The stage of schedules made by hand: three servers, clients that act one after another, and the verbs of scenarios.

``@scenario()`` makes a test of a function that is given a ``Stage``.  A client enters as an ``Actor`` and calls its
queue from a process of its own; the stage cuts, kills and restarts, and says what is to be seen then.  Every client
that is left closes in the end, and nothing may have been violated by then.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec, TypeVar
from unittest.mock import Mock, patch

from tests.simulation import setting
from tests.simulation.agreement import disagreements
from tests.simulation.ensemble import SimCoordinator
from tests.simulation.faults.access import WRONG_PASSWORD
from tests.simulation.loop import Loop
from tests.simulation.patches import determined
from tests.simulation.scenario import forget
from tests.simulation.setting import Setting, Shape
from tests.simulation.trace import Trace
from tests.simulation.wire import Break, Path
from tests.simulation.world import Client, World
from zkrq import Cancellation, Claim, Cluster, Queue, Receipt
from zkrq.protocol.view import View

T = TypeVar("T")
P = ParamSpec("P")

SETTING = Setting(keys=(), keyed=0, expiring=0, max_size=None, dead_letters=None, clears=False, pauses=False)

SEED = 1

HANGS = 0.5
"""Seconds after which a call is in the middle whose way to a server is cut."""

REMEMBERED = 1_300.0
"""Seconds after which no tombstone is kept any more that may be dropped by its age."""


class Actor:
    """A client, its queue, and what it does in a process of its own."""

    def __init__(self, client: Client) -> None:
        queue = client.queue()
        assert queue
        self.client = client
        self.name = client.name
        self.queue: Queue[Any] = queue

    @property
    def cluster(self) -> Cluster:
        assert self.client.cluster
        return self.client.cluster

    @property
    def coordinator(self) -> SimCoordinator:
        assert self.client.coordinator
        return self.client.coordinator

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a call that the scenario does not wait for."""
        return self.client.start(work, "call")

    async def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of a call."""
        task = self.begin(work)
        await asyncio.wait([task])
        return task.result()

    async def push(self, item: object, **options: Any) -> Receipt:
        return await self.do(self.queue.push(item, **options))

    async def cancel(self, id: str) -> Cancellation:
        return await self.do(self.queue.cancel(id))

    async def claim(self, timeout: float = 5) -> Claim[Any]:
        """Claim the next item; there has to be one."""
        claim = await self.do(self.queue.pop_one(timeout=timeout))
        assert claim
        return claim

    async def claim_many(self, count: int, timeout: float = 5) -> list[Claim[Any]]:
        return list(await self.do(self.queue.pop_many(count, timeout=timeout)))

    async def ack(self, item: object) -> None:
        """Claim and ack the next item, which has to be this one."""
        claim = await self.claim(timeout=20)
        assert claim.item == item
        await self.do(claim.ack())

    async def ack_all(self, claims: Sequence[Claim[Any]]) -> None:
        """Ack these items, of which none may be lost."""
        assert await self.do(self.queue.ack_many(claims)) == []

    async def bury(self, *items: object) -> list[str]:
        """Push items and make dead letters of them; return their ids."""
        pushed = [await self.push(item) for item in items]
        for claim in await self.claim_many(len(items)):
            await self.do(claim.bury("test"))
        return [receipt.id for receipt in pushed]

    async def expect_none(self, count: int = 5, timeout: float = 0) -> None:
        """There is no item to claim."""
        assert await self.claim_many(count, timeout) == []

    async def close(self) -> None:
        await self.do(self.client.close())


class Stage:
    """The servers, the network and the ensemble of a scenario."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.actors: list[Actor] = []

    # -- who is there -------------------------------------------------------------------------------------------------

    async def enter(self, name: str) -> Actor:
        """Open a client that has a connection to every server.  The first client leads, and repairs immediately."""
        actor = await self.enter_quietly(name)
        hello = await actor.push("hello")  # so that it is connected to every server
        assert await actor.cancel(hello.id) is Cancellation.REMOVED
        return actor

    async def enter_quietly(self, name: str) -> Actor:
        """Open a client that calls nothing."""
        client = self.world.new_client(name)
        assert await client.start(client.open(), "open")
        self.actors.append(Actor(client))
        return self.actors[-1]

    async def exeunt(self) -> None:
        """Close every client that is left."""
        for actor in self.actors:
            if actor.client.is_alive:
                await actor.close()

    @property
    def view(self) -> View:
        assert self.world.view
        return self.world.view

    @property
    def primary(self) -> str:
        return self.view.primary(self.world.queue)

    @property
    def followers(self) -> list[str]:
        """The members beside the primary."""
        return [id for id in self.view.members if id != self.primary]

    @property
    def heir(self) -> str:
        """The member that is the primary once the present one is gone."""
        view = self.view
        members = {id: life for id, life in view.members.items() if id != self.primary}
        return replace(view, members=members).primary(self.world.queue)

    def is_member(self, server: str) -> bool:
        """Whether a server is in sync, in the life that the view names."""
        return server in self.world.living_members()

    # -- what goes wrong ----------------------------------------------------------------------------------------------

    def path(self, actor: Actor, server: str) -> Path:
        return self.world.network.path(actor.name, server)

    def cut(self, actor: Actor, *servers: str) -> None:
        """Hold back all messages between a client and these servers."""
        for server in servers:
            self.path(actor, server).cut = True

    def mend(self, actor: Actor, *servers: str) -> None:
        """Let messages through again; those that were held back arrive now."""
        for server in servers:
            self.world.network.mend(self.path(actor, server))

    def shut_out(self, actor: Actor, server: str) -> None:
        """Have a server no longer let a client in, and end its connections."""
        path = self.path(actor, server)
        path.denies = WRONG_PASSWORD
        for wire in tuple(path.wires):
            wire.shut("the password was changed")

    def lose_reply(self, actor: Actor) -> None:
        """Have the primary execute the client's next call, and its reply get lost."""
        self.path(actor, self.primary).breaking = Break.REPLY_LOST

    def kill(self, *servers: str) -> None:
        for server in servers:
            self.world.servers[server].kill()

    def start(self, server: str) -> None:
        """Start a killed server with its data."""
        self.world.servers[server].start(self.world.servers[server].redis.dump())

    def start_empty(self, server: str) -> None:
        """Start a killed server without its data."""
        self.world.servers[server].start(None)

    def flush(self, server: str) -> None:
        """Have a running server lose its data."""
        self.world.servers[server].redis.flush()

    def set_clock(self, server: str, seconds: float) -> None:
        self.world.servers[server].clock += seconds

    def drop(self, actor: Actor) -> None:
        """kill -9."""
        self.world.drop(actor.client)

    async def doubt_session(self, actor: Actor) -> None:
        """Let a client hear nothing of the ensemble until its session may be over."""
        self.world.hub.silence(actor.coordinator, deaf=True)
        await asyncio.sleep(actor.coordinator.valid_until - self.world.loop.now + 0.01)

    def trust_session(self, actor: Actor) -> None:
        """Let it hear the ensemble again."""
        self.world.hub.break_silence(actor.coordinator, 0.0)

    # -- what is to be seen -------------------------------------------------------------------------------------------

    async def until(self, met: Callable[[], bool], seconds: float = 60.0) -> None:
        """Wait until a condition is met, which has to be within so many seconds."""
        async with asyncio.timeout(seconds):
            while not met():
                await asyncio.sleep(0.1)

    async def expect_evicted(self, server: str) -> None:
        """A server leaves the view, or the life that the view names."""
        await self.until(lambda: not self.is_member(server))

    async def expect_back(self, server: str) -> None:
        """A server is in sync again."""
        await self.until(lambda: self.is_member(server))

    async def expect_eligible(self, server: str) -> None:
        """A server that is away is vouched for, because pushes have halted."""
        await self.until(lambda: server in self.view.eligible)

    def expect_agreement(self) -> None:
        """All members hold the same records."""
        assert list(disagreements(self.world, scrubbed=True)) == []


def scenario(
    *, min_replicas: int = 2, **changes: Any
) -> Callable[[Callable[Concatenate[Stage, P], Coroutine[Any, Any, None]]], Callable[P, None]]:
    """Make a test of a scenario.  ``changes``: what its queue has that others have not, as fields of ``Setting``."""

    def decorate(play: Callable[Concatenate[Stage, P], Coroutine[Any, Any, None]]) -> Callable[P, None]:
        def test(*args: P.args, **kwargs: P.kwargs) -> None:
            _play(lambda stage: play(stage, *args, **kwargs), min_replicas, replace(SETTING, **changes))

        signature = inspect.signature(play)
        given = [parameter for name, parameter in signature.parameters.items() if name != "stage"]
        test.__name__, test.__qualname__, test.__doc__ = play.__name__, play.__qualname__, play.__doc__
        test.__module__ = play.__module__
        test.__dict__["__signature__"] = signature.replace(parameters=given, return_annotation=None)
        return test

    return decorate


def _play(play: Callable[[Stage], Coroutine[Any, Any, None]], min_replicas: int, setting_: Setting) -> None:
    loop = Loop(max_time=4_000, max_steps=1_000_000)
    shape = Shape(servers=3, min_replicas=min_replicas, queues=1, seconds=30)
    with (
        determined(loop, SEED),
        patch.object(setting, "draw", Mock(return_value=setting_)),
        patch.object(setting, "draw_shape", Mock(return_value=shape)),
    ):
        world = World(SEED, loop, Trace(loop))
        loop.run(_whole(play, Stage(world)))
    violations = world.found.violations
    del world, loop
    forget()
    assert not violations


async def _whole(play: Callable[[Stage], Coroutine[Any, Any, None]], stage: Stage) -> None:
    await play(stage)
    await stage.exeunt()
