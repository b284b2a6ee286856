"""Name everything that zkrq keeps in a Redis server.

All keys of a namespace carry its hash tag, ``{namespace}``.  Per server: ``server`` (a hash: generation, epoch, name)
and ``queues`` (a set of the queues that had an item here, or a consumer).  Per queue, under ``q:<queue>:``:

=============== ====== ===============================================================================
records         hash   bundle -> shift (records.py) and packed record
payloads        hash   bundle -> encoded items (payloads.py)
notes           hash   item -> its last failures; of a removed item its result
ready           zset   bundles, and items with a moment of their own, by priority and due time
scheduled       zset   the same, due later by this server's clock
members         zset   group, zero byte, rank, entry, by name: what is due in a group beside its first entry;
                       behind these a byte 254, kind, flow, zero byte, bundle: what there is of flows
groups          hash   group -> number of its claimed items, whether members may have entries of it, and
                       rank and entry of its first, which stands in ready
claimed         zset   bundles by an early bound of their first deadline
holdings        zset   token, zero byte, bundle, by name: what a claim request was given, what an owner holds
dead            zset   items by time of death
recent          zset   items that have ended last, dead letters among them, by the time of their end; of as many as the
                       queue's history has
tombstones      list   (time of the burial, time of the push, version, bytes, bundle) of what was removed, oldest first
keys            hash   key -> id of the item that has it, as long as that is queued or claimed (several
                       where the copies of two servers met)
expiring        zset   ids of items with a time to live by when that ends; negative while they are claimed
owners          hash   owner -> number of its last claim request
fenced_owners   zset   dead owners by the time when they were fenced; forgotten after 10 minutes
lead            hash   since when this server leads the queue; floor_ms, before which no put is taken; whether
                       payloads are large; how many items are queued, claimed and dead, and were ever
                       removed; the calls executed last of those that name no items; which channels wait
                       for the end of which items
waiting         zset   channels of waiting consumers by when they last asked; forgotten after a minute
reports         hash   item -> what the holder of its claim has reported of its progress, on the primary only; all
                       are dropped together where there are too many
aside           hash   bundle -> all that was stored of it, damaged, and why it was set aside (``lua/_damage.lua``);
                       nothing removes it but an operator, a deletion, or a good copy that turns up
figures         hash   what handlers did, by minutes and hours (``lua/_figures.lua``), on the two servers that come
                       first for the queue; goes with the queue, and by itself 35 days after the last report
=============== ====== ===============================================================================

Channels: ``{namespace}:topic:<deployment>:<topic>`` and ``{namespace}:wake:<deployment>:<owner>``.  They name the
deployment because Redis' channels are the same in every database of a server.
"""

from __future__ import annotations

from zkrq.protocol.scripts import SCRIPTS

_WAKE_DIGITS = 8
"""Characters of the deployment in the name of a wake-up channel; an owner id is hardly ever given twice anyway."""

_SERVER_KEYS = frozenset({"server", "queues"})


def key(namespace: str, queue: str, name: str) -> str:
    """Return the key that a script's header calls ``name``."""
    if name in _SERVER_KEYS:
        return f"{{{namespace}}}:{name}"
    return f"{{{namespace}}}:q:{queue}:{name}"


def topic_channel(namespace: str, deployment: str, topic: str) -> str:
    """Return the channel of a topic."""
    return f"{{{namespace}}}:topic:{deployment}:{topic}"


def wake_channel(namespace: str, deployment: str, owner: str) -> str:
    """Return the channel of an owner id, as short as it can be because each claim request may name it.

    ``deployment``: empty where there is no view yet.
    """
    return f"{{{namespace}}}:wake:{deployment[:_WAKE_DIGITS]}:{owner}"


def script_keys(namespace: str, queue: str, script: str) -> tuple[str, ...]:
    """Return the KEYS of a script, in the order of its header."""
    return tuple(key(namespace, queue, name) for name in SCRIPTS[script].keys)
