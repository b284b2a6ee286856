"""Declare the limits of a queue, which belong to the queue and not to a process.

They are a record of the queue (``lua/_limits.lua``), in a section for each kind.  A client whose program gives the
option declares its section once, before its first push or claim there.  The last declaration holds for all.

A limit is exact because one server decides.  In a namespace of several shards, every item of such a queue is therefore
pushed to the queue's home, also by programs without the option: the map names the queue (``ShardMap.homed``).  In this
order:

1. The map names the queue.
2. The servers of all shards ask for that map.  Without it a client with the map of before pushes elsewhere.
3. The other shards are looked at: what is on them was pushed before, and would be claimed beside what is at home.
   Nothing is declared while something is there.
4. The section is declared at home, and then on the other shards.  One of them may be the home later, when nothing of
   the queue is left at this one (``resharding.py``).

If it was the last limit, the map stops naming the queue afterwards, unless its home has limits again.  Another client
may declare one meanwhile, so who has declared one writes the map again (``confirmed``): either the name is still there,
and stays, or all is done again.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from zkrq.base.errors import Changes, ConfigError, OutcomeUnknown, Unavailable
from zkrq.base.events import LimitsChanged
from zkrq.base.limits import Declared, Groups, History, Limits
from zkrq.protocol import calls
from zkrq.protocol.levels import Feature
from zkrq.protocol.records import State

if TYPE_CHECKING:
    from zkrq.base.events import Events
    from zkrq.client.everywhere import Everywhere
    from zkrq.client.shard import Shard
    from zkrq.replication.replicas import Replicas

NEED_HOME = (Limits, Groups)
"""The kinds for which one server decides about all claims of the queue."""

HOME_TRIES = 10
"""Times that limits are declared while other clients remove them, or change the shards."""

SECTIONS: Mapping[type[Declared], tuple[str, Feature]] = {
    Limits: ("limits", Feature.LIMITS),
    Groups: ("groups", Feature.GROUPS),
    History: ("history", Feature.HISTORY),
}
"""The section of each kind, and what it needs."""


class Shared(NamedTuple):
    """What all shards have in common of a queue: whether it is paused, and the sections of its limits."""

    paused: bool
    sections: Mapping[type[Declared], str]

    @property
    def needs_home(self) -> bool:
        """Whether one server has to decide about all claims of the queue."""
        return any(self.sections.get(kind) for kind in NEED_HOME)


async def read_shared(replicas: Replicas, queue: str) -> Shared:
    """Read what a shard has of it.  Raises ``Unavailable``."""
    told = await replicas.ask(calls.Statistics(queue))
    text = told.limits.decode(errors="replace")
    return Shared(bool(told.paused), {kind: kind.read(text).settings for kind in SECTIONS})


async def write_shared(replicas: Replicas, queue: str, wanted: Shared, map_number: int) -> None:
    """Give it to a shard.  Raises ``Unavailable``, also if the shard asks for a newer map than that of this number, and
    ``OutcomeUnknown``."""
    state = State.PAUSED if wanted.paused else State.GONE
    await replicas.decide(calls.Pause(queue, state.value, _new_call()), map_number=map_number)
    for kind, settings in wanted.sections.items():
        call = calls.Declare(queue, SECTIONS[kind][0], settings, _new_call())
        await replicas.decide(call, map_number=map_number)


async def declare_limits(
    everywhere: Everywhere, events: Events, cluster: str, queue: str, limits: Declared, *, at_start: bool = False
) -> None:
    """Declare the limits of a queue or of its groups, or its history; report it if others were declared before.

    ``at_start``: by a program that begins to use the queue.  It waits for no shard that is away if its declaration
    holds already; should that one have lacked it, the next program that starts declares it there.

    Raises ``ConfigError``, ``Unavailable``: nothing happened; ``OutcomeUnknown``.
    """
    before = limits.of(await _Declaration(everywhere, queue, limits).make(at_start=at_start))
    if before not in (type(limits)(), limits):
        events.tell(LimitsChanged(cluster, queue, str(before), str(limits)), logging.WARNING)


class _Declaration:
    """Declare a section of the record of a queue on every shard."""

    def __init__(self, everywhere: Everywhere, queue: str, declared: Declared) -> None:
        self._everywhere = everywhere
        self._shards = everywhere.shards
        self._queue = queue
        self._kind: type[Declared] = type(declared)
        self._settings = declared.settings
        self._needs_home = self._kind in NEED_HOME
        self._before: str | None = None
        self._is_changed = False

    async def make(self, *, at_start: bool) -> str:
        """Declare it; return what it was before."""
        shards = self._shards
        try:
            await shards.all_used()
        except Unavailable:
            if at_start and await self._holds():
                return self._settings
            raise
        shards.placement.check(SECTIONS[self._kind][1])
        with Changes() as changes:
            for _ in range(HOME_TRIES):
                leader = await self._lead() if self._needs_home else shards.first
                await self._everywhere.agree(leader, self._settings, self._write, self._now, changes)
                if not self._needs_home or await self._is_at_home():
                    return self._before or ""
        raise OutcomeUnknown(f"others remove the limits of queue {self._queue!r} all the time; repeat")

    async def _holds(self) -> bool:
        """Tell whether it is declared already.  Raises ``Unavailable`` if the shard to ask is away."""
        shards, leader = self._shards, self._shards.first
        if self._needs_home:
            if self._queue not in (await shards.refresh()).homed:
                return False
            leader = await shards.home(self._queue)
        return self._settings != "" and await self._now(leader.replicas) == self._settings

    async def _lead(self) -> Shard:
        """Have the items of the queue go where its limits need them; return its home, which decides about them.

        Raises ``ConfigError`` while other shards have items, unless the queue has limits already: then these came late,
        by a push that was repeated for instance, and count there.
        """
        shards, queue = self._shards, self._queue
        if len(shards.map.shards) == 1 and queue not in shards.map.homed:
            return shards.first
        if self._settings:
            await shards.keep_at_home([queue])
        home = await shards.home(queue)
        if self._settings and not await self._has_limits(home):
            await self._check_others(home)
        return home

    async def _check_others(self, home: Shard) -> None:
        if left := sum(await self._everywhere.each(self._count, {home})):
            raise ConfigError(
                f"queue {self._queue!r} has no limits yet: {left} item(s) from before are on other shards than "
                f"{home.name}, where all new ones go; repeat this when consumers without the option have emptied those"
            )

    async def _is_at_home(self) -> bool:
        """Tell whether the items of the queue go home, if it has a limit, whatever others have declared meanwhile."""
        shards, queue = self._shards, self._queue
        if not self._settings:
            await shards.let_spread(queue, self._has_limits)
            return True
        if len(shards.map.shards) == 1:
            return True
        is_changed, self._is_changed = self._is_changed, False
        return await shards.confirm_home(queue) if is_changed else queue in (await shards.refresh()).homed

    async def _has_limits(self, shard: Shard) -> bool:
        return (await read_shared(shard.replicas, self._queue)).needs_home

    async def _write(self, settings: str, replicas: Replicas) -> None:
        decided = await replicas.decide(calls.Declare(self._queue, SECTIONS[self._kind][0], settings, _new_call()))
        before = decided.reply.before.decode()
        self._is_changed = self._is_changed or decided.again or before != settings
        if self._before is None:
            self._before = before

    async def _now(self, replicas: Replicas) -> str:
        return (await read_shared(replicas, self._queue)).sections[self._kind]

    async def _count(self, replicas: Replicas) -> int:
        return sum(await replicas.ask(calls.Count(self._queue)))


def _new_call() -> str:
    return secrets.token_hex(4)
