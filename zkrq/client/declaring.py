"""Declare settings that belong to a queue, and not to a process: its limits.

They are a record of the queue (``lua/_limits.lua``), in a section for each kind.  A client whose program gives the
option declares its section once, before its first push or claim there.  The last declaration holds for all.

A limit is exact because one server decides, so a queue with limits needs a namespace of one shard.  A shard that is
added meanwhile is in the map before the servers of the first one are told to ask for that map; only then whoever adds
it looks for limits (``resharding.py``).  So a declaration that it does not see was decided under a newer view, and its
client finds the shard when it looks at the map again.
"""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING

from zkrq.base.events import LimitsChanged
from zkrq.base.limits import Limits
from zkrq.protocol import calls

if TYPE_CHECKING:
    from zkrq.base.events import Events
    from zkrq.client.shards import Shards

LIMITS = "limits"
"""The section of ``Limits``."""


async def declare_limits(shards: Shards, events: Events, cluster: str, queue: str, limits: Limits) -> None:
    """Declare the limits of a queue, and report it if that changes what was declared before.

    Raises ``ConfigError`` in a namespace of several shards, ``Unavailable``: nothing happened; ``OutcomeUnknown``.
    """
    before = Limits.of(await _declare(shards, queue, LIMITS, limits.settings))
    if before not in (Limits(), limits):
        events.tell(LimitsChanged(cluster, queue, str(before), str(limits)), logging.WARNING)


async def _declare(shards: Shards, queue: str, section: str, settings: str) -> str:
    """Declare a section of the record of a queue; return what it was before."""
    await shards.all_used()
    if settings:
        shards.check_alone(queue)
    first = shards.first.replicas
    decided = await first.decide(calls.Declare(queue, section, settings, secrets.token_hex(4)))
    await shards.all_used()
    if settings and len(shards.map.shards) > 1:
        await first.decide(calls.Declare(queue, section, "", secrets.token_hex(4)))
        shards.check_alone(queue)
    return decided.reply.before.decode()
