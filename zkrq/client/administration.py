"""Change a queue without claiming from it: pause and clear it, cancel items, discard and redrive dead letters."""

from __future__ import annotations

import asyncio
import enum
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from zkrq.base import clock
from zkrq.base.checks import check_feature, check_group, check_id, check_rate, check_text
from zkrq.base.codecs import call_codec, codec_of_item
from zkrq.base.errors import Changes, ConfigError, OutcomeUnknown, PayloadTooLarge
from zkrq.base.limits import DeadLetters, ResultTtl, Size
from zkrq.base.saved import EDIT_BYTES, Edit
from zkrq.client.conditions import BESIDE_STATE, ByContent, Conditions, read_conditions
from zkrq.client.declaring import GOES_ON, Pause, read_shared
from zkrq.client.finding import Finding
from zkrq.client.inspection import Groups, History, Limits
from zkrq.operations.queues import PAUSE, end_of_pause
from zkrq.protocol import calls
from zkrq.protocol.clocks import PUT_WINDOW_MS
from zkrq.protocol.homing import MOVED
from zkrq.protocol.levels import Feature
from zkrq.protocol.records import REQUEUED, State, unpack

if TYPE_CHECKING:
    from datetime import datetime

    from zkrq.base.checks import Duration
    from zkrq.client.shard import Shard
    from zkrq.protocol.deciding import Decided
    from zkrq.replication.replicas import Replicas

T = TypeVar("T")

CLEARED_AT_ONCE = 150
"""Items that one call of ``clear`` looks at: it ends if fewer are pushed meanwhile, which are passed over."""

CHANGED_AT_ONCE = 100
"""Items that one call cancels, discards, redrives or advances: some milliseconds of a server's time."""

BUNDLES_AT_ONCE = 12
"""Bundles of which one call changes items that it names: one in which fifty other items have failed takes a server half
a millisecond."""

DELETE_ROUNDS = 10
"""Times that ``delete`` begins again because items were pushed, or changed their state, meanwhile."""


class Cancellation(enum.Enum):
    """Tell what ``cancel`` found.  True if there was an item."""

    REMOVED = "removed"
    """The item was ready, scheduled or a dead letter, and is removed."""
    SIGNALLED = "signalled"
    """The item was claimed and is removed.  Its claim is lost, and its handler is stopped."""
    NOT_FOUND = "not found"
    """No item has that id: it was never pushed, or it is done."""

    def __bool__(self) -> bool:
        return self is not Cancellation.NOT_FOUND


class Administration(Finding[T]):
    """Provide the part of a queue that changes items without claiming them."""

    async def pause(self, *, until: datetime | None = None, seconds: Duration | None = None) -> None:
        """Stop new claims from the queue, in every process, until ``resume``.

        ``until``: a moment at which claims are allowed again by themselves; or ``seconds`` from now.  None: when the
        queue is resumed.  The servers count the time that is left, so it needs no process; either needs level 2.  The
        last call holds: without both it takes the end of an earlier pause away.

        Pushes continue, and so does the work on claimed items, including those claimed ahead (``prefetch``).  The pause
        is stored with the queue, so it outlives this process and any server.
        Raises ``ConfigError``; ``Unavailable``: nothing happened; ``OutcomeUnknown``: it may have, pause again.
        """
        given = {"until": until, "seconds": seconds}
        options = PAUSE.check({name: value for name, value in given.items() if value is not None})
        self._parts.check_open()
        pause = Pause(until_ms=end_of_pause(options))
        if pause.until:
            await self._everywhere.shards.all_used()
            check_feature(Feature.PAUSES, self._everywhere.shards.first.replicas.level)
        await self._set_pause(pause)

    async def resume(self) -> None:
        """Allow claims again.  Does nothing if the queue is not paused.  Raises as ``pause`` does."""
        await self._set_pause(GOES_ON)

    async def _set_pause(self, pause: Pause) -> None:
        self._parts.check_open()
        await self._everywhere.shards.all_used()
        with Changes() as changes:
            await self._everywhere.agree(self._everywhere.shards.first, pause, self._pause, self._paused, changes)

    async def _pause(self, pause: Pause, replicas: Replicas) -> None:
        """Pause or resume one shard."""
        await pause.write(replicas, self.name)

    async def _paused(self, replicas: Replicas) -> Pause:
        return (await read_shared(replicas, self.name)).pause

    async def set_limits(self, limits: Limits) -> None:
        """Give the queue these limits, over all workers and processes; ``Limits()`` removes them.

        They hold until other limits are declared, also by the option ``limits`` of ``Cluster.queue``.  A lower limit
        takes no claim away.  In a namespace of several shards every item of the queue goes to its home from then on.
        Raises ``ConfigError``, also while other shards have items from before; ``Unavailable``: nothing happened;
        ``OutcomeUnknown``: it may have, set them again.
        """
        if not isinstance(limits, Limits):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"limits must be a Limits, not {type(limits).__name__}; Limits() takes them away")
        self._parts.check_open()
        await self._parts.context.declare_limits(limits)

    async def set_groups(self, groups: Groups) -> None:
        """Limit each group of the queue, over all workers and processes; ``Groups()`` removes the limit.

        It holds until another one is declared.  A lower limit takes no claim away, and a higher one reaches a group
        when its next claim ends, or when its rate lets it go on.  Raises as ``set_limits`` does.
        """
        if not isinstance(groups, Groups):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"groups must be a Groups, not {type(groups).__name__}; Groups() takes the limits away")
        self._parts.check_open()
        await self._parts.context.declare_limits(groups)

    async def set_history(self, count: int) -> None:
        """Keep this many of the items that have ended last, for ``history``; 0: none from now on.

        It holds until another number is declared, also by the option ``history`` of ``Cluster.queue``.  Raises as
        ``set_limits`` does.
        """
        self._parts.check_open()
        await self._parts.context.declare_limits(History(count))

    async def set_max_size(self, count: int | None) -> None:
        """Let the queue have at most this many items, queued, scheduled and claimed together; None: any number.

        It holds for all programs, until another number is declared, also by the option ``max_size`` of
        ``Cluster.queue``.  What is there already stays.  Raises as ``set_limits`` does.
        """
        self._parts.check_open()
        await self._parts.context.declare_limits(Size(count))

    async def set_dead_letters(self, dead_letters: DeadLetters) -> None:
        """Keep as many dead letters as this says, and for as long; ``DeadLetters()`` is what queues have by default.

        It holds for all programs, until something else is declared, also by the option ``dead_letters`` of
        ``Cluster.queue``.  Those that are too many or too old are dropped by the next claim.  Raises as
        ``set_limits`` does.
        """
        if not isinstance(dead_letters, DeadLetters):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"dead_letters must be a DeadLetters, not {type(dead_letters).__name__}")
        self._parts.check_open()
        await self._parts.context.declare_limits(dead_letters)

    async def set_results_ttl(self, ttl: Duration | None) -> None:
        """Keep results of handlers for this many seconds, 1 second to 30 days; None: for as long as each program says.

        It holds for all programs, until another time is declared, also by the option ``results`` of ``Cluster.queue``.
        Results that are there keep theirs.  Whether a program keeps results at all is its own option.  Raises as
        ``set_limits`` does.
        """
        self._parts.check_open()
        await self._parts.context.declare_limits(ResultTtl(ttl))

    async def clear(self, *, group: str | None = None) -> int:
        """Remove every ready and every scheduled item; return how many.  Claimed items stay claimed.

        ``group``: only those of this group, None: all.

        Items pushed after the start of this call stay, so it ends even while producers push.  The start is taken from
        the clock of this process or that of the queue's primary, whichever is later; an item whose producer's clock
        is ahead of both also stays.  If the call is cancelled, some items may be left.
        Raises ``Unavailable``: nothing happened; ``OutcomeUnknown``: some items may be removed, clear again.
        """
        only = calls.only_of(None if group is None else check_group("group", group))
        self._parts.check_open()
        before_ms = clock.now_ms()
        with Changes() as changes:
            await self._everywhere.each(lambda replicas: self._clear(replicas, changes, before_ms, only))
        return changes.made

    async def _clear(self, replicas: Replicas, changes: Changes, before_ms: int, only: str = "") -> None:
        """Remove every ready and every scheduled item of a shard that was pushed until then."""
        cursor = b""
        while True:
            leading = replicas.primary(self.name)
            call = _new_call()
            decided = await replicas.decide(calls.Clear(self.name, CLEARED_AT_ONCE, call, before_ms, cursor, only))
            changes.made += decided.reply.removed + _done(decided, call, State.GONE.value)
            executed_before, _, before_ms, after, _ = decided.reply
            if replicas.primary(self.name) != leading:
                cursor = b"s"  # a cursor is valid on one server only, so another one starts over
            elif executed_before or after:
                cursor = after
            else:
                return

    async def delete(self) -> int:
        """Remove the queue: all its items in any state, its pause and its limits; return how many items.

        Flows that were begun in this queue are cancelled, with what is held for them in other queues; in flows of other
        queues its items are missed.  Damaged entries that are set aside go as well; one that is damaged and was not
        found yet is set aside later.  Its figures go, too, but for what is reported afterwards.

        Holders of claimed items are notified as by ``cancel``.  None of the items comes back, neither by a push that is
        repeated under an id that zkrq made, nor by a schedule (``every``) whose moment was before, nor from an older
        disk in a recovery.  An ``id`` of the caller's that is pushed by a later call is a new item.  The queue is no
        longer in ``statistics()``.  What Redis remembers of it goes by itself within about a quarter of an hour, or,
        while a server is caught up or fewer than ``min_replicas`` are in sync, after that has ended.

        Whatever is pushed meanwhile is removed too, or makes the queue again, as any later push does, also of an ``id``
        that was removed (by the clocks of the producer and of this client), and a consumer that is waiting:
        stop these first.  The fencing tokens of an id that returns are greater than all before, for as long as a
        removed id is remembered (ten minutes).  If the call is cancelled, some items may be left: delete again.
        Raises ``Unavailable``: nothing happened; ``OutcomeUnknown``: some items may be removed, delete again.
        """
        self._parts.check_open()
        await self._parts.context.flows.cancel_all(self.name)
        with Changes() as changes:
            await self._everywhere.each(lambda replicas: self._empty(replicas, changes))
            await self._everywhere.each(lambda replicas: replicas.tell_all(calls.DropAside(self.name)))
            await self._everywhere.each(lambda replicas: replicas.tell_all(calls.DropFigures(self.name)))
            await self.resume()
            moment_ms = clock.now_ms()
            await self._everywhere.each(lambda replicas: replicas.delete(self.name, moment_ms))
            await self._everywhere.shards.let_spread(self.name, self._has_limits)
        return changes.made

    async def _has_limits(self, shard: Shard) -> bool:
        return (await read_shared(shard.replicas, self.name)).needs_home

    async def _empty(self, replicas: Replicas, changes: Changes) -> None:
        """Remove all items of a shard."""
        for _ in range(DELETE_ROUNDS):
            late_ms = clock.now_ms() + PUT_WINDOW_MS  # also those of producers whose clock is ahead
            await self._clear(replicas, changes, late_ms)
            await self._discard(replicas, None, changes)
            await self._cancel_claimed(replicas, changes)
            if not any(await replicas.ask(calls.Count(self.name))):
                break

    async def _cancel_claimed(self, replicas: Replicas, changes: Changes) -> None:
        for _ in range(0, (await replicas.ask(calls.Count(self.name))).claimed, CHANGED_AT_ONCE):
            ids = [item.id for item in await self._peek(replicas, CHANGED_AT_ONCE, "claimed")]
            call = _new_call()
            decided = await replicas.decide(calls.Cancel(self.name, State.CLAIMED.value, 0, call, ids))
            changes.made += decided.reply.states.count(State.CLAIMED.value.encode())
            changes.made += _done(decided, State.CLAIMED.value + call, State.GONE.value)

    async def cancel(self, id: str) -> Cancellation:
        """Remove one item in any state; the result is false if no item has that id.

        The holder of a claimed item is notified immediately: its claim is lost and its handler stopped.  If the
        notification does not arrive, this happens when the claim is next extended or settled.
        Raises ``Unavailable``: nothing happened; ``OutcomeUnknown``: it may have, cancel again.
        """
        return (await self.cancel_many([check_id("id", id)]))[0]

    async def cancel_many(self, ids: Sequence[str]) -> list[Cancellation]:
        """Remove items in any state; return what became of each, in the order of the ids.

        The holders of claimed ones are notified as by ``cancel``.  If the call fails or is cancelled, some items are
        removed by then: cancel again; those are ``NOT_FOUND`` then.
        Raises ``Unavailable``: nothing happened; ``OutcomeUnknown``: some may be removed.
        """
        named = dict.fromkeys(_check_ids(ids), Cancellation.NOT_FOUND)
        self._parts.check_open()
        known: set[Shard] = set()

        async def cancel_on(shard: Shard, some_ids: Sequence[str]) -> None:
            for some in _named_pages(some_ids, CHANGED_AT_ONCE):
                outcomes = await self._everywhere.on(shard, partial(self._cancel, some))
                named.update(zip(some, outcomes or (), strict=False))
                changes.made = sum(map(bool, named.values()))

        with Changes() as changes:
            # An item is on one shard only: what was found asks no other one, which may be away.
            while not all(named.values()) and (shards := await self._everywhere.further(known, list(named))):
                for shard in shards:
                    may_have = partial(self._everywhere.may_have, shard)
                    await cancel_on(shard, [id for id, found in named.items() if not found and may_have(id)])
            left = [id for id, found in named.items() if not found]
            if home := await self._everywhere.came_to(self.name, left):
                await cancel_on(home, left)
        return [named[id] for id in ids]

    async def _cancel(self, ids: Sequence[str], replicas: Replicas) -> list[Cancellation]:
        call = _new_call()
        decided = await replicas.decide(calls.Cancel(self.name, "", 0, call, ids))
        before = {id: _state_before(call, id, decided.carried) for id in ids} if decided.carried else {}
        outcomes: list[Cancellation] = []
        for id, state in zip(ids, decided.reply.states, strict=True):
            was = state.decode() or before.get(id, "")
            if not was and decided.repeated:
                raise OutcomeUnknown(
                    f"no item {id} was found, but an earlier attempt may run after its push; cancel again"
                )
            if was == State.CLAIMED.value:
                outcomes.append(Cancellation.SIGNALLED)
            else:
                is_removed = was not in ("", State.GONE.value, MOVED)
                outcomes.append(Cancellation.REMOVED if is_removed else Cancellation.NOT_FOUND)
        return outcomes

    async def discard(self, ids: Sequence[str] | None = None) -> int:
        """Remove the dead letters with these ids (None: all that exist now); return how many were removed.

        Ids of other items are skipped.
        Raises ``Unavailable``: nothing happened; ``OutcomeUnknown``: some letters may be removed, discard again.
        """
        return await self._in_turn(ids, self._discard)

    async def _in_turn(
        self, ids: Sequence[str] | None, act: Callable[[Replicas, Sequence[str] | None, Changes], Awaitable[None]]
    ) -> int:
        """Do something with the dead letters of these ids (None: all) on one shard after the other; return the sum.

        Raises ``ConfigError``, ``Unavailable``, ``Closed``, ``WrongLoop``, and what ``act`` does.
        """
        named = None if ids is None else _check_ids(ids)
        self._parts.check_open()
        home = await self._everywhere.came_to(self.name, named or ())
        known: set[Shard] = set()
        with Changes() as changes:
            while shards := await self._everywhere.further(known, named or ()):
                for shard in shards:
                    may_have = self._everywhere.may_have
                    some = None if named is None else [id for id in named if shard is home or may_have(shard, id)]
                    if some is None or some:
                        await self._everywhere.on(shard, lambda replicas, some=some: act(replicas, some, changes))
        return changes.made

    async def _discard(self, replicas: Replicas, ids: Sequence[str] | None, changes: Changes) -> None:
        left = (await replicas.ask(calls.Count(self.name))).dead
        for count, some in _pages(ids, CHANGED_AT_ONCE, left):
            call = _new_call()
            decided = await replicas.decide(calls.Cancel(self.name, State.DEAD.value, count, call, some))
            changes.made += decided.reply.states.count(State.DEAD.value.encode())
            changes.made += _done(decided, State.DEAD.value + call, State.GONE.value)

    async def edit(self, id: str, item: T, *, by: str | None = None) -> bool:
        """Give a dead letter another content, and queue it again under its id, with no attempts.

        Returns whether it is queued; False: there is no such dead letter, or it has its new content and stays dead,
        because another item has its key.  Its headers, key, group and what handlers have saved of it stay.  ``by``: who
        changes it, of which 100 bytes are kept with the item; None: how this client describes itself.  The content has
        at most 16 KiB, and what is saved of the item so much less room.

        Every server has the content before the letter is queued.  If the call fails in between, the letter stays dead,
        with either content: call it again.  Raises ``CodecError``, ``PayloadTooLarge``, ``ConfigError`` (the namespace
        is at level 1), ``Unavailable``: nothing happened; ``OutcomeUnknown``: it may be changed, or queued, too.
        """
        check_id("id", id)
        self._parts.check_open()
        encode = codec_of_item(self._codecs.items, id).encode
        content = call_codec(encode, item, f"item {id} cannot be encoded")
        by = self._parts.context.identity.description if by is None else check_text("by", by)
        edit = Edit(clock.now_ms(), by, content).encode()
        with Changes() as changes:
            changes.made = await self._in_turn([id], partial(self._edit, edit=edit))
            return changes.made > 0 and await self.redrive([id]) > 0

    async def _edit(self, replicas: Replicas, ids: Sequence[str] | None, changes: Changes, *, edit: bytes) -> None:
        check_feature(Feature.EDITS, replicas.level)
        states = (await replicas.decide(calls.Edit(self.name, edit, ids or ()))).reply.states
        if b"L" in states:
            said = "the content is too long together with what is saved of the item; nothing was changed"
            raise PayloadTooLarge(len(edit), EDIT_BYTES, said)
        changes.made += states.count(b"E")

    async def redrive(
        self, ids: Sequence[str] | None = None, *, rate: float | None = None, group: str | None = None
    ) -> int:
        """Queue the dead letters with these ids again (None: all that exist now); return how many were queued.

        They are ready immediately and start with no attempts.  ``rate``: at most this many per second, None: no limit.
        ``group``: in place of ids, those of this group that are found now.  Ids of other items are skipped, and so are
        letters whose key is taken by another item.  If the call fails or is cancelled, the rest stay dead letters.
        Raises ``Unavailable``: nothing happened; ``OutcomeUnknown``: some may be queued, redrive again.
        """
        if rate is not None:
            check_rate("rate", rate)
        if group is not None:
            if ids is not None:
                raise ConfigError("redrive takes either ids or a group")
            ids = [item.id async for item in self.find(group=group, state="dead")]
        return await self._in_turn(ids, partial(self._redrive, rate=rate))

    async def _redrive(
        self, replicas: Replicas, ids: Sequence[str] | None, changes: Changes, *, rate: float | None
    ) -> None:
        passed_over = 0
        left = (await replicas.ask(calls.Count(self.name))).dead
        page = CHANGED_AT_ONCE if rate is None else max(1, min(CHANGED_AT_ONCE, round(rate / 10)))
        for count, some in _pages(ids, page, left):
            call = _new_call()
            decided = await replicas.decide(calls.Redrive(self.name, passed_over, count, call, some))
            now = len(decided.reply.ids) + _done(decided, call, REQUEUED)
            changes.made += now
            passed_over += 0 if decided.reply.executed_before else max(0, count - now)
            if rate is not None:
                await asyncio.sleep(count / rate)

    async def advance(self, ids: Sequence[str] | None = None, **conditions: Unpack[ByContent]) -> int:
        """Have scheduled items, and those that wait for their next attempt, be ready immediately; return how many.

        Those with these ids, or those that meet all given conditions (see ``find``) as they are found.  Their attempts
        and failures stay, and so does their place in an ordered group.  Ids of other items are skipped, and so is what
        is held for the end of a flow.  If the call fails or is cancelled, the rest waits on: advance again.
        Raises ``ConfigError``; ``Unavailable``: nothing happened; ``OutcomeUnknown``: some may be ready.
        """
        is_any = read_conditions("advance()", conditions) == Conditions()
        if ids is None and is_any:
            named = ", ".join(f"{name}=" for name in BESIDE_STATE)
            raise ConfigError(f"advance needs ids=, or one of {named}")
        if ids is None:
            ids = [item.id async for item in self.find(**conditions, state="scheduled")]
        elif not is_any:
            raise ConfigError("advance takes either ids or conditions")
        return await self._in_turn(ids, self._advance)

    async def _advance(self, replicas: Replicas, ids: Sequence[str] | None, changes: Changes) -> None:
        for _, some in _pages(ids, CHANGED_AT_ONCE, 0):
            call = _new_call()
            decided = await replicas.decide(calls.Advance(self.name, call, some))
            changes.made += len(decided.reply.ids) + _done(decided, call, REQUEUED)


def _done(decided: Decided[Any], token: str, states: str) -> int:
    """Count what the call of this token did in an attempt before the view changed."""
    return sum(unpack(record).done_by(token, states) for record in decided.carried.values())


def _state_before(call: str, id: str, carried: Mapping[bytes, bytes]) -> str:
    """Return the state in which a call found an item before the view changed, empty if it decided nothing about it."""
    for bundle, position in calls.stored_at(id).items():
        record = unpack(carried[bundle.encode()]) if bundle.encode() in carried else None
        if record and position < len(record.states):
            token = record.item(position).token
            return token[0] if token[1:] == call else State.GONE.value
    return ""


def _check_ids(ids: Sequence[str]) -> Sequence[str]:
    """Return the ids.  Raises ``ConfigError`` unless they are a list of ids."""
    if isinstance(ids, str):
        raise ConfigError(f"ids is the str {ids!r}, must be a list of ids")
    if not isinstance(ids, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"ids must be a list of ids, not {type(ids).__name__}")
    return [check_id("id", id) for id in ids]


def _new_call() -> str:
    """Return a fresh id for one call of a script, so that a server executes the call once."""
    return secrets.token_hex(4)


def _pages(ids: Sequence[str] | None, page: int, dead: int) -> Iterator[tuple[int, Sequence[str]]]:
    """Split the ids into pages of at most ``page``, each with its length.

    Without ids (None), yield empty pages whose lengths add up to ``dead``.
    """
    if ids is not None:
        yield from ((len(some), some) for some in _named_pages(ids, page))
        return
    for start in range(0, dead, page):
        yield min(page, dead - start), ()


def _named_pages(ids: Sequence[str], page: int) -> Iterator[Sequence[str]]:
    """Split the ids into pages of at most ``page``, and of items of at most ``BUNDLES_AT_ONCE`` bundles."""
    some, bundles = list[str](), set[str]()
    for id in ids:
        bundle = calls.bundle_and_position(id)[0]
        is_further = bundle != id and bundle not in bundles
        if len(some) == page or (is_further and len(bundles) == BUNDLES_AT_ONCE):
            yield some
            some, bundles = [], set[str]()
        some.append(id)
        if bundle != id:
            bundles.add(bundle)
    if some:
        yield some
