"""Declare the limits of a queue, which belong to the queue and not to a process.

They are a record of the queue (``lua/_limits.lua``), in a section for each kind.  A client whose program gives the
option declares its section once, before its first push or claim there.  The last declaration holds for all.

A limit is exact because one server decides, so a queue with limits needs a namespace of one shard.  If a shard is added
at the same time, its client first writes the shard into the map, then has the servers of the first shard ask for that
map, and only then looks for limits (``resharding.py``).  A declaration that it does not see was therefore decided under
a newer view, and the declaring client finds the new shard when it reads the map again.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING

from zkrq.base.checks import check_feature
from zkrq.base.errors import Changes
from zkrq.base.events import LimitsChanged
from zkrq.base.limits import Declared, Groups, History, Limits
from zkrq.protocol import calls
from zkrq.protocol.levels import Feature

if TYPE_CHECKING:
    from zkrq.base.events import Events
    from zkrq.client.shards import Shards

SECTIONS: Mapping[type[Declared], tuple[str, Feature]] = {
    Limits: ("limits", Feature.LIMITS),
    Groups: ("groups", Feature.GROUPS),
    History: ("history", Feature.HISTORY),
}
"""The section of each kind, and what it needs."""


async def declare_limits(shards: Shards, events: Events, cluster: str, queue: str, limits: Declared) -> None:
    """Declare the limits of a queue or of its groups, or its history; report it if others were declared before.

    Raises ``ConfigError`` in a namespace of several shards, ``Unavailable``: nothing happened; ``OutcomeUnknown``.
    """
    before = limits.of(await _declare(shards, queue, limits))
    if before not in (type(limits)(), limits):
        events.tell(LimitsChanged(cluster, queue, str(before), str(limits)), logging.WARNING)


async def _declare(shards: Shards, queue: str, declared: Declared) -> str:
    """Declare a section of the record of a queue; return what it was before."""
    (section, feature), settings = SECTIONS[type(declared)], declared.settings
    await shards.all_used()
    if settings:
        shards.check_alone(queue)
    first = shards.first.replicas
    check_feature(feature, first.level)
    with Changes() as changes:
        decided = await first.decide(calls.Declare(queue, section, settings, secrets.token_hex(4)))
        changes.made = 1
        await shards.all_used()
        if settings and len(shards.map.shards) > 1:
            await first.decide(calls.Declare(queue, section, "", secrets.token_hex(4)))
            changes.made = 0
            shards.check_alone(queue)
    return decided.reply.before.decode()
