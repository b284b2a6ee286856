"""One seed, from its first callback to its verdict."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import sys
import warnings
from collections import Counter
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.simulation import faults as all_faults
from tests.simulation.agreement import disorder, twins
from tests.simulation.audit import audit
from tests.simulation.code import PRESENT, Code
from tests.simulation.faults.covered import Fault
from tests.simulation.flow_watch import FlowWatch
from tests.simulation.flowing import FlowMaker, flows_in
from tests.simulation.keeping import Keeper, Kept, keeps
from tests.simulation.listening import listening
from tests.simulation.loop import Loop, Stuck
from tests.simulation.patches import determined
from tests.simulation.rolling import Ending, raise_level
from tests.simulation.servers import ProcessState
from tests.simulation.trace import Trace
from tests.simulation.workload import Workload
from tests.simulation.world import CALL_LIMIT, Client, World
from zkrq.client.moments import ID_CATCH_UP
from zkrq.protocol.clocks import PUT_WINDOW

MAPS_SHARE = 0.15
"""How often nothing but the shard map changes, where there are two shards."""

ALONE_SHARE = 0.15
"""Share of seeds with a fault of ``ALONE``."""

LEAP_SHARE = 0.08
"""Share of seeds in which a clock is wrong."""

AWAY_SHARE = 0.2
"""Share of seeds, of those in which pushes recur, in which everything is away for minutes."""

SETTLE_SECONDS = 120.0
"""Within so long after everything was back, moments that passed meanwhile are pushed, or told as lost."""

HALF = 0.5

FAULTS_LAST = 1.2
"""Faults begin within this many times as long as clients produce."""

HEAL_SECONDS = 20.0
"""What the cluster is given to come to itself once nothing goes wrong any more."""

LOOK_SECONDS = 1.7
"""Between two looks at what servers hold."""

MAX_TIME = 8_000.0
MAX_STEPS = 3_000_000


@dataclass(slots=True)
class Report:
    """What came of one seed."""

    seed: int
    violations: list[str]
    digest: int
    virtual_seconds: float
    steps: int
    faults: dict[str, int]
    counts: dict[str, int]
    trace: list[str] = field(default_factory=list[str])

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class _Errors(logging.Handler):
    """Notes what zkrq logs as a mistake of its own, and in a traced run everything."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and not (self._world.rolling and self._world.rolling.explains(record.exc_info[1])):
            text = f"{record.getMessage()}: {record.exc_info[1]!r}"
            # A moment that is four minutes late is too old for a server whose clock is a minute ahead, and any is for
            # the only one in sync if its clock is wrong: it is lost.
            is_askew = 2 * self._world.shape.clocks > PUT_WINDOW - ID_CATCH_UP or self._world.found.leapt
            if is_askew and "id is older than" in text:
                return
            self._world.found.violation(f"logged as a mistake: {text}")
        elif self._world.trace.lines is not None:
            self._world.trace.lines.append(f"{self._world.loop.now:10.6f}    log: {record.getMessage()}")


def run_seed(
    seed: int,
    enabled: Collection[str],
    *,
    sharded: bool = False,
    before: Code | None = None,
    keep_trace: bool = False,
) -> Report:
    """Run one seed with these faults.

    ``sharded``: with a second shard; ``before``: the release before, whose clients take part.
    """
    loop = Loop(max_time=MAX_TIME, max_steps=MAX_STEPS)
    trace = Trace(loop, keep=keep_trace)
    log = logging.getLogger("zkrq")
    level, propagate = log.level, log.propagate
    gc.disable()
    with determined(loop, seed):
        world = World(seed, loop, trace, sharded=sharded, before=before)
        handler = _Errors(world)
        log.addHandler(handler)
        log.setLevel(logging.DEBUG if keep_trace else logging.ERROR)
        log.propagate = False
        try:
            with listening(loop, world.found, {lane.name: lane.ledger for lane in world.lanes}):
                loop.run(_Scenario(world, enabled).run())
        except Stuck as stuck:
            world.found.violation(f"stuck: {stuck}, running: {_running(world)}")
        except Exception as error:
            error.add_note(f"in seed {seed}")
            raise
        finally:
            log.removeHandler(handler)
            log.setLevel(level)
            log.propagate = propagate
    for complaint in loop.complaints:
        world.found.violation(f"asyncio complained: {complaint}")
    counts = world.found.counts + Counter({"server calls": sum(s.executed for s in world.servers.values())})
    report = Report(
        seed, world.found.violations, trace.digest, loop.now, loop.steps, dict(trace.counts), dict(counts),
        trace.lines or [],
    )  # fmt: skip
    del world, handler, loop, trace
    forget()
    return report


def forget() -> None:
    """Finalise what was left in the middle, all of it, so that nothing reaches into the next run; nobody is told."""
    hook, sys.unraisablehook = sys.unraisablehook, _ignore
    logging.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(10):
                if not gc.collect():
                    break
    finally:
        sys.unraisablehook = hook
        logging.disable(logging.NOTSET)


def _ignore(_: object) -> None:
    pass


def _running(world: World) -> str:
    return ", ".join(
        f"{client.name} {kind} since {since:.1f} s"
        for client in world.clients
        if client.is_alive
        for kind, since in client.operations.values()
    )


class _Scenario:
    def __init__(self, world: World, enabled: Collection[str]) -> None:
        self._world = world
        self._chance = world.chance_for("scenario")
        of_shards = [fault for name, fault in all_faults.SHARDS.items() if name in enabled and world.plan]
        self._faults: list[Fault] = self._swarm([fault for name, fault in all_faults.FAULTS.items() if name in enabled])
        self._draw_alone([fault for name, fault in all_faults.ALONE.items() if name in enabled])
        if "leap" in enabled:
            self._draw_leap()
        if "away" in enabled:
            self._draw_away()
        self._faults += of_shards if not self._faults else [fault for fault in of_shards for _ in range(2)]
        self._draw_maps(enabled)
        world.only_shards_go = bool(of_shards) and set(self._faults) <= {all_faults.shard_away}
        self._workloads: list[tuple[Client, Workload | Keeper | FlowMaker]] = []
        self._kept = Kept(world.found) if keeps(world) else None
        self._flows = flows_in(world)
        self._watch = FlowWatch(world, self._flows) if self._flows else None
        self._most_items = self._chance.choice((6, 10, 20))
        # Where nobody takes items for a while, they have to outlast what happens.
        self._rest = self._chance.choice((0.0, 0.0, self._chance.uniform(0.2, 1.3) * world.shape.seconds))

    def _draw_maps(self, enabled: Collection[str]) -> None:
        """Have nothing happen but changes of the shard map.  Drawn by a chance of its own."""
        maps = [fault for name, fault in all_faults.MAPS.items() if name in enabled and self._world.plan]
        if maps and (not self._faults or self._world.chance_for("maps").random() < MAPS_SHARE):
            self._faults = maps
            self._world.only_maps_change = True

    def _draw_alone(self, faults: list[Fault]) -> None:
        """Have one of these faults happen alone, or together with the others.  Drawn by a chance of its own."""
        world, chance = self._world, self._world.chance_for("alone")
        world.calls_fail_for_none_of = (all_faults.hang,)
        if world.rolling:  # of the release before it is not known so exactly
            return
        if not faults or (self._faults and chance.random() > ALONE_SHARE):
            return
        fault = chance.choice(faults)
        if not self._faults or chance.random() < HALF:
            self._faults = [fault]
            world.only = None if world.plan else fault
        else:
            self._faults.append(fault)

    def _draw_leap(self) -> None:
        """Have a clock be wrong, alone or together with the others; by a chance of its own, as above."""
        world, chance = self._world, self._world.chance_for("leap")
        if world.rolling or (self._faults and chance.random() > LEAP_SHARE):
            return
        if not self._faults or chance.random() < HALF:
            self._faults = [all_faults.leap]
            world.only = None if world.plan else all_faults.leap
            if world.shape.servers > world.shape.min_replicas:
                world.calls_fail_for_none_of = (all_faults.leap,)
        else:
            self._faults = [*self._faults, all_faults.leap]
            world.only = None

    def _draw_away(self) -> None:
        """Have everything be away at the same time, and nothing else go wrong, where pushes recur."""
        world, chance = self._world, self._world.chance_for("away")
        recurs = any(lane.setting.every for lane in world.lanes)
        if world.rolling or not recurs or (self._faults and chance.random() > AWAY_SHARE):
            return
        self._faults, world.only = [all_faults.away], None

    def _swarm(self, faults: list[Fault]) -> list[Fault]:
        """Some of the faults: a run that has few kinds has more of each, and of what they do together (swarm testing:
        Groce et al., 2012)."""
        if not faults:
            return []
        if self._chance.random() < 0.05 and (own := [fault for fault in faults if fault in all_faults.OWN.values()]):
            return own
        count = self._chance.choice((2, 3, 4, 6, 9, len(faults)))
        return self._chance.sample(faults, min(count, len(faults)))

    async def run(self) -> None:
        world, chance = self._world, self._chance
        rolls = await self._begin_rolling() if world.rolling else []
        for at in range(chance.randint(2, 3)):
            await self._new_worker(f"c{at}")
        moments = self._moments(chance.choice((3, 4, 5, 6, 8, 12, 16))) if self._faults else []
        faults = [asyncio.create_task(self._fault(number, at)) for number, at in enumerate(moments)]
        looking = asyncio.create_task(self._look())
        watching = asyncio.create_task(self._watch.run()) if self._watch else None
        await asyncio.sleep(world.shape.seconds)
        faults += rolls
        if faults:
            await asyncio.wait(faults)
            for fault in faults:
                fault.result()
        if faults and set(self._faults) <= set(all_faults.OWN.values()) and not world.denies_all:
            self._check_nobody_evicted("one client's trouble")
        if world.only is all_faults.drag:
            self._check_nobody_evicted("the turns of a client's event loop")
        if world.only is all_faults.closed and not world.denies_all:
            self._check_nobody_evicted("a server without room that serves others")
        for name in world.closed_members:
            world.found.violation(f"{name} let nobody in, and stayed in sync: it halted all pushes")
        self._heal()
        world.trace.note("-- everything is mended")
        await asyncio.sleep(HEAL_SECONDS)
        if world.away_until is not None:
            await asyncio.sleep(SETTLE_SECONDS)
        await self._end_workers()
        looking.cancel()
        world.trace.note("-- draining")
        gc.collect()
        auditor = world.new_client("auditor", world.rolling.auditor if world.rolling else PRESENT)
        auditor.takes_part = False
        done = auditor.start(audit(auditor, self._flows, self._watch), "main")
        await asyncio.wait([done])
        if watching:
            watching.cancel()
            await asyncio.wait([watching])
            if not watching.cancelled():
                watching.result()
        for server in world.servers.values():
            for text in server.mistakes:
                world.found.violation(f"a script failed: {text}")
        done.result()

    def _check_nobody_evicted(self, cause: str) -> None:
        for shard, view in self._world.views:
            if shard.evictions:
                self._world.found.violation(f"evicted for {cause}: {view}")

    async def _look(self) -> None:
        """Look at each server between two calls: what a script leaves behind is in order at any time."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for text in (*disorder(self._world), *twins(self._world)):
                self._world.found.violation(text)

    def _moments(self, count: int) -> list[float]:
        """When faults begin: often one right after another."""
        chance, moments = self._chance, list[float]()
        for _ in range(count):
            if moments and chance.random() < 0.35:
                moments.append(moments[-1] + chance.random() * 0.6)
            else:
                moments.append(chance.random() * FAULTS_LAST * self._world.shape.seconds)
        return moments

    async def _begin_rolling(self) -> list[asyncio.Task[None]]:
        """Have the release before found the namespace, and clients be replaced while others work."""
        world, plan = self._world, self._world.rolling
        assert plan
        world.found.calm = False
        await self._new_worker("founder", plan.before)
        while world.view is None:
            await asyncio.sleep(0.05)
        rolls = [asyncio.create_task(self._roll(number, at)) for number, at in enumerate(plan.rolls)]
        return [*rolls, asyncio.create_task(self._end_rolling())]

    async def _roll(self, number: int, at: float) -> None:
        """Replace one client by another, of either release, somewhere on the way."""
        world = self._world
        await asyncio.sleep(at * world.shape.seconds)
        running = [client for client, _ in self._workloads if client.is_alive and not client.stopping]
        if running:
            await self._replace(self._chance_of(number).choice(running), f"r{number}")

    async def _replace(self, client: Client, name: str, code: Code | None = None) -> None:
        world = self._world
        world.trace.count("roll", f"{client.name} to {name}")
        client.stopping = True
        await self._new_worker(name, code)
        for one, workload in list(self._workloads):
            if one is client:
                client.start(workload.end(), "end")

    def _chance_of(self, number: int) -> random.Random:
        return self._world.chance_for(f"roll {number}")

    async def _end_rolling(self) -> None:
        """Raise the level, if that is what comes of it: when the clients of the release before are gone, or over
        them."""
        world, plan = self._world, self._world.rolling
        assert plan
        if plan.ending is Ending.NEVER:
            return
        await asyncio.sleep(plan.raised_at * world.shape.seconds)
        plan.only_present = True
        if plan.ending is Ending.WHEN_GONE:
            old = {client: None for client, _ in self._workloads if client.code is plan.before}
            for number, client in enumerate(old):
                if client.is_alive and not client.stopping:
                    await self._replace(client, f"n{number}", PRESENT)
        await raise_level(world, force=plan.ending is Ending.OVER_THEM)

    async def _new_worker(self, name: str, code: Code | None = None) -> None:
        world = self._world
        code = code or (world.rolling.draw(world.chance_for(f"release of {name}")) if world.rolling else PRESENT)
        client = world.new_client(name, code)
        workloads = [
            Workload(
                client,
                lane,
                world.chance_for(f"{name} {lane.name}"),
                items=max(1, self._chance.randint(3, self._most_items) // len(world.lanes)),
                until=world.loop.now + world.shape.seconds,
                consume_from=self._rest,
            )
            for lane in world.lanes
        ]
        others: list[Keeper | FlowMaker] = []
        if self._kept:
            others.append(Keeper(client, self._kept, world.chance_for(f"{name} keeping")))
        if self._flows:
            until = world.loop.now + world.shape.seconds
            others.append(FlowMaker(client, self._flows, world.chance_for(f"{name} flowing"), until=until))
        self._workloads += [(client, each) for each in (*others, *workloads)]

        async def work() -> None:
            while not client.stopping and not await client.open():
                await asyncio.sleep(0.5)
            if client.stopping:  # all clients were told to end while this one was connecting
                await client.close()
                return
            for each in (*others, *workloads):
                each.begin()

        client.start(work(), "main")

    async def _fault(self, number: int, at: float) -> None:
        world = self._world
        chance = world.chance_for(f"fault {number}")
        await asyncio.sleep(at)
        world.found.calm = False
        alive = sum(client.is_alive for client in world.clients)
        await chance.choice(self._faults)(world, chance)
        if sum(client.is_alive for client in world.clients) < alive:
            await asyncio.sleep(chance.uniform(0.1, 5.0))
            await self._new_worker(f"f{number}")

    def _heal(self) -> None:
        world = self._world
        for client in world.clients:
            client.process.call_off()
            client.process.drag(world.loop, 0.0)
            world.resume(client)
            for server in world.servers:
                path = world.network.path(client.name, server)
                path.slow, path.breaking, path.denies, path.forbids = 0.0, None, "", ""
                world.network.mend(path)
        for server in world.servers.values():
            server.go_on()
            server.closed = ""
            server.redis.full, server.redis.role = False, "master"
            if server.status is ProcessState.DOWN:
                server.start(server.redis.dump())

    async def _end_workers(self) -> None:
        ending: list[asyncio.Task[None]] = []
        if self._watch:
            self._watch.stop()
        for client, workload in self._workloads:
            client.stopping = True
            if client.is_alive:
                ending.append(client.start(workload.end(), "end"))
        if ending and (await asyncio.wait(ending, timeout=3 * CALL_LIMIT))[1]:
            self._world.found.violation(f"did not end: {_running(self._world)}")
        # One whose end was cancelled lives on; it may lead, and the release before does so even when it is refused.
        rolling = self._world.rolling
        for client in self._world.clients if rolling and rolling.raising else ():
            if client.code is not PRESENT and client.is_alive:
                self._world.drop(client)
