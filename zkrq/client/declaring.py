"""Declare the settings of a queue, which belong to the queue and not to a process.

They are a record of the queue (``lua/_limits.lua``), in a section for each kind.  A client whose program gives the
option declares its section before its first push or claim there, and again when every server has come back without
data.  Beside a section stand *marks* of what programs have declared there.  A declaration whose mark is there changes
nothing: so the processes of two releases of a program do not take turns, and what an operator has set holds until the
program itself declares something else.

A limit of claims is exact because one server decides.  In a namespace of several shards, every item of such a queue is
therefore pushed to the queue's home, also by programs without the option: the map names the queue
(``ShardMap.homed``).  In this order:

1. The map names the queue.
2. The servers of all shards ask for that map.  Without it a client with the map of before pushes elsewhere.
3. The section is declared at home, and then on the other shards.  From then on nothing is claimed on these, because it
   would be claimed beside what is at home: what is on them was pushed before, and comes home (``homing.py``).  One of
   them may be the home later, when nothing of the queue is left at this one (``resharding.py``).

If it was the last limit, the map stops naming the queue afterwards, unless its home has limits again.  Another client
may declare one meanwhile, so who has declared one writes the map again (``confirmed``): either the name is still there,
and stays, or all is done again.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from zkrq.base import clock
from zkrq.base.checks import check_feature
from zkrq.base.errors import Changes, ConfigError, OutcomeUnknown, Unavailable, ZkrqError
from zkrq.base.events import LimitsChanged
from zkrq.base.limits import (
    DeadLetters,
    Declared,
    Groups,
    History,
    Limits,
    ResultTtl,
    Size,
    mark_of,
    marks_in,
    sections_of,
)
from zkrq.protocol import calls
from zkrq.protocol.levels import Feature
from zkrq.protocol.records import State

if TYPE_CHECKING:
    from datetime import datetime

    from zkrq.base.events import Events
    from zkrq.client.everywhere import Everywhere
    from zkrq.client.shard import Shard
    from zkrq.replication.replicas import Replicas

NEED_HOME = ("limits", "groups")
"""The sections for which one server decides about all claims of the queue."""

HOME_TRIES = 10
"""Times that limits are declared while other clients remove them, or change the shards."""


SECTIONS: Mapping[type[Declared], str] = {
    Limits: "limits",
    Groups: "groups",
    History: "history",
    Size: "size",
    DeadLetters: "letters",
    ResultTtl: "results",
}
"""The name of each kind's section in the record."""


class BadSettings(ConfigError):
    """What is to change is wrong, or contradicts the settings that stay."""


class SettingsChanged(ZkrqError):
    """Others have changed the same settings of the queue since they were read: look at them again, then repeat."""


class Pause(NamedTuple):
    """Whether a queue is paused.

    ``until_ms``: the moment at which that ends by itself, in milliseconds since 1970 by the clock of the client that
    has named it; 0: when the queue is resumed.
    """

    paused: bool = True
    until_ms: int = 0

    @property
    def until(self) -> datetime | None:
        """The moment at which it ends by itself, None: when the queue is resumed."""
        return clock.at_ms(self.until_ms) if self.until_ms else None

    async def write(self, replicas: Replicas, queue: str, map_number: int = 0) -> None:
        """Pause or resume a queue on a shard, whose servers count from now on the time that is left.

        ``map_number``: see ``Replicas.decide``.  Raises ``Unavailable``, ``OutcomeUnknown``.
        """
        state = State.PAUSED if self.paused else State.GONE
        left_ms = max(1, self.until_ms - clock.now_ms()) if self.until_ms else 0
        call = calls.Pause(queue, state.value, self.until_ms, left_ms, _new_call())
        await replicas.decide(call, map_number=map_number)


GOES_ON = Pause(paused=False)
"""Claims are allowed."""


class Shared(NamedTuple):
    """What all shards have in common of a queue: its pause, and the sections of its settings, with the marks of those
    that programs have declared."""

    pause: Pause
    sections: Mapping[str, str]

    @property
    def needs_home(self) -> bool:
        """Whether one server has to decide about all claims of the queue."""
        return any(self.sections.get(section) for section in NEED_HOME)


async def read_shared(replicas: Replicas, queue: str) -> Shared:
    """Read what a shard has of it.  Raises ``Unavailable``."""
    told = await replicas.ask(calls.Statistics(queue))
    return Shared(Pause(bool(told.paused), told.paused_until_ms), sections_of(told.limits.decode(errors="replace")))


async def write_shared(replicas: Replicas, queue: str, wanted: Shared, known: Shared, map_number: int) -> None:
    """Give it to a shard that has what is ``known``.

    Raises ``Unavailable``, also if the shard asks for a newer map than that of this number, and ``OutcomeUnknown``.
    """
    await wanted.pause.write(replicas, queue, map_number)
    for section in sorted({*known.sections, *wanted.sections}):
        call = calls.Declare(queue, section, wanted.sections.get(section, ""), "", True, _new_call())
        await replicas.decide(call, map_number=map_number)


async def declare(
    everywhere: Everywhere,
    events: Events,
    cluster: str,
    queue: str,
    declared: Declared,
    read: Declared | None = None,
    *,
    at_start: bool = False,
) -> None:
    """Declare a section of the settings of a queue; report it if others were there before.

    ``at_start``: by the code of a program.  Nothing changes if that was declared before, and then no shard that is away
    is waited for; should that one have lacked it, the next program that starts declares it there.  Otherwise an
    operator changes them.  ``read``: the settings of the section that these replace, None: whatever is there.

    Raises ``ConfigError``, ``SettingsChanged``, ``Unavailable``: nothing happened; ``OutcomeUnknown``.
    """
    if isinstance(declared, Groups) and declared.named:
        check_feature(Feature.NAMED_GROUPS, everywhere.shards.first.replicas.level)
    change = await _Declaration(everywhere, queue, declared, read, at_start).make()
    before, now = (declared.of(settings) for settings in change)
    if before not in (type(declared)(), now):
        events.tell(LimitsChanged(cluster, queue, str(before), str(now)), logging.WARNING)
    elif now.settings != declared.settings:
        where = {"cluster": cluster, "queue": queue}
        _log.info(
            "queue %s: %s was declared before; since then it was changed to %s", queue, declared, now, extra=where
        )


class _Change(NamedTuple):
    """The settings of a section before a declaration and after it."""

    before: str
    now: str


class _Declaration:
    """Declare a section of the record of a queue on every shard."""

    def __init__(
        self, everywhere: Everywhere, queue: str, declared: Declared, read: Declared | None, at_start: bool
    ) -> None:
        self._everywhere = everywhere
        self._shards = everywhere.shards
        self._queue = queue
        self._section = SECTIONS[type(declared)]
        self._settings = declared.settings
        self._read, self._replaced = read, ""
        self._mark = mark_of(declared.settings) if at_start else ""
        self._needs_home = self._section in NEED_HOME
        self._change: _Change | None = None
        self._is_changed = False

    async def make(self) -> _Change:
        """Declare it; return what it was before, and what it is now."""
        shards = self._shards
        try:
            await shards.all_used()
        except Unavailable:
            if self._mark and (now := await self._known()) is not None:
                return _Change(now, now)
            raise
        if self._mark and len(shards.map.used) > 1 and await self._known() == "":
            return _Change("", "")  # taken away since, so the items of the queue need not go home
        with Changes() as changes:
            for _ in range(HOME_TRIES):
                leader = await self._lead() if self._needs_home else shards.first
                if self._read is not None and self._change is None:
                    self._replaced = f"={await self._as_read(leader.replicas, self._read)}"
                await self._everywhere.agree(leader, self._settings, self._write, self._now, changes)
                if self._needs_home and self._is_changed:
                    await self._raise_tokens(leader)
                if not self._needs_home or await self._is_at_home():
                    return self._change or _Change("", self._settings)
        raise OutcomeUnknown(f"others remove the limits of queue {self._queue!r} all the time; repeat")

    async def _known(self) -> str | None:
        """Return the present settings if this was declared before, None if not, or if that is not certain.  Raises
        ``Unavailable`` if the shard to ask is away."""
        shards, leader = self._shards, self._shards.first
        map = await shards.refresh()
        if self._needs_home:
            leader = await shards.home(self._queue)
        sections = (await read_shared(leader.replicas, self._queue)).sections
        now = sections.get(self._section, "")
        is_known = self._mark in marks_in(sections.get("marks", "")).get(self._section, ())
        return now if is_known and (not now or not self._needs_home or self._queue in map.homed) else None

    async def _lead(self) -> Shard:
        """Have the items of the queue go where its limits need them; return its home, which decides about them.

        What other shards have of it is not handed out there any more, once the section is declared there
        (``lua/claim.lua``), and comes home (``homing.py``).
        """
        shards, queue = self._shards, self._queue
        if len(shards.map.shards) == 1 and queue not in shards.map.homed:
            return shards.first
        if self._settings:
            await shards.keep_at_home([queue])
        return await shards.home(queue)

    async def _raise_tokens(self, home: Shard) -> None:
        """Have later claims at home follow, by their tokens, those that other shards have decided before."""
        if others := [shard.view.epoch for shard in await self._shards.all_used() if shard is not home]:
            await home.replicas.ask_for_map(0, after=max(others))

    async def _is_at_home(self) -> bool:
        """Tell whether the items of the queue go home, if it has a limit, whatever others have declared meanwhile."""
        shards, queue = self._shards, self._queue
        if not (self._change and self._change.now):
            await shards.let_spread(queue, self._has_limits)
            return True
        if len(shards.map.shards) == 1:
            return True
        is_changed, self._is_changed = self._is_changed, False
        return await shards.confirm_home(queue) if is_changed else queue in (await shards.refresh()).homed

    async def _has_limits(self, shard: Shard) -> bool:
        return (await read_shared(shard.replicas, self._queue)).needs_home

    async def _write(self, settings: str, replicas: Replicas) -> None:
        # What the shard that leads has decided holds on the others, whatever was declared there before.
        forced = not self._mark or settings != self._settings
        replaced, self._replaced = self._replaced, ""
        call = calls.Declare(self._queue, self._section, settings, self._mark, forced, _new_call(), replaced)
        decided = await replicas.decide(call)
        before, now = decided.reply.before.decode(), decided.reply.now.decode()
        if replaced and now != settings:
            raise SettingsChanged
        self._is_changed = self._is_changed or decided.again or before != now
        self._change = _Change(self._change.before if self._change else before, now)

    async def _as_read(self, replicas: Replicas, read: Declared) -> str:
        """Return the present settings as they are stored.  Raises ``SettingsChanged`` if others were read."""
        now = await self._now(replicas)
        if type(read).of(now) != read:
            raise SettingsChanged
        return now

    async def _now(self, replicas: Replicas) -> str:
        return (await read_shared(replicas, self._queue)).sections.get(self._section, "")


_log = logging.getLogger("zkrq")


def _new_call() -> str:
    return secrets.token_hex(4)
