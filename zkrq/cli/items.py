"""Define the commands that look at items: get, peek and list."""

from __future__ import annotations

import dataclasses
import json
from argparse import Namespace
from typing import TYPE_CHECKING, Any, cast

from zkrq.base.errors import ConfigError
from zkrq.cli.command import QUEUE, Command, Flag, Line, Lines, open_cluster
from zkrq.client.results import reading

if TYPE_CHECKING:
    from zkrq.base.progress import WorkProgress
    from zkrq.client.items import Item
    from zkrq.client.queue import Queue


async def _get(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        queue = cluster.queue(args.queue)
        item = await queue.get(args.id)
        if item is None:
            raise ConfigError(f"queue {args.queue!r} has no item {args.id!r}")
        waits = await _waits(queue, item)
    line = item_line(item)
    value = {**cast("dict[str, object]", line.value), "waits": waits}
    yield Line(line.text + "".join(f"\n  waits: {reason}" for reason in waits), value)


LOOKED_AT = 500
"""Claimed items, and scheduled ones, that are looked at to tell what an item waits for."""


async def _waits(queue: Queue[Any], item: Item[Any]) -> list[str]:
    """Say why nobody is given an item that is ready: a pause, a limit, or which items of its group hold that."""
    if item.state != "ready":
        return []
    told = await queue.statistics()
    reasons = ["the queue is paused: `zkrq resume`"] if told.paused else []
    if told.limited:
        reasons.append(told.limited)
    limits = told.group_limits
    if item.group is None or not (limits.ordered or limits.concurrency):
        return reasons
    held = [each for each in await queue.peek(LOOKED_AT, "claimed") if each.group == item.group]
    if len(held) >= (1 if limits.ordered else limits.concurrency or 0):
        reasons += [f"{each.id} of its group {item.group!r} is claimed by {each.owner}" for each in held]
    if limits.ordered:
        failed = [each for each in await queue.peek(LOOKED_AT, "scheduled") if each.group == item.group]
        reasons += [
            f"{each.id} of its group {item.group!r} failed, and comes again in {each.seconds_left:.1f} s: {each.reason}"
            for each in failed
        ]
    return reasons


async def _result(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        result = await reading(cluster.queue(args.queue)).result(args.id, timeout=args.timeout)
    value: bytes = result.value or b"null"
    shown = value.decode(errors="backslashreplace") if result.has_value else result.reason or ""
    held = f" by {result.owner}" if result.owner else ""
    told = {"id": result.id, "state": result.state.value, "has_result": result.has_value, "result": shown}
    told |= {"reason": result.reason, "owner": result.owner, "progress": _value(result.progress)}
    yield Line(f"{result.state}{held}{_progress(result.progress)}  {shown}".rstrip(), told)
    if result.state == "unknown":
        raise ConfigError(f"queue {args.queue!r} has no item {args.id!r}, or it ended too long ago")


async def _peek(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        for item in await cluster.queue(args.queue).peek(args.count, args.state, group=args.group):
            yield item_line(item)


def item_line(item: Item[Any]) -> Line:
    """Show an item."""
    shown = repr(item.payload) if item.item is None else json.dumps(item.item)
    why = f"  {item.reason}" if item.reason else ""
    held = f" by {item.owner}" if item.owner else ""
    moments = {"pushed_at": item.pushed_at.isoformat(), "died_at": item.died_at and item.died_at.isoformat()}
    value = {**dataclasses.asdict(item), "payload": item.payload.decode(errors="backslashreplace"), **moments}
    value["progress"] = _value(item.progress)
    return Line(f"{item.id}  {item.state}{held}{_progress(item.progress)}  {shown}{why}", value)


def _progress(progress: WorkProgress | None) -> str:
    return f" ({progress})" if progress else ""


def _value(progress: WorkProgress | None) -> dict[str, object] | None:
    """Return the progress of the work as a value for ``--json``."""
    return progress and {"fraction": progress.fraction, "text": progress.text, "age": progress.age}


_FIRST = (
    Flag("count", "at most this many items, up to 500", int, 10, "N"),
    Flag("state", "ready, scheduled, claimed or dead", str, "ready"),
    Flag("group", "only ready items of this group"),
)

COMMANDS = (
    Command("get", "show one item", _get, arguments={**QUEUE, "id": "the item's id"}),
    Command(
        "result",
        "wait until one item has ended, and show what became of it",
        _result,
        (Flag("timeout", "seconds to wait", float, 10.0, "S"),),
        {**QUEUE, "id": "the item's id"},
    ),
    Command("peek", "show the first items in a state, without taking them", _peek, _FIRST, QUEUE),
    Command("list", "the same as peek", _peek, _FIRST, QUEUE),
)
