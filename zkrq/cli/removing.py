"""Define the commands that remove items, or have them delivered again or now: cancel, clear, delete, dead, advance."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from zkrq.base.errors import ConfigError
from zkrq.cli.asking import YES, confirm
from zkrq.cli.command import Command, Line, Lines, count, open_cluster
from zkrq.cli.conditions import EVERY, FLAGS, conditions, counted, found_ids, may_be_more
from zkrq.cli.flags import QUEUE, Flag
from zkrq.cli.progress import follow, progress

if TYPE_CHECKING:
    from zkrq.client.queue import Queue

CANCELLED_AT_ONCE = 1_500
"""Items that are cancelled between two updates of the progress."""


def _counter(queue: Queue[Any], *states: str) -> Callable[[], Awaitable[int]]:
    """Return the function that counts the items in these states."""

    async def count_items() -> int:
        sizes = await queue.size()
        return sum(getattr(sizes, state) for state in states)

    return count_items


async def _clear(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        queue = cluster.queue(args.queue)
        left = _counter(queue, "ready", "scheduled")
        named = f"of group {args.group!r} " if args.group else ""
        items = f"the items {named}" if named else f"{count(await left(), 'item')} "
        await confirm(args, f"remove {items}of queue {args.queue!r} in {cluster.namespace!r}")
        async with follow("removed", left):
            removed = await queue.clear(group=args.group)
    yield Line(f"{count(removed, 'item')} removed", {"removed": removed})


async def _delete(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        queue = cluster.queue(args.queue)
        left = _counter(queue, "ready", "scheduled", "claimed", "dead")
        items = count(await left(), "item")
        await confirm(args, f"delete queue {args.queue!r} in {cluster.namespace!r} with {items}, claimed ones included")
        async with follow("removed", left):
            removed = await queue.delete()
    yield Line(f"queue {args.queue!r} is deleted: {count(removed, 'item')} removed", {"removed": removed})


async def _cancel(args: Namespace) -> Lines:
    if bool(args.id) == bool(args.given.keys() - {"state"}):
        raise ConfigError(f"cancel needs either ids, or at least one of {FLAGS}")
    async with open_cluster(args) as cluster:
        queue = cluster.queue(args.queue)
        if args.id:
            outcomes = dict(zip(args.id, await queue.cancel_many(args.id), strict=True))
            for id, outcome in outcomes.items():
                if outcome:
                    yield Line(outcome.value, {"id": id, "outcome": outcome.value})
            if missing := [id for id, outcome in outcomes.items() if not outcome]:
                raise ConfigError(f"queue {args.queue!r} has no item {', '.join(map(repr, missing))}")
            return
        states = await found_ids(queue, **args.given)
        if states:
            held = _of_them_claimed([*states.values()].count("claimed"))
            await confirm(args, f"cancel {counted(states)} of queue {args.queue!r} in {cluster.namespace!r}{held}")
        cancelled, claimed = await _cancel_all(queue, [*states])
    text = f"{count(cancelled, 'item')} cancelled{_of_them_claimed(claimed)}{may_be_more(states)}"
    yield Line(text, {"cancelled": cancelled, "claimed": claimed})


async def _advance(args: Namespace) -> Lines:
    if bool(args.id) == bool(args.given):
        raise ConfigError(f"advance needs either ids, or at least one of {FLAGS}")
    async with open_cluster(args) as cluster:
        queue = cluster.queue(args.queue)
        states = dict.fromkeys(args.id, "") if args.id else await found_ids(queue, **args.given, state="scheduled")
        if states and not args.id:
            await confirm(args, f"have {counted(states)} of queue {args.queue!r} in {cluster.namespace!r} ready now")
        async with follow("ready", _counter(queue, "scheduled")):
            advanced = await queue.advance([*states])
    more = "" if args.id else may_be_more(states)
    yield Line(f"{count(advanced, 'item')} ready{more}", {"advanced": advanced})


async def _cancel_all(queue: Queue[Any], ids: list[str]) -> tuple[int, int]:
    """Cancel items; return how many there were, and how many of them were claimed."""
    cancelled = claimed = 0
    with progress("cancelled", len(ids)) as show:
        for start in range(0, len(ids), CANCELLED_AT_ONCE):
            outcomes = await queue.cancel_many(ids[start : start + CANCELLED_AT_ONCE])
            cancelled += sum(map(bool, outcomes))
            claimed += sum(outcome.value == "signalled" for outcome in outcomes)
            show(start + len(outcomes))
    return cancelled, claimed


def _of_them_claimed(number: int) -> str:
    return f", {number:,} of them claimed" if number else ""


async def _dead_redrive(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        queue = cluster.queue(args.queue)
        left = _counter(queue, "dead")
        ids, letters, more = await _letters(args, queue, left)
        if args.given and ids:
            await confirm(args, f"queue {letters} of queue {args.queue!r} in {cluster.namespace!r} again")
        async with follow("queued again", left):
            revived = await queue.redrive(ids, rate=args.rate)
    yield Line(f"{count(revived, 'item')} queued again{more}", {"redriven": revived})


async def _dead_discard(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        queue = cluster.queue(args.queue)
        left = _counter(queue, "dead")
        ids, letters, more = await _letters(args, queue, left)
        if ids != []:
            await confirm(args, f"remove {letters} of queue {args.queue!r} in {cluster.namespace!r}")
        async with follow("removed", left):
            removed = await queue.discard(ids)
    yield Line(f"{count(removed, 'item')} removed{more}", {"removed": removed})


async def _letters(
    args: Namespace, queue: Queue[Any], left: Callable[[], Awaitable[int]]
) -> tuple[list[str] | None, str, str]:
    """Return the ids of the dead letters that are meant, None: all; their number, and whether there may be more."""
    if args.given:
        if args.id:
            raise ConfigError(f"give either ids, or one of {FLAGS}")
        states = await found_ids(queue, **args.given, state="dead")
        return [*states], counted(states, "dead letter"), may_be_more(states)
    return args.id or None, count(len(args.id) or await left(), "dead letter"), ""


_IDS = "ids of the items; default: all"

COMMANDS = (
    Command(
        "cancel",
        "remove items in any state, and stop their handlers: by id, or those that are found",
        _cancel,
        (YES,),
        {"id?...": "ids of the items; default: those that the flags find"},
        takes=conditions("state", *EVERY),
    ),
    Command(
        "advance",
        "have scheduled items, and those that wait for their next attempt, be ready immediately",
        _advance,
        (YES,),
        {"id?...": "ids of the items; default: those that the flags find"},
        takes=conditions(*EVERY),
    ),
    Command("clear", "remove every item that is not claimed", _clear, (YES,), takes=conditions("group")),
    Command("delete", "remove a queue: every item in any state, and all that is stored of it", _delete, (YES,), QUEUE),
    Command(
        "dead redrive",
        "queue dead letters again",
        _dead_redrive,
        (Flag("rate", "at most this many per second", float, None, "N", absent="no limit"), YES),
        {"id?...": _IDS},
        takes=conditions(*EVERY),
    ),
    Command("dead discard", "remove dead letters", _dead_discard, (YES,), {"id?...": _IDS}, takes=conditions(*EVERY)),
)
