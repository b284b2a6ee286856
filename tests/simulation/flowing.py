"""Have clients make flows, work on their members, and check in the end that each came to its end (``flow_book.py``)."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from tests.simulation.flow_book import OPENED, FlowBook, Known, Part
from tests.simulation.flow_watch import HOME, QUEUES
from tests.simulation.items import Outcome
from tests.simulation.world import CALL_LIMIT, CLAIM_TIMEOUT, Client, Ended, World
from zkrq import Claim, Flow, FlowEnded, FlowState, FlowStatus, Queue, Receipt, Result, Results, Retry, constant
from zkrq.base.errors import Closed, ZkrqError

T = TypeVar("T")

KEEP = 30 * 86400.0
"""Seconds that no run lasts."""

LOOK_LIMIT = 3 * CALL_LIMIT
"""Seconds within which a flow is looked at: it asks, decides, and opens what is held."""

FLOWS_MAX = 4
"""Flows that one client makes."""

PASSIVE_SECONDS = 150.0
"""Within so long a flow of which nothing is left ends by itself: the leader looks for such."""

END_SECONDS = 1_500.0
"""Within so long flows have ended, once nothing goes wrong any more: longer than what a scrub finishes takes."""

RESULTS = Results(ttl=20.0)
"""Of members they are kept for as long as the flow is: longer than this."""

NAMED, RETURNING, AWAITING = 0.5, 0.6, 0.4
"""Which part of the members has a name, acks with a result, and waits for others if these have names."""

RESULTS_SECONDS = 30.0
"""Longer than results are kept without a flow."""

NESTING, DEPTH, INNERS = 0.4, 3, 2
"""In which part of the runs flows have inner ones; how many are in one another, and how many one has, at most."""

STEP = "step"

OPERATIONS = (
    "status", "status", "result", "result", "redrive", "redrive", "again", "cancel", "remove", "finish",
    "results", "member", "member", "advance", "discard",
)  # fmt: skip
"""What operators do."""

BEGINS = "begin flow"
"""The call that begins one, in those around it."""

HOLDS = ("then", "on_failure", "always")
"""Calls that hold what comes after."""


class FlowMaker:
    """One client's calls: it makes flows, works on members, and ends some as an operator."""

    def __init__(self, client: Client, book: FlowBook, chance: random.Random, *, until: float) -> None:
        self.client = client
        self._book = book
        self._chance = chance
        self._until = until
        self._tasks: list[asyncio.Task[None]] = []
        # Drawn by a chance of its own, so that other runs stay as they were.
        self._nests = client.world.chance_for("nested flows").random() < NESTING

    def begin(self) -> None:
        """Start; runs in the client's process."""
        works = (
            ("maker", self._make_all()),
            ("worker on flows", self._work(QUEUES[0])),
            ("worker on flows", self._work(QUEUES[1])),
            ("operator", self._operate()),
        )
        self._tasks = [self.client.start(work, name) for name, work in works]

    async def end(self) -> None:
        """Have everything end."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for task in self._tasks:
            if not task.cancelled() and (error := task.exception()):
                self._book.violation(f"{self.client.name}: {task.get_name()} ended with {error!r}")

    def queue(self, name: str = HOME) -> Queue[Any] | None:
        """A queue of the flows, None while the client has no cluster."""
        try:
            retry = Retry(max_attempts=None, backoff=constant(1.0))
            if self.client.cluster is None:
                return None
            return self.client.cluster.queue(name, claim_timeout=CLAIM_TIMEOUT, retry=retry, results=RESULTS)
        except Closed:
            return None

    async def _do(
        self, kind: str, known: Known, call: Callable[[], Coroutine[Any, Any, T]], limit: float
    ) -> Ended[T | FlowEnded]:
        """Make a call of a flow; one that has ended is a value here."""
        begun_at = self.client.world.loop.now

        async def guarded() -> T | FlowEnded:
            try:
                return await call()
            except FlowEnded as error:
                return error

        ended = await self.client.do(kind, guarded(), limit)
        if isinstance(ended.value, FlowEnded):
            self._book.count("flows had ended")
            if ended.value.outcome and not (known.outer and kind == BEGINS):  # it may be that of the flow around it
                self._book.note_state(known, ended.value.outcome, begun_at)
        elif isinstance(ended.value, FlowStatus):
            self._book.note_state(known, ended.value.state, begun_at)
        return ended

    # -- making --------------------------------------------------------------------------------------------------------

    async def _make_all(self) -> None:
        world, chance = self.client.world, self._chance
        for number in range(chance.randint(1, FLOWS_MAX)):
            await asyncio.sleep(chance.random() * world.shape.seconds / 2)
            if world.loop.now > self._until:
                return
            known = self._draw_flow(f"{self.client.name}-{number}")
            self._book.flows[known.name] = known
            await self._make(known)

    async def flow(self, known: Known) -> Flow | None:
        """Begin a flow, or go on with it; None: it has ended, or there is no time left."""
        while self.client.world.loop.now < self._until or not self.client.takes_part:
            if queue := self.queue():
                known.begun_at = min(known.begun_at, self.client.world.loop.now)
                limit = CALL_LIMIT + LOOK_LIMIT * (known.depth - 1)
                ended = await self._do(BEGINS, known, partial(self._begin, queue, known), limit)
                if isinstance(ended.value, Flow):
                    return ended.value
                if ended.outcome is Outcome.DONE:
                    if known.outer:  # it may be that one that has ended
                        await self.status(known)
                    return None
            await asyncio.sleep(0.3)
        return None

    async def _begin(self, queue: Queue[Any], known: Known) -> Flow:
        """Begin a flow, in those around it."""
        make = queue.flow if known.outer is None else (await self._begin(queue, known.outer)).flow
        return await make(
            known.name,
            keep=KEEP,
            fail_fast=known.fail_fast,
            ignore_missed=known.ignore_missed,
            deadline=known.deadline,
        ).begin()

    async def _make_inner(self, outer: Known) -> None:
        """Make a flow that is a member of another one."""
        part, _ = self._new_part(outer)
        part.inner = inner = self._draw_flow(f"{outer.name}.{len(outer.parts)}", outer)
        part.name = inner.name
        self._book.flows[inner.name] = inner
        await self._make(inner)

    def _draw_flow(self, name: str, outer: Known | None = None) -> Known:
        chance = self._chance
        known = Known(name, outer, chance.random() < 0.2, chance.random() < 0.2)
        known.deadline = chance.uniform(5.0, 40.0) if chance.random() < 0.15 else None
        return known

    async def _make(self, known: Known) -> None:
        chance = self._chance
        flow = await self.flow(known)
        if flow and known.place:
            known.place.confirmed_at = self.client.world.loop.now
            self._book.count("inner flows")
        works = ["member", "member", "many", "then", "again", chance.choice(HOLDS)] * chance.randint(0, 2)
        works = chance.sample(works, chance.randint(0, len(works)))
        for work in works:
            if flow is None:
                return
            if work == "many":
                await self._push_many(known, flow)
            elif work == "again":
                await self._push_again(known, flow)
            elif not await self.push(known, flow, opens="" if work == "member" else work):
                flow = await self.flow(known)  # of another cluster, maybe
            await asyncio.sleep(chance.random() ** 2)
        if flow and self._nests and known.depth < DEPTH:
            for _ in range(chance.randint(0, INNERS)):
                await self._make_inner(known)
        if flow and chance.random() < 0.9:
            await self.seal(known)

    def _new_part(self, known: Known, opens: str = "") -> tuple[Part, dict[str, str]]:
        label = f"{opens or 'member'} {len(known.parts)}"
        part = known.parts[label] = Part(label, opens)
        part.result = label if self._chance.random() < RETURNING else None
        return part, {"flow": known.name, "label": label}

    def _draw_name(self, known: Known, part: Part) -> None:
        """Give a member a name, and others to wait for, at most."""
        chance = self._chance
        others = [each for each in known.members if each.name and each.confirmed_at < math.inf]
        if chance.random() < NAMED:
            part.name = part.label.replace(" ", "-")
        if others and chance.random() < AWAITING:
            part.after = tuple(chance.sample(others, chance.randint(1, min(3, len(others)))))

    async def push(self, known: Known, flow: Flow, *, opens: str = "") -> bool:
        """Push an item until it is known to be there, or refused; return whether that is known."""
        part, item = self._new_part(known, opens)
        part.queue = self._chance.choice((*QUEUES, HOME))
        if not opens:
            self._draw_name(known, part)
        part.ids.add(f"{known.name}.{part.name}" if part.name else f"own {known.name} {part.label}")
        for _ in range(5):
            ended = await self._push_part(known, flow, part, item)
            if ended is None:
                return False
            if isinstance(ended.value, FlowEnded):
                # It may have been there before, from a try that is not known.
                part.refused_at = self.client.world.loop.now
                return True
            if isinstance(ended.value, Receipt):
                part.confirmed_at = self.client.world.loop.now
                return True
            await asyncio.sleep(0.3)
        return False

    async def _push_part(self, known: Known, flow: Flow, part: Part, item: Any) -> Ended[Receipt | FlowEnded] | None:
        """Push an item once; None: there is no cluster."""
        queue = self.queue(part.queue)
        if queue is None:
            return None
        named: dict[str, Any] = {"name": part.name} if part.name else {"id": min(part.ids)}
        if part.after:
            named["after"] = [each.name for each in part.after]
        held = {"then": flow.then, "on_failure": flow.on_failure, "always": flow.always}
        push = partial(held.get(part.opens, flow.push), item, queue=queue, **named)
        limit = LOOK_LIMIT if part.after else CALL_LIMIT
        return await self._do("push into flow", known, push, limit)

    async def _push_again(self, known: Known, flow: Flow) -> None:
        """Push a member under its name once more, as a maker does that is delivered again."""
        if named := known.named:
            part = self._chance.choice(named)
            ended = await self._push_part(known, flow, part, {"flow": known.name, "label": part.label})
            if ended and isinstance(ended.value, Receipt):
                part.confirmed_at = min(part.confirmed_at, self.client.world.loop.now)
                self._book.count("members pushed again")

    async def _push_many(self, known: Known, flow: Flow) -> None:
        made = [self._new_part(known) for _ in range(self._chance.randint(2, 12))]
        queue = self.queue(self._chance.choice((*QUEUES, HOME)))
        if queue is None:
            return
        work = partial(flow.push_many, [item for _, item in made], queue=queue)
        ended = await self._do("push many into flow", known, work, CALL_LIMIT)
        receipts: Any = ended.value
        if isinstance(ended.value, FlowEnded):
            receipts = ended.value.outcomes
        elif isinstance(ended.error, ZkrqError):
            receipts = ended.error.outcomes
        outcomes: list[Any] = [] if receipts is None else receipts.outcomes()
        for (part, _), outcome in zip(made, outcomes, strict=False):
            if isinstance(outcome, Receipt):
                part.confirmed_at = self.client.world.loop.now
                part.ids.add(outcome.id)
            elif isinstance(outcome, FlowEnded):
                part.refused_at = self.client.world.loop.now

    async def seal(self, known: Known) -> None:
        """Seal a flow until that is known."""
        known.sealing = True
        while self.client.world.loop.now < self._until or not self.client.takes_part:
            if queue := self.queue():
                ended = await self._do("seal flow", known, queue.flow(known.name).seal, CALL_LIMIT)
                if ended.outcome is Outcome.DONE:
                    known.sealed = True
                    return
            await asyncio.sleep(0.3)

    # -- working -------------------------------------------------------------------------------------------------------

    async def _work(self, name: str) -> None:
        while True:
            if queue := self.queue(name):
                timeout = self._chance.choice((0.0, 0.5, 3.0))
                ended = await self.client.do(
                    "pop from flow", self._take(queue, timeout), (timeout or CALL_LIMIT) + 0.01
                )
                given = [(claim, *self._book.given(claim)) for claim in ended.value or ()]
                if self._chance.random() < 0.5:
                    await asyncio.gather(*(self._handle(*each) for each in given))
                else:
                    for each in given:
                        await self._handle(*each)
            await asyncio.sleep(self._chance.random() * 0.3)

    async def _take(self, queue: Queue[Any], timeout: float) -> list[Claim[Any]]:
        if self._chance.random() < 0.5:
            return await queue.pop_many(self._chance.randint(2, 8), timeout=timeout)
        claim = await queue.pop_one(timeout=timeout)
        return [] if claim is None else [claim]

    async def _handle(self, claim: Claim[Any], known: Known, part: Part) -> None:
        chance = self._chance
        if part.is_after and claim.flow is not None:
            await self.read_results(known, claim.flow)
        if chance.random() < 0.4:
            await self._do_step(claim, known, part)
        if not part.is_after and chance.random() < 0.15 and len(known.parts) < 30:
            await self._add(known, claim)
        await asyncio.sleep(chance.random() ** 3)
        match chance.choice(("ack", "ack", "ack", "ack", "ack", "nack", "release", "bury", "leak")):
            case "ack":
                await self.ack(claim, part)
            case "nack":
                await self.client.do("nack", claim.nack(chance.uniform(0.0, 3.0)), CALL_LIMIT)
            case "release":
                await self.client.do("release", claim.release(), CALL_LIMIT)
            case "bury":
                part.removal_begun = True
                await self.client.do("bury", claim.bury("no good"), CALL_LIMIT)
            case _:
                pass  # comes back when its time is over

    async def _add(self, known: Known, claim: Claim[Any]) -> None:
        """A handler of a member pushes another one: as it is told to, until that is known, or it does not ack."""
        if claim.flow is None or claim.flow.name != known.name:
            self._book.violation(f"the claim of a member of {known.name} names {claim.flow}")
        elif await self.push(known, claim.flow):
            self._book.count("members that were added by members")

    async def _do_step(self, claim: Claim[Any], known: Known, part: Part) -> None:
        has_run = False

        async def run() -> str:
            nonlocal has_run
            has_run = True
            return part.label

        async def step() -> str:
            return await claim.step(STEP, run)

        ended = await self.client.do("step", step(), CALL_LIMIT)
        if has_run and part.step_at is not None and part.step_at < claim.token:
            self._book.violation(f"done twice: the step of {part.label} of {known.name}, under {part.step_at} before")
        if ended.outcome is Outcome.DONE:
            self._book.count("steps of members")
            part.step_at = min(part.step_at or claim.token, claim.token)

    async def ack(self, claim: Claim[Any], part: Part) -> bool:
        """Ack until that is known; return whether it is done."""
        part.ack_begun = True
        for _ in range(4):
            ended = await self.client.do("ack", claim.ack(result=part.result), CALL_LIMIT)
            if ended.outcome is Outcome.DONE:
                part.acked_at = min(part.acked_at, self.client.world.loop.now)
                return True
            if ended.outcome not in (Outcome.UNKNOWN, Outcome.REFUSED):
                break
            await asyncio.sleep(0.2)
        return False

    # -- operating -----------------------------------------------------------------------------------------------------

    async def _operate(self) -> None:
        chance = self._chance
        while True:
            await asyncio.sleep(chance.random() * 6)
            queue, flows = self.queue(chance.choice(QUEUES)), list(self._book.flows.values())
            if queue is None or not flows:
                continue
            known = chance.choice(flows)
            match chance.choice(OPERATIONS):
                case "status":
                    await self.status(known)
                case "result":
                    await self.result(known, chance.choice((0.0, 2.0, 8.0)))
                case "redrive":
                    await self.client.do("redrive", queue.redrive(), 3 * CALL_LIMIT)
                case "again":
                    await self.redrive(known)
                case "remove":
                    await self._remove(queue, known)
                case "results":
                    await self.read_results(known, queue.flow(known.name) if queue.name == HOME else None)
                case "member":
                    await self.ask_for(known)
                case "advance":
                    ids = sorted(id for part in known.parts.values() for id in part.ids)
                    await self.client.do("advance", queue.advance(ids), 3 * CALL_LIMIT)
                case "discard":
                    await self.client.do("discard", queue.discard(), 3 * CALL_LIMIT)
                case verb:
                    if chance.random() < 0.3:
                        await self.end_flow(known, verb, stop=chance.random() < 0.3)

    async def status(self, known: Known) -> FlowState | None:
        """Ask how a flow is; return that, None if it was not told."""
        if queue := self.queue():
            ended = await self._do("status of flow", known, queue.flow(known.name).status, LOOK_LIMIT)
            return ended.value.state if isinstance(ended.value, FlowStatus) else None
        return None

    async def read_results(self, known: Known, flow: Flow | None = None) -> None:
        """Read what members have returned.  ``flow``: as a handler has it, None: as any client."""
        begun_at = self.client.world.loop.now
        if flow is None and (queue := self.queue()):
            flow = queue.flow(known.name)
        if flow is None:
            return

        async def read(flow: Flow) -> list[Result[Any]]:
            return [result async for result in flow.results()]

        ended = await self.client.do("results of flow", read(flow), LOOK_LIMIT)
        if ended.value is not None:
            self._book.read(known, ended.value, begun_at)

    async def ask_for(self, known: Known) -> None:
        """Ask what became of a member that has a name."""
        named, queue = known.named, self.queue()
        if named and queue:
            part, begun_at = self._chance.choice(named), self.client.world.loop.now
            ended = await self.client.do("result of member", queue.flow(known.name).result_of(part.name), LOOK_LIMIT)
            if ended.value is not None:
                self._book.told(known, part, ended.value, begun_at)

    async def redrive(self, known: Known) -> None:
        """Queue the dead letters of a flow again."""
        if queue := self.queue():
            await self._do("redrive flow", known, queue.flow(known.name).redrive, 2 * LOOK_LIMIT)

    async def result(self, known: Known, timeout: float) -> FlowState | None:
        """Wait for the end of a flow; return how it is, None if that was not told."""
        queue = self.queue()
        if queue is None:
            return None
        work = partial(queue.flow(known.name).result, timeout)
        ended = await self._do("result of flow", known, work, timeout + LOOK_LIMIT)
        return ended.value.state if isinstance(ended.value, FlowStatus) else None

    async def _remove(self, queue: Queue[Any], known: Known) -> None:
        """Cancel a single member."""
        ids = [(part, id) for part in known.members for id in part.ids]
        if ids and self._chance.random() < 0.5:
            part, id = self._chance.choice(ids)
            part.removal_begun = True
            await self.client.do("cancel", queue.cancel(id), CALL_LIMIT)

    async def end_flow(self, known: Known, verb: str, *, stop: bool = False) -> None:
        """Cancel or finish a flow."""
        queue = self.queue()
        if queue is None:
            return
        flow = queue.flow(known.name)
        if verb == "cancel":
            known.cancel_begun = True
            work, outcome = partial(flow.cancel, stop=stop), FlowState.CANCELLED
        else:
            known.finish_begun = True
            work, outcome = flow.finish, FlowState.DONE
        ended = await self._do(f"{verb} flow", known, work, LOOK_LIMIT)
        if ended.outcome is Outcome.DONE and not isinstance(ended.value, FlowEnded):
            self._book.note_state(known, outcome, math.inf)


async def audit_flows(auditor: Client, book: FlowBook) -> None:
    """Bring each flow to its end, as operators would, and check that what comes after has come."""
    world, chance = auditor.world, auditor.world.chance_for("audit of flows")
    maker = FlowMaker(auditor, book, chance, until=math.inf)
    for known in [*book.flows.values()]:
        if known.sealed or known.outcome:
            continue
        if await maker.flow(known):  # its maker may have died before it was begun
            await (maker.seal(known) if chance.random() < 0.8 else maker.end_flow(known, "cancel"))
        elif known.outer and not known.outcome:  # one around it has ended without it
            await maker.end_flow(known, "cancel")
            if await maker.status(known) is FlowState.UNKNOWN:
                del book.flows[known.name]
    await _end_by_themselves(auditor, maker, book)
    until = world.loop.now + END_SECONDS
    while left := await _end_some(maker, book):
        for known in left:
            await maker.redrive(known)
        await _drain(maker, book)
        for known in await _end_some(maker, book):
            if any(part.removal_begun for part in known.members):  # a member was cancelled: nothing else ends it
                await maker.end_flow(known, chance.choice(("cancel", "finish")))
        if world.loop.now > until:
            book.violation(f"never: {[(known.name, known.sealed) for known in left]} have not ended")
            return
        await asyncio.sleep(5.0)
    await _drain(maker, book)
    await asyncio.sleep(RESULTS_SECONDS)
    for known in book.flows.values():
        await maker.read_results(known)
        await maker.ask_for(known)
        for part in known.afters:
            opens = known.outcome is not None and part.opens in OPENED[known.outcome]
            was_held = part.confirmed_at < known.ended_at and not part.removal_begun
            if opens and was_held and part.given_at == math.inf:
                book.violation(f"never: {part.label} of {known.name}, which is {known.outcome}")
        book.count(f"flows {known.outcome}")
    for name in QUEUES:
        if queue := maker.queue(name):
            await auditor.do("discard", queue.discard(), CALL_LIMIT)  # letters of flows that were cancelled


async def _end_by_themselves(auditor: Client, maker: FlowMaker, book: FlowBook) -> None:
    """Flows of which nothing is left end though nobody asks for that."""
    until = auditor.world.loop.now + PASSIVE_SECONDS
    while auditor.world.loop.now < until:
        await _drain(maker, book)
        await asyncio.sleep(5.0)
    for known in book.flows.values():
        afters = [part for part in known.afters if part.opens in ("then", "always") and not part.removal_begun]
        missing = [part.label for part in afters if part.confirmed_at < math.inf and part.given_at == math.inf]
        is_over = known.sealed and all(
            part.acked_at < math.inf
            and not part.removal_begun  # a dead letter may have ended it, and was redriven then
            for part in known.members
        )
        if is_over and missing and known.outcome is None and not known.cancel_begun and known.deadline is None:
            book.violation(f"nobody has ended {known.name}: {missing} are held")


async def _end_some(maker: FlowMaker, book: FlowBook) -> list[Known]:
    """Look at the flows that have not ended; return those that have not then."""
    for known in book.flows.values():
        known.follow()
        if not known.outcome:
            await maker.result(known, 1.0)
    return [known for known in book.flows.values() if not known.outcome]


async def _drain(maker: FlowMaker, book: FlowBook) -> None:
    """Take what is there, and ack it, all at about the same time."""
    await asyncio.gather(*(_drain_queue(maker, book, name) for name in QUEUES))


async def _drain_queue(maker: FlowMaker, book: FlowBook, name: str) -> None:
    chance = maker.client.world.chance_for(f"draining {name} at {maker.client.world.loop.now}")

    async def handle(claim: Claim[Any]) -> None:
        part = book.given(claim)[1]
        await asyncio.sleep(chance.random() ** 3)
        await maker.ack(claim, part)

    while queue := maker.queue(name):
        ended = await maker.client.do("drain flows", queue.pop_many(100, timeout=2.0), 2.1)
        await asyncio.gather(*map(handle, ended.value or ()))
        if not ended.value:
            break


def has_flows(world: World) -> bool:
    """Whether there are flows in a run.  Drawn by a chance of its own, so that others stay as they were."""
    return world.rolling is None and world.chance_for("flowing").random() < 0.25


def flows_in(world: World) -> FlowBook | None:
    """Return the book of a run in which there are flows, None for others."""
    return FlowBook(world) if has_flows(world) else None
