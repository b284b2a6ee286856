"""Coordinate inside one process: for ``zkrq.embedded()``, for tests and for simulation.

A ``Hub`` plays the ensemble, a ``MemoryCoordinator`` one client of it.  There are no tasks, no sockets and no clock
except ``loop.time()``: everything happens in the caller's await or in a timer of the loop, so it also runs in virtual
time. Faults are injected at the hub:

    hub.suspend(coordinator)     cut off; its session stays alive for session_timeout
    hub.resume(coordinator)      reachable again: CONNECTED, or LOST and a new session if it was away too long
    hub.expire(session_id)       the session ends now
    hub.withdraw(owner)          an entry of the registry is deleted by hand
    hub.lose_reply(coordinator)  its next request is executed, but the answer is lost
    hub.restore(registers)       the registers go back to what they were, as from an older backup
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random as _random
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from zkrq.base.errors import Closed, Unavailable
from zkrq.coordination.coordinator import VIEW, Listener, Session, SessionState, Versioned, owner_id, session_of
from zkrq.coordination.lifecycle import Lifecycle

_log = logging.getLogger(__name__)

SESSION_TIMEOUT = 10.0  # seconds from the last contact until a session ends
MARGIN = 0.1  # part of the session timeout by which the client considers its session over earlier than the hub does

NEVER_WRITTEN = Versioned(data=None, version=-1)

_T = TypeVar("_T")


def no_latency() -> float:
    return 0.0


class Hub:
    """Play the ensemble: the registers, the live sessions, and which of them are enrolled.

    session_timeout: seconds that a session stays alive during a cut.
    latency: returns the seconds that a request, an answer or a notice travels; called for each.
    random: source of the session ids; pass a seeded one to repeat a run.
    """

    def __init__(
        self,
        *,
        session_timeout: float = SESSION_TIMEOUT,
        latency: Callable[[], float] = no_latency,
        random: _random.Random | None = None,
    ) -> None:
        self.session_timeout = session_timeout
        self.registers: dict[str, Versioned] = {VIEW: NEVER_WRITTEN}
        self.enrolled: dict[str, str] = {}
        self.introduced: dict[str, str] = {}
        self.sessions: dict[str, MemoryCoordinator] = {}  # oldest first: the first one leads
        self._latency = latency
        self._random = random or _random.SystemRandom()
        self._numbers = itertools.count(1)
        self._expiries: dict[str, asyncio.TimerHandle] = {}

    def __repr__(self) -> str:
        return f"<Hub view={self.read(VIEW).version} sessions={len(self.sessions)} enrolled={len(self.enrolled)}>"

    # -- faults -------------------------------------------------------------------------------------------------

    def suspend(self, coordinator: MemoryCoordinator) -> None:
        """Cut ``coordinator`` off.  Unless it is resumed within the session timeout, its session ends."""
        if not coordinator.reachable:
            return
        coordinator.cut()
        session_id = coordinator.session.id
        if session_id in self.sessions:
            loop = asyncio.get_running_loop()
            self._expiries[session_id] = loop.call_later(self.session_timeout, self.expire, session_id)

    def resume(self, coordinator: MemoryCoordinator) -> None:
        """Let ``coordinator`` reach the hub again; it immediately learns what became of its session."""
        if coordinator.reachable:
            return
        self._keep(coordinator.session.id)
        coordinator.mend()

    def expire(self, session_id: str) -> None:
        """End a session now, as the ensemble does when a client has been silent for too long."""
        coordinator = self.sessions.get(session_id)
        if coordinator is None:
            return
        self.leave(session_id)
        if coordinator.session.state is SessionState.CONNECTED:
            coordinator.renew()

    def lose_reply(self, coordinator: MemoryCoordinator) -> None:
        """Lose the answer to the next request of ``coordinator``; the request itself is executed."""
        coordinator.replies_to_lose += 1

    def restore(self, registers: Mapping[str, Versioned]) -> None:
        """Let the registers go back to a copy of ``registers`` that was made before, versions included.

        What is on its way is lost, as with every connection to the ensemble of before.
        """
        for coordinator in self.sessions.values():
            coordinator.begin_again()
        changed = {*self.registers, *registers}
        self.registers = {VIEW: NEVER_WRITTEN, **registers}
        for register in sorted(changed):
            self._notify(partial(MemoryCoordinator.register_changed, register=register))

    # -- requests of clients; each is atomic and idempotent -------------------------------------------------------

    def join(self, coordinator: MemoryCoordinator) -> str:
        """Begin a session and return its id."""
        session_id = f"{next(self._numbers):x}-{self._random.getrandbits(32):08x}"
        self.sessions[session_id] = coordinator
        return session_id

    def leave(self, session_id: str) -> None:
        """End a session; the next oldest one leads."""
        self._keep(session_id)
        self.sessions.pop(session_id, None)
        for name in [name for name in self.introduced if session_of(name) == session_id]:
            del self.introduced[name]
        for owner in [owner for owner in self.enrolled if session_of(owner) == session_id]:
            self.withdraw(owner)
        self._notify(MemoryCoordinator.look_who_leads)

    def read(self, register: str) -> Versioned:
        return self.registers.get(register, NEVER_WRITTEN)

    def swap(self, register: str, data: bytes, expected: int, given: tuple[str, int] | None = None) -> Versioned | None:
        written = Versioned(data, expected + 1)
        is_given = given is None or self.read(given[0]).version == given[1]
        if is_given and self.read(register).version == expected:
            self.registers[register] = written
            self._notify(lambda coordinator: coordinator.register_changed(register))
        return written if self.read(register) == written else None

    def enrol(self, session_id: str, description: str, incarnation: int) -> str:
        if incarnation > 1:
            self.withdraw(owner_id(session_id, incarnation - 1))
        owner = owner_id(session_id, incarnation)
        if session_id in self.sessions and owner not in self.enrolled:
            self.enrolled[owner] = description
            self._notify(MemoryCoordinator.consumers_changed)
        return owner

    def introduce(self, session_id: str, text: str, number: int) -> None:
        if session_id in self.sessions:
            self.introduced[owner_id(session_id, number)] = text
            self.introduced.pop(owner_id(session_id, number - 1), None)

    def withdraw(self, owner: str) -> None:
        if self.enrolled.pop(owner, None) is not None:
            self._notify(MemoryCoordinator.consumers_changed)

    # ---------------------------------------------------------------------------------------------------------------

    def latency(self) -> float:
        """Return the travel time of the next message, in seconds."""
        return self._latency()

    def leader(self) -> str | None:
        """Return the id of the oldest session whose client stands for election."""
        return next((session for session, coordinator in self.sessions.items() if coordinator.stands), None)

    def stand_down(self, coordinator: MemoryCoordinator) -> None:
        coordinator.stands = False
        self._notify(MemoryCoordinator.look_who_leads)

    def _keep(self, session_id: str) -> None:
        timer = self._expiries.pop(session_id, None)
        if timer is not None:
            timer.cancel()

    def _notify(self, notice: Callable[[MemoryCoordinator], None]) -> None:
        """Send a notice to every live session; one that is cut off when it arrives looks again later."""
        loop = asyncio.get_running_loop()
        for coordinator in tuple(self.sessions.values()):
            loop.call_later(self.latency(), notice, coordinator)


class MemoryCoordinator:
    """A client of a ``Hub``; implements ``Coordinator``.  Its operation timeout is the hub's session timeout."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._life = Lifecycle(_log)
        self._followed = dict.fromkeys([VIEW])
        self._learned = dict[str, Versioned]()  # by followed register: what it held when this client last read or wrote
        self._reachable = asyncio.Event()
        self._reachable.set()
        self._cuts = 0  # grows with every cut; a message that travels during a cut is lost
        self.replies_to_lose = 0
        self.stands = True
        """Whether it stands for election."""
        self._last_contact = float("-inf")  # loop time of the cut, while there is one

    def __repr__(self) -> str:
        return f"<MemoryCoordinator session={self.session.id or None} {self.session.state.value}>"

    async def __aenter__(self) -> Self:
        if self.session.state is not SessionState.CONNECTING:
            raise Closed("a coordinator is used once; make a new one")
        try:
            await self._travel(self._connect)
        except BaseException:
            self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        """Close, and end the session if one has begun and the hub can be reached."""
        self._life.closed()
        if self.reachable:
            self._hub.leave(self.session.id)
        self._reachable.set()  # wakes the waiters, which find it closed

    @property
    def session(self) -> Session:
        return self._life.session

    @property
    def leading(self) -> bool:
        return self._life.leading

    async def stand_down(self) -> None:
        await self._ask(lambda: self._hub.stand_down(self))

    @property
    def reachable(self) -> bool:
        """Whether the hub can be reached; see ``Hub.suspend``."""
        return self._reachable.is_set()

    @property
    def valid_until(self) -> float:
        trusted = self._hub.session_timeout * (1 - MARGIN)
        match self.session.state:
            case SessionState.CONNECTED:
                return asyncio.get_running_loop().time() + trusted
            case SessionState.SUSPENDED:
                return self._last_contact + trusted
            case SessionState.CONNECTING | SessionState.LOST | SessionState.CLOSED:
                return float("-inf")

    def subscribe(self, listener: Listener) -> None:
        self._life.subscribe(listener)

    def follow(self, register: str) -> None:
        self._followed[register] = None

    async def read(self, register: str) -> Versioned:
        found = await self._ask(lambda: self._hub.read(register))
        self._learn(register, found)
        return found

    def _learn(self, register: str, found: Versioned | None) -> None:
        if found and register in self._followed:
            self._learned[register] = found

    def _is_another(self, register: str, version: int) -> bool:
        """Tell whether a register has other data of this version than this client knows: its history is another."""
        known, found = self._learned.get(register), self._hub.read(register)
        return known is not None and known.version == found.version == version and known.data != found.data

    async def swap(
        self, register: str, data: bytes, expected: int, *, given: tuple[str, int] | None = None
    ) -> Versioned | None:
        def act() -> Versioned | None:
            if self._is_another(register, expected) or (given and self._is_another(*given)):
                return None
            return self._hub.swap(register, data, expected, given)

        written = await self._ask(act)
        self._learn(register, written)
        return written

    async def enrol(self, description: str, incarnation: int = 1) -> str:
        return await self._ask(lambda: self._hub.enrol(self.session.id, description, incarnation))

    async def introduce(self, text: str, number: int = 1) -> None:
        await self._ask(lambda: self._hub.introduce(self.session.id, text, number))

    async def clients(self) -> Mapping[str, str]:
        return await self._ask(lambda: dict(self._hub.introduced))

    @property
    def enrolled(self) -> int:
        return len(self._hub.enrolled)

    async def consumers(self) -> Mapping[str, str]:
        return await self._ask(lambda: dict(self._hub.enrolled))

    async def alive(self, *, proved: bool = False) -> frozenset[str]:
        return await self._ask(lambda: frozenset(self._hub.enrolled))

    # -- requests -------------------------------------------------------------------------------------------------

    async def _ask(self, act: Callable[[], _T]) -> _T:
        if self.session.state is SessionState.CONNECTING:
            raise Unavailable("the coordinator is not started")
        self._check_open()
        return await self._travel(act)

    async def _travel(self, act: Callable[[], _T]) -> _T:
        """Carry ``act`` to the hub and its answer back, within the operation timeout.

        A message lost in a cut is sent again, because ``act`` is idempotent.
        """
        try:
            async with asyncio.timeout(self._hub.session_timeout):
                while True:
                    await self._reachable.wait()
                    cuts = self._cuts
                    await asyncio.sleep(self._hub.latency())
                    self._check_open()
                    if cuts != self._cuts:
                        continue
                    answer = act()
                    lost = self.replies_to_lose > 0
                    self.replies_to_lose -= lost
                    await asyncio.sleep(self._hub.latency())
                    self._check_open()
                    if cuts == self._cuts and not lost:
                        return answer
        except TimeoutError as error:
            raise Unavailable("the coordinator does not answer") from error

    def _check_open(self) -> None:
        if self.session.state is SessionState.CLOSED:
            raise Closed

    # -- called by the hub ------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Begin a session, unless there is one."""
        if self.session.state is SessionState.CONNECTED:
            return
        self._life.connected(self._hub.join(self))
        self.look_who_leads()

    def begin_again(self) -> None:
        """Lose every message that is on its way."""
        self._cuts += 1

    def cut(self) -> None:
        """Cut this client off: no message reaches the hub or comes from it."""
        self._cuts += 1
        self._reachable.clear()
        self._last_contact = asyncio.get_running_loop().time()
        if self.session.state is SessionState.CONNECTED:
            self._life.suspended()

    def mend(self) -> None:
        """Reconnect to the hub: continue the session if it is still alive."""
        self._reachable.set()
        match self.session.state:
            case SessionState.SUSPENDED if self.session.id in self._hub.sessions:
                self._life.connected(self.session.id)
                self._look_again()
            case SessionState.SUSPENDED:
                self.renew()
            case _:
                pass  # never started, or closed

    def renew(self) -> None:
        """Learn that the session is over, and begin a new one."""
        self._life.lost()
        self._connect()
        self._look_again()

    def _look_again(self) -> None:
        """Report that everything may have changed, because changes during a cut were not reported."""
        self.look_who_leads()
        for register in self._followed:
            self.register_changed(register)
        self.consumers_changed()

    def look_who_leads(self) -> None:
        if self._listening:
            self._life.lead(self._hub.leader() == self.session.id)

    def register_changed(self, register: str) -> None:
        if self._listening and register in self._followed:
            self._life.register_changed(register)

    def consumers_changed(self) -> None:
        if self._listening:
            self._life.consumers_changed()

    @property
    def _listening(self) -> bool:
        return self.session.state is SessionState.CONNECTED
