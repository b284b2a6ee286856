"""Play ZooKeeper: the hub of ``zkrq.coordination.memory`` across a network, with the freedom that its contract leaves.

A request is executed when it reaches the hub, even if its client has died by then.  A read may miss a write whose
client has not yet got its answer, and no other; and none that is older than anything that its own client has seen, in
whichever register.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TypeVar

from tests.simulation.loop import PROCESS, WORLD, Loop, Process
from tests.simulation.trace import Trace
from zkrq.base.errors import Unavailable
from zkrq.coordination.coordinator import SessionState, Versioned, session_of
from zkrq.coordination.memory import MARGIN, NEVER_WRITTEN, Hub, MemoryCoordinator

T = TypeVar("T")

RETRY_SECONDS = 0.3
"""After so long a client asks again that got no answer."""


GHOST = "has gone"
"""What a stale registry tells of a consumer whose session is over."""


class SimHub(Hub):
    """``stale``: how likely a read is as old as it may be; ``slow``: seconds, at most, that a message takes longer."""

    def __init__(self, loop: Loop, chance: random.Random, trace: Trace, *, session_timeout: float) -> None:
        self.chance = chance
        self.trace = trace
        self.loop = loop
        self.stale = 0.0
        self.slow = 0.0
        self.history: dict[str, list[Versioned]] = defaultdict(lambda: [NEVER_WRITTEN])
        self.moments: dict[str, list[int]] = defaultdict(lambda: [0])
        """By register: when each of its history was written, as the number of the write."""
        self.told_versions: dict[str, int] = defaultdict(lambda: -1)
        """By register: its latest version of which some writer or reader has been told."""
        self.told_owners: set[str] = set()
        self.ended: list[str] = []
        """Sessions that are over, the latest last."""
        super().__init__(session_timeout=session_timeout, latency=self._travel_time, random=chance)

    def _travel_time(self) -> float:
        usual = 0.0002 + 0.004 * self.chance.random() ** 2
        return usual + self.slow * self.chance.random() if self.slow else usual

    def swap(self, register: str, data: bytes, expected: int, given: tuple[str, int] | None = None) -> Versioned | None:
        before = self.read(register)
        written = super().swap(register, data, expected, given)
        if self.read(register) is not before:
            self.history[register].append(self.read(register))
            self.moments[register].append(1 + sum(len(moments) - 1 for moments in self.moments.values()))
            self.trace.note(f"{register} is now {data.decode()}")
        return written

    def restore(self, registers: Mapping[str, Versioned]) -> None:
        """Go back to an older copy; reads are no older than that from here on."""
        for register in list(self.history):
            version = registers.get(register, NEVER_WRITTEN).version
            kept = sum(old.version <= version for old in self.history[register])
            del self.history[register][kept:], self.moments[register][kept:]
            self.told_versions[register] = version
        self.trace.note("the registers go back")
        super().restore(registers)

    def leave(self, session_id: str) -> None:
        if session_id in self.sessions:
            self.ended.append(session_id)
            self.trace.note(f"session {session_id} is over")
        super().leave(session_id)

    def is_live(self, owner: str) -> bool:
        return session_of(owner) in self.sessions

    def _notify(self, notice: Callable[[MemoryCoordinator], None]) -> None:
        for coordinator in tuple(self.sessions.values()):
            assert isinstance(coordinator, SimCoordinator)
            at = self.loop.now + self.latency()
            self.loop.arrive_at(at, notice, coordinator, context=coordinator.process.context)

    def suspend(self, coordinator: MemoryCoordinator) -> None:
        """Cut a client off.  Unless it is resumed within the session timeout, its session ends."""
        assert isinstance(coordinator, SimCoordinator)
        in_process(coordinator.process, coordinator.cut)
        session_id = coordinator.session.id
        if session_id in self.sessions and session_id not in self._expiries:
            timer = self.loop.call_later(self.session_timeout, self.expire, session_id, context=WORLD)
            self._expiries[session_id] = timer

    def resume(self, coordinator: MemoryCoordinator) -> None:
        """Let a client reach the hub again."""
        assert isinstance(coordinator, SimCoordinator)
        self._hear_of(coordinator)
        in_process(coordinator.process, coordinator.mend)

    def expire(self, session_id: str) -> None:
        """End a session; its client hears of it at once, if it can hear."""
        coordinator = self.sessions.get(session_id)
        if coordinator is not None:
            self.leave(session_id)
            assert isinstance(coordinator, SimCoordinator)
            if coordinator.silent_since is None:
                self.tell_of_end(coordinator, session_id, self.latency())

    def tell_of_end(self, coordinator: SimCoordinator, session_id: str, delay: float) -> None:
        """Have a client hear that its session is over."""
        at = self.loop.now + delay
        self.loop.arrive_at(at, coordinator.told_of_end, session_id, context=coordinator.process.context)

    # -- silence: the client has not noticed anything ------------------------------------------------------------------

    def silence(self, coordinator: SimCoordinator, *, deaf: bool) -> None:
        """The hub hears nothing from this client any more; ``deaf``: nor does what it asks arrive."""
        coordinator.silent_since = self.loop.now
        coordinator.deaf = deaf
        session_id = coordinator.session.id
        if session_id in self.sessions and session_id not in self._expiries:
            timer = self.loop.call_later(self.session_timeout, self.expire, session_id, context=WORLD)
            self._expiries[session_id] = timer

    def break_silence(self, coordinator: SimCoordinator, delay: float) -> None:
        """Contact again, unless it was cut off meanwhile; after ``delay`` seconds it learns what its session is."""
        if coordinator.reachable:
            self._hear_of(coordinator)
        coordinator.deaf = False
        self.tell_of_end(coordinator, coordinator.session.id, delay)

    def _hear_of(self, coordinator: SimCoordinator) -> None:
        """A session is kept that its client goes on with; one that was closed during a cut times out."""
        if coordinator.session.state is not SessionState.CLOSED:
            self._keep(coordinator.session.id)


class SimCoordinator(MemoryCoordinator):
    """A client of the ``SimHub`` that belongs to a process."""

    def __init__(self, hub: SimHub, process: Process) -> None:
        super().__init__(hub)
        self.hub = hub
        self.process = process
        self.silent_since: float | None = None
        """Since when the hub has not heard of this client, which has not noticed."""
        self.deaf = False
        self.swaps_to_lose = 0
        self._seen_versions: dict[str, int] = defaultdict(lambda: -1)
        self._seen_moment = 0

    @property
    def valid_until(self) -> float:
        if self.silent_since is not None and self.session.state is SessionState.CONNECTED:
            return self.silent_since + self.hub.session_timeout * (1 - MARGIN)
        return super().valid_until

    def _see(self, register: str, seen: Versioned) -> None:
        self._seen_versions[register] = max(self._seen_versions[register], seen.version)
        at = [old.version for old in self.hub.history[register]].index(seen.version)
        self._seen_moment = max(self._seen_moment, self.hub.moments[register][at])

    def begin_again(self) -> None:
        """Forget what was seen of a history that is over, and lose what is on its way."""
        self._seen_versions.clear()
        self._seen_moment = 0
        super().begin_again()

    async def read(self, register: str) -> Versioned:
        floor = max(self.hub.told_versions[register], self._seen_versions[register])

        def read() -> Versioned:
            hub = self.hub
            history = hub.history[register]
            oldest = next(at for at, old in enumerate(history) if old.version >= floor)
            oldest = max(oldest, bisect_right(hub.moments[register], self._seen_moment) - 1)
            if oldest < len(history) - 1 and hub.chance.random() < hub.stale:
                hub.trace.count(f"stale {register}")
                return history[hub.chance.randrange(oldest, len(history))]
            return hub.read(register)

        seen = await self._ask(read)
        self._see(register, seen)
        return seen

    async def swap(
        self, register: str, data: bytes, expected: int, *, given: tuple[str, int] | None = None
    ) -> Versioned | None:
        if self.swaps_to_lose:
            self.swaps_to_lose -= 1
            self.replies_to_lose += 1
            self.hub.trace.count("reply to a compare-and-set lost", self.process.name)
        written = await super().swap(register, data, expected, given=given)
        if written is not None:
            self.hub.told_versions[register] = max(self.hub.told_versions[register], written.version)
            self._see(register, written)
        return written

    async def enrol(self, description: str, incarnation: int = 1) -> str:
        owner = await super().enrol(description, incarnation)
        self.hub.told_owners.add(owner)
        return owner

    async def alive(self, *, proved: bool = False) -> frozenset[str]:
        return frozenset(await self.consumers())

    async def consumers(self) -> Mapping[str, str]:
        told = frozenset(self.hub.told_owners)

        def read() -> dict[str, str]:
            hub = self.hub
            seen = dict(hub.enrolled)
            if hub.chance.random() < hub.stale:
                hub.trace.count("stale registry")
                seen = {owner: text for owner, text in seen.items() if owner in told}
                seen.update(dict.fromkeys(hub.ended[-1:], GHOST))
            return seen

        return await self._ask(read)

    async def _travel(self, act: Callable[[], T]) -> T:
        if act == self._connect:
            return await super()._travel(act)
        try:
            async with asyncio.timeout(self.hub.session_timeout):
                while True:
                    await self._reachable.wait()
                    answers = await self._exchange(act)
                    self._check_open()
                    if answers:
                        return answers[0]
        except TimeoutError as error:
            raise Unavailable("the coordinator does not answer") from error

    async def _exchange(self, act: Callable[[], T]) -> list[T]:
        """One request and its answer; empty when either was lost."""
        loop, hub, cuts = self.hub.loop, self.hub, self._cuts
        answered: asyncio.Future[list[T]] = loop.create_future()

        def arrive(answers: list[T]) -> None:
            if not answered.done():
                answered.set_result(answers if cuts == self._cuts else [])

        def reach() -> None:
            answers = [act()] if self._cuts == cuts and not self.deaf else []
            if answers and self.replies_to_lose > 0:
                self.replies_to_lose -= 1
                hub.trace.counts["reply of the hub lost"] += 1
                answers = []
            pause = hub.latency() if answers else RETRY_SECONDS
            loop.arrive_at(loop.now + pause, arrive, answers, context=self.process.context)

        loop.call_at(loop.now + hub.latency(), reach, context=WORLD)
        return await answered

    def told_of_end(self, session_id: str) -> None:
        """Word from the hub about this session: it may be over."""
        if self.session.id != session_id or not self.reachable:
            return
        self.silent_since = None
        if self.session.state is SessionState.CONNECTED and session_id not in self.hub.sessions:
            self.renew()


def in_process(process: Process, act: Callable[[], object]) -> None:
    """Have something happen to a process from outside, as soon as it runs."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, Loop)
    assert PROCESS.get() is not process
    loop.arrive_at(loop.now, act, context=process.context)
