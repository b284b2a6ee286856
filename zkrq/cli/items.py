"""Define the commands that look at items: get, peek and list."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from zkrq.base import clock
from zkrq.base.errors import ConfigError, Unavailable
from zkrq.base.saved import shown
from zkrq.cli.command import Command, Line, Lines, count, look_at, note_missing, open_cluster
from zkrq.cli.flags import Flag, Takes
from zkrq.client.results import reading
from zkrq.operations.items import ENDED, GET, HISTORY, ITEM, RESULT, RESULT_OF_ITEM
from zkrq.operations.kinds import Seconds
from zkrq.operations.queues import GROUP_FIGURES, GROUPS

if TYPE_CHECKING:
    from zkrq.base.progress import WorkProgress
    from zkrq.client.cluster import Cluster
    from zkrq.client.inspection import Statistics
    from zkrq.client.items import EndedItem, Failure, Item
    from zkrq.client.queue import Queue


_NO_NAMES: Mapping[str, str] = MappingProxyType({})

CLAIMS_SHOWN = 5
"""Claims of a group that are named."""


async def _get(args: Namespace) -> Lines:
    async with look_at(args) as cluster:
        await note_missing(cluster, args.queue)
        queue = cluster.queue(args.queue)
        item = await queue.get(args.id)
        if item is None:
            raise ConfigError(f"queue {args.queue!r} has no item {args.id!r}")
        waits = await _waits(queue, item)
        names = await describe_owners(cluster, [item])
    line = item_line(item, names)
    more = [*_about(item), *(f"waits: {reason}" for reason in waits)]
    more += [_failed(each) for each in item.last_failures if each.at]
    if item.saved is not None:
        more.append(f"saved: {json.dumps(shown(item.saved))}")
    more += [f"step {name}: {json.dumps(shown(value))}" for name, value in item.steps.items()]
    yield Line("\n  ".join((line.text, *more)), {**line.value, "waits": waits})


def _about(item: Item[Any]) -> list[str]:
    """Say what else is known of an item, in a few lines."""
    named = {"key": item.key, "group": item.group, "priority": item.priority or None}
    lines = ["  ".join(f"{name}: {value}" for name, value in named.items() if value is not None)]
    lines += [f"header {name}: {text}" for name, text in item.headers.items()]
    times = [f"pushed {item.pushed_at:%Y-%m-%d %H:%M:%S} UTC"]
    if item.seconds_left is not None:
        at = clock.now() + timedelta(seconds=item.seconds_left)
        what = "due" if item.state == "scheduled" else "claim ends, unless extended,"
        times.append(f"{what} in {item.seconds_left:,.1f} s, at {at:%Y-%m-%d %H:%M:%S} UTC")
    times += [] if item.expires_in is None else [f"expires in {item.expires_in:,.1f} s"]
    times += [f"{count(item.attempts, 'attempt')}, {item.failures:,} failed"] if item.attempts else []
    edited = [f"edited {item.edited.at:%Y-%m-%d %H:%M:%S} UTC by {item.edited.by}"] if item.edited else []
    return [*filter(None, lines), ", ".join(times), *edited]


LOOKED_AT = 500
"""Claimed items, and scheduled ones, that are looked at to tell what an item waits for."""


def paused(queue: str, told: Statistics) -> str:
    """Say that a queue is paused, and how it goes on."""
    return f"the queue is {told.pause}: `zkrq resume {queue}`"


async def _waits(queue: Queue[Any], item: Item[Any]) -> list[str]:
    """Say why nobody is given an item that is ready: a pause, a limit, or which items of its group hold that."""
    if item.state != "ready":
        return []
    told = await queue.statistics()
    reasons = [paused(queue.name, told)] if told.pause else []
    if told.limited:
        reasons.append(told.limited)
    limits = told.group_limits
    if item.group is None or not limits.settings:
        return reasons
    most, before = limits.limits_of(item.group).concurrency, len(reasons)
    held = [each for each in await queue.peek(LOOKED_AT, "claimed") if each.group == item.group]
    if most is not None and len(held) >= most:
        reasons += [f"{each.id} of its group {item.group!r} is claimed by {each.owner}" for each in held]
    if limits.ordered:
        failed = [each for each in await queue.peek(LOOKED_AT, "scheduled") if each.group == item.group]
        reasons += [
            f"{each.id} of its group {item.group!r} failed, and comes again in {each.seconds_left:.1f} s: {each.reason}"
            for each in failed
        ]
    if limits.rate and told.groups_blocked and len(reasons) == before:
        # What began lately in one group is counted on its server, and is no part of the statistics.
        reasons.append(f"perhaps the rate of its group ({limits}): {count(told.groups_blocked, 'group')} blocked")
    return reasons


async def describe_owners(cluster: Cluster, items: Iterable[Item[Any] | EndedItem]) -> Mapping[str, str]:
    """Return the descriptions of the consumers that hold these items, by owner id, of those that are known."""
    owners = {item.owner for item in items if item.owner}
    if not owners:
        return {}
    try:
        clients = await cluster.clients()
    except Unavailable:  # ZooKeeper does not answer; the ids say enough
        return {}
    names = {owner: clients.get(owner.partition(".")[0]) for owner in owners}
    return {owner: client.description for owner, client in names.items() if client}


async def _result(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        result = await reading(cluster.queue(args.queue)).result(args.id, timeout=args.timeout)
    value: bytes = result.value or b"null"
    shown = value.decode(errors="backslashreplace") if result.has_value else result.reason or ""
    held = f" by {result.owner}" if result.owner else ""
    text = f"{result.state}{held}{_progress(result.progress)}  {shown}".rstrip()
    yield Line(text, {**RESULT_OF_ITEM.tell(result), "result": shown})
    if result.state == "unknown":
        raise ConfigError(f"queue {args.queue!r} has no item {args.id!r}, or it ended too long ago")


async def _peek(args: Namespace) -> Lines:
    if args.state == "done":
        async for line in _ended(args):
            yield line
        return
    async with look_at(args) as cluster:
        await note_missing(cluster, args.queue)
        items = await cluster.queue(args.queue).peek(args.count, args.state, group=args.group)
        names = await describe_owners(cluster, items)
        for item in items:
            yield item_line(item, names)


async def _ended(args: Namespace) -> Lines:
    if args.group is not None:
        raise ConfigError(
            "--group lists ready items only: leave it out; --json has the group of each item that has ended"
        )
    async with look_at(args) as cluster:
        await note_missing(cluster, args.queue)
        queue = cluster.queue(args.queue)
        items = await queue.history(args.count)
        if not items and not (await queue.statistics()).history:
            raise ConfigError(
                f"queue {args.queue!r} keeps no history: `zkrq queues set {args.queue} --history 1000`, or the option "
                "history of its programs, which begins one"
            )
        names = await describe_owners(cluster, items)
    for item in items:
        took = "" if item.took is None else f" after {item.took:.1f} s by {names.get(item.owner or '', item.owner)}"
        why = f"  {item.reason}" if item.reason else ""
        yield Line(f"{item.id}  {item.state} {item.ended_at:%Y-%m-%d %H:%M:%S} UTC{took}{why}", ENDED.tell(item))


async def _groups(args: Namespace) -> Lines:
    async with look_at(args) as cluster:
        await note_missing(cluster, args.queue)
        queue = cluster.queue(args.queue)
        found, claimed = await queue.groups(args.count), await queue.peek(LOOKED_AT, "claimed")
        names = await describe_owners(cluster, claimed)
        limits = (await queue.statistics()).group_limits
    for group in found.groups:
        standing = "blocked by its rate" if group.is_held_by_rate(limits) else group.standing
        held = [item for item in claimed if item.group == group.name]
        oldest = "" if group.oldest is None else f", the next for {group.oldest:.1f} s"
        by = "; ".join(
            f"{item.id} by {names.get(item.owner or '', item.owner)} for {item.held_for or 0:.1f} s"
            for item in held[:CLAIMS_SHOWN]
        )
        held_by = [{"id": item.id, "owner": item.owner, "held_for": item.held_for} for item in held]
        text = f"{group.name}  {standing}  {group.waiting:,} wait{oldest}  {group.claimed:,} claimed"
        yield Line(f"{text}: {by}" if by else text, {**GROUP_FIGURES.tell(group), "held": held_by})
    if not found.whole:
        yield Line(f"the largest of {found.looked:,} groups; there are more", {"looked": found.looked})


def item_line(item: Item[Any], names: Mapping[str, str] = _NO_NAMES) -> Line:
    """Show an item.  ``names``: descriptions of consumers by owner id."""
    shown = repr(item.payload) if item.item is None else json.dumps(item.item)
    why = f"  {item.reason}" if item.reason else ""
    since = "" if item.held_for is None else f" for {item.held_for:.1f} s"
    name = names.get(item.owner or "", "")
    held = f" by {name} ({item.owner}){since}" if name else f" by {item.owner}{since}" if item.owner else ""
    content = {"item": item.item, "payload": item.payload.decode(errors="backslashreplace")}
    task = f" {item.task}" if item.task else ""
    text = f"{item.id}  {item.state}{task}{held}{_progress(item.progress)}  {shown}{why}"
    return Line(text, {**ITEM.tell(item), **content, "held_by": name or None})


def _failed(failure: Failure) -> str:
    at = f" {failure.at:%Y-%m-%d %H:%M:%S} UTC" if failure.at else ""
    where = f" on {failure.where}" if failure.where else ""
    took = "" if failure.took is None else f" after {failure.took:.1f} s"
    return f"failed{at}{where}{took}: {failure.reason or 'no reason is known'}"


def _progress(progress: WorkProgress | None) -> str:
    return f" ({progress})" if progress else ""


FIRST = Takes(HISTORY, called={"limit": "count"}, changed=(replace(HISTORY.by_name["limit"], default=10, absent="10"),))
# A shell may wait for any time.
ENDS = Takes(RESULT, changed=(replace(RESULT.by_name["timeout"], kind=Seconds(), default=10.0, absent="10"),))

_ALSO = (
    Flag("state", "ready, scheduled, claimed or dead; or done: what has ended last", str, "ready", "WORD"),
    Flag("group", "only ready items of this group", metavar="TEXT"),
)

COMMANDS = (
    Command("get", "show one item", _get, takes=Takes(GET)),
    Command("result", "wait until one item has ended, and show what became of it", _result, takes=ENDS),
    Command("peek", "show the first items in a state, without taking them", _peek, _ALSO, takes=FIRST),
    Command("list", "the same as peek", _peek, _ALSO, takes=FIRST),
    Command(
        "groups",
        "show the largest groups, and which claims block them",
        _groups,
        takes=Takes(GROUPS, called={"limit": "count"}),
    ),
)
