"""Looking at a queue's items and steering them, without claiming any."""

from __future__ import annotations

import asyncio
import enum
import secrets
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar, cast, get_args

from zkrq import clock
from zkrq.checks import check_count, check_id, check_rate
from zkrq.codecs import Codec
from zkrq.consuming.leases import Held
from zkrq.errors import Closed, ConfigError, OutcomeUnknown
from zkrq.items import Item, ItemState, item_of
from zkrq.protocol.records import State
from zkrq.replication.copying import read_copied
from zkrq.replication.replicas import Replicas
from zkrq.replication.wire import Arguments

T = TypeVar("T")

SEEN_AT_ONCE = 500
"""Items looked at, or removed by id, in one call."""

CLEAR_PAGE = 500
"""Items looked at in one step of ``clear``."""


class Sizes(NamedTuple):
    """How many items of a queue are ready, scheduled for later, claimed, and dead letters."""

    ready: int
    scheduled: int
    claimed: int
    dead: int


class Statistics(NamedTuple):
    """A queue at a glance, as its primary knows it.

    ``oldest_ready``: seconds that the ready item has been due that waits longest, None where none is ready.
    ``keyed`` and ``expiring`` items have a key, or a time to live.  ``tombstones`` of removed items are kept for ten
    minutes.  ``held``: claims of this process, those claimed ahead included.
    """

    sizes: Sizes
    paused: bool
    oldest_ready: float | None
    keyed: int
    expiring: int
    tombstones: int
    held: int


class Cancellation(enum.Enum):
    """What ``cancel`` found.  True where there was an item."""

    REMOVED = "removed"
    """It was waiting, or a dead letter, and is gone."""
    SIGNALLED = "signalled"
    """It is gone, and its holder is told to stop: its claim is lost."""
    NOT_FOUND = "not found"
    """There is none of that id: never was, or done already."""

    def __bool__(self) -> bool:
        return self is not Cancellation.NOT_FOUND


class Steering(Generic[T]):
    """The part of a queue that needs no claims."""

    def __init__(self, name: str, *, codec: Codec[T], replicas: Replicas, held: Held) -> None:
        self.name = name
        self._codec = codec
        self._replicas = replicas
        self._held = held
        self._home = held.home
        self._closed = False

    @property
    def held(self) -> int:
        """How many claims this process holds, those claimed ahead included."""
        return len(self._held)

    def _check_open(self) -> None:
        self._home.check()
        if self._closed:
            raise Closed()

    # -- seeing ------------------------------------------------------------------------------------------------------

    async def size(self) -> Sizes:
        """How many items there are, by state, as the queue's primary counts them.  Raises ``Unavailable``."""
        self._check_open()
        return Sizes(*cast("tuple[int, int, int, int]", await self._replicas.ask("count", self.name)))

    async def statistics(self) -> Statistics:
        """The queue at a glance; the cost does not grow with its items.  Raises ``Unavailable``."""
        self._check_open()
        return await read_statistics(self._replicas, self.name, self.held)

    async def get(self, id: str) -> Item[T] | None:
        """What is known of one item, None where there is none of that id.  Raises ``Unavailable``."""
        self._check_open()
        found, _ = await self._replicas.ask("read", self.name, [0, check_id("id", id)])
        return next(iter(self._items(found)), None)

    async def peek(self, n: int = 10, state: ItemState = "ready") -> list[Item[T]]:
        """The first ``n`` items that are ready, scheduled, claimed or dead, in their order; nothing changes.

        ``n`` is at most 500; of large items there may be fewer.  Raises ``Unavailable``.
        """
        self._check_open()
        check_count("n", n, least=1, most=SEEN_AT_ONCE)
        _check_state(state)
        found, _ = await self._replicas.ask("peek", self.name, [0, state, n])
        return self._items(found)

    async def scan(self, state: ItemState | None = None) -> AsyncGenerator[Item[T]]:
        """Every item, in no order, page by page; ``state``: only those.

        What is there from the beginning to the end comes at least once; after a change of the primary it begins again.
        Raises ``Unavailable``.
        """
        self._check_open()
        if state is not None:
            _check_state(state)
        cursor, primary = b"0", ""
        while True:
            leading = self._replicas.membership.view.primary(self.name)
            if leading != primary:
                cursor, primary = b"0", leading  # a cursor means nothing to another server
            body = await self._replicas.ask("page", self.name, [0, cursor, SEEN_AT_ONCE])
            if self._replicas.membership.view.primary(self.name) != primary:
                continue
            cursor, found, beyond = cast("tuple[bytes, object, list[bytes]]", body)
            while True:
                for item in self._items(found):
                    if state in (None, item.state):
                        yield item
                if not beyond:
                    break
                body = await self._replicas.ask("read", self.name, [0, *beyond])
                found, beyond = cast("tuple[object, list[bytes]]", body)
            if cursor == b"0":
                return

    async def dead_letters(self, n: int = 100) -> list[Item[T]]:
        """The first ``n`` dead letters, those that died first; see ``peek``.  Raises ``Unavailable``."""
        return await self.peek(n, "dead")

    def _items(self, found: object) -> list[Item[T]]:
        items = (item_of(copied, self._codec) for copied in read_copied(found))
        return [item for item in items if item is not None]

    # -- steering ----------------------------------------------------------------------------------------------------

    async def pause(self) -> None:
        """Let nobody claim from the queue any more, in any process; pushes go on, and so does work on what is claimed.

        What a consumer has claimed ahead (``prefetch``) is claimed.  Stays so until ``resume``, whoever dies.
        Raises ``Unavailable``: nothing happened; ``OutcomeUnknown``: it may have, pause again.
        """
        await self._set_paused(State.PAUSED)

    async def resume(self) -> None:
        """Let everybody claim again; does nothing where the queue is not paused.  Raises as ``pause`` does."""
        await self._set_paused(State.GONE)

    async def _set_paused(self, state: State) -> None:
        self._check_open()
        await self._replicas.decide("pause", self.name, [self.name, state.value, _new_call()])

    async def clear(self) -> int:
        """Remove every item that is ready or scheduled; returns how many.  Claimed ones stay with their holders.

        Ends however much is pushed meanwhile: what was pushed after this began, by the later one of the clocks of
        this process and the queue's primary, stays.  So does an item whose producer's clock is further ahead.
        Cancelled or failed in the middle, the rest is still there.  Raises ``Unavailable``, ``OutcomeUnknown``.
        """
        self._check_open()
        removed, before_ms, cursor = 0, clock.now_ms(), b""
        while True:
            leading = self._replicas.membership.view.primary(self.name)
            given: Arguments = [CLEAR_PAGE, _new_call(), before_ms, cursor]
            decision = await self._replicas.decide("clear", self.name, given, trim=True)
            removed += len(decision.ids) + len(decision.carried)
            executed_before, before_ms, after = cast("tuple[int, int, bytes]", decision.body)
            if self._replicas.membership.view.primary(self.name) != leading:
                cursor = b"s"  # a cursor means nothing to another server: it begins again
            elif executed_before or after:
                cursor = after
            else:
                return removed

    async def cancel(self, id: str) -> Cancellation:
        """Remove one item, whatever its state; false where there is none of that id.

        If it is claimed, its holder is told at once: the claim is lost, the handler stopped (at the latest when the
        claim is next extended or settled).
        Raises ``Unavailable``: nothing happened; ``OutcomeUnknown``: it may have, cancel again.
        """
        self._check_open()
        given: Arguments = ["", 0, _new_call(), check_id("id", id)]
        decision = await self._replicas.decide("cancel", self.name, given, trim=True)
        ((was,),) = cast("tuple[list[bytes]]", decision.body)
        if was == State.CLAIMED.value.encode():
            return Cancellation.SIGNALLED
        if was == State.GONE.value.encode():
            return Cancellation.NOT_FOUND
        if not was and not decision.carried and decision.repeated:
            raise OutcomeUnknown(f"there is no {id}, but an earlier try may be executed after its push; cancel again")
        return Cancellation.REMOVED if was or decision.carried else Cancellation.NOT_FOUND

    async def discard(self, ids: Sequence[str] | None = None) -> int:
        """Remove dead letters, None: all there are now; returns how many.  Other ids are passed over.

        Raises as ``cancel`` does, with some removed.
        """
        self._check_open()
        removed = 0
        left = (await self.size()).dead
        for count, some in _pages(ids, SEEN_AT_ONCE, left):
            given: Arguments = [State.DEAD.value, count, _new_call(), *some]
            decision = await self._replicas.decide("cancel", self.name, given, trim=True)
            (states,) = cast("tuple[list[bytes]]", decision.body)
            removed += states.count(State.DEAD.value.encode()) + len(decision.carried)
        return removed

    async def redrive(self, ids: Sequence[str] | None = None, *, rate: float | None = None) -> int:
        """Queue dead letters again, ready at once and as if never tried, None: all there are now; returns how many.

        ``rate``: at most so many a second, None: as fast as it goes.  Ids that are no dead letters are passed over, and
        so are letters whose key another item has by now.  Cancelled or failed in the middle, the rest are still dead
        letters.  Raises as ``cancel`` does.
        """
        if rate is not None:
            check_rate("rate", rate)
        self._check_open()
        revived = passed_over = 0
        left = (await self.size()).dead
        page = SEEN_AT_ONCE if rate is None else max(1, min(SEEN_AT_ONCE, round(rate / 10)))
        for count, some in _pages(ids, page, left):
            given: Arguments = [passed_over, count, _new_call(), *some]
            decision = await self._replicas.decide("redrive", self.name, given)
            (executed_before,) = decision.body
            now = len(decision.ids) + len(decision.carried)
            revived += now
            passed_over += 0 if executed_before else max(0, count - now)
            if rate is not None:
                await asyncio.sleep(count / rate)
        return revived


def _new_call() -> str:
    """What names one call of a script, so that a server executes it once."""
    return secrets.token_hex(4)


async def read_statistics(replicas: Replicas, queue: str, held: int) -> Statistics:
    """A queue at a glance.  Raises ``Unavailable``."""
    body = cast("tuple[int, ...]", await replicas.ask("statistics", queue))
    paused, waited_ms, keyed, expiring, tombstones = body[4:]
    oldest = None if waited_ms < 0 else waited_ms / 1000
    return Statistics(Sizes(*body[:4]), bool(paused), oldest, keyed, expiring, tombstones, held)


def _check_state(state: ItemState) -> None:
    if state not in get_args(ItemState):
        raise ConfigError(f"state is {state!r}, must be one of {', '.join(get_args(ItemState))}")


def _pages(ids: Sequence[str] | None, page: int, dead: int) -> Iterator[tuple[int, Sequence[str]]]:
    """The ids in parts of at most ``page``, each with its length; where None are given, only how many a part has."""
    if isinstance(ids, str):
        raise ConfigError(f"ids is the str {ids!r}, must be a list of ids")
    if ids is not None:
        for id in ids:
            check_id("id", id)
    for start in range(0, dead if ids is None else len(ids), page):
        some = () if ids is None else ids[start : start + page]
        yield min(page, dead - start) if ids is None else len(some), some
