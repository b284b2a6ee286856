"""Define the commands that remove items, or have them delivered again or now: cancel, clear, delete, dead, advance."""

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from zkrq.base.errors import ConfigError, ZkrqError
from zkrq.cli.asking import YES, confirm
from zkrq.cli.command import Command, Incomplete, Line, Lines, count, note_missing, open_cluster
from zkrq.cli.conditions import EVERY, FLAGS, conditions
from zkrq.cli.flags import QUEUE, Flag, Takes
from zkrq.cli.forms import CODEC, form_of, raw_queue
from zkrq.cli.items import paused
from zkrq.cli.progress import follow, progress
from zkrq.client.administration import Cancellation
from zkrq.client.bulk import DEEDS, Bulk
from zkrq.client.missing import find_missing
from zkrq.operations.items import EDIT

if TYPE_CHECKING:
    from zkrq.client.queue import Queue

REPEAT = "repeat the command for the rest: what is done is not done again"
"""Says how to go on after a part was done."""


def _counter(queue: Queue[Any], *states: str) -> Callable[[], Awaitable[int]]:
    """Return the function that counts the items in these states."""

    async def count_items() -> int:
        sizes = await queue.size()
        return sum(getattr(sizes, state) for state in states)

    return count_items


async def _clear(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        await note_missing(cluster, args.queue)
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
        await note_missing(cluster, args.queue)
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
        await note_missing(cluster, args.queue)
        queue = cluster.queue(args.queue)
        if args.id:
            outcomes = dict(zip(args.id, await queue.cancel_many(args.id), strict=True))
            for id, outcome in outcomes.items():
                if outcome:
                    owner = ", and the consumer that holds it is notified" if outcome is Cancellation.SIGNALLED else ""
                    yield Line(f"{id}  cancelled{owner}", {"id": id, "outcome": outcome.value})
            _complain(args, [id for id, outcome in outcomes.items() if not outcome])
            return
        bulk = await _change_found(args, queue, "cancel", "cancel {items} of {place}{held}")
    yield Line(
        f"{_count_changed(bulk)} cancelled{_of_them_claimed(bulk.claimed)}",
        {"cancelled": bulk.changed, "claimed": bulk.claimed},
    )


async def _advance(args: Namespace) -> Lines:
    if bool(args.id) == bool(args.given):
        raise ConfigError(f"advance needs either ids, or at least one of {FLAGS}")
    async with open_cluster(args) as cluster:
        await note_missing(cluster, args.queue)
        queue = cluster.queue(args.queue)
        if args.id:
            advanced = await queue.advance(args.id)
            said = count(advanced, "item")
            missing = await _find_left(args, queue, advanced, "not scheduled, no retry")
        else:
            bulk = await _change_found(args, queue, "advance", "have {items} of {place} ready now")
            advanced, said, missing = bulk.changed, _count_changed(bulk), []
        await _note_pause(queue, advanced)
    yield Line(f"{said} ready", {"advanced": advanced})
    _complain(args, missing)


async def _find_left(args: Namespace, queue: Queue[Any], changed: int, why: str) -> list[str]:
    """Return the ids that were given and of which the queue has no item; say how many other items stay as they are."""
    missing = await find_missing(queue, args.id, changed)
    if (left := len(set(args.id)) - len(missing) - changed) > 0:
        sys.stderr.write(f"{count(left, 'item')} left as before: {why}\n")
    return missing


async def _note_pause(queue: Queue[Any], changed: int) -> None:
    """Say on stderr if items that are ready by now are not claimed, because the queue is paused."""
    if changed and (told := await queue.statistics()).pause:
        sys.stderr.write(f"none of these is claimed yet: {paused(queue.name, told)}\n")


def _complain(args: Namespace, missing: Sequence[str]) -> None:
    """Raise ``ConfigError`` if the queue has no items of some ids that were given."""
    if missing:
        raise ConfigError(f"queue {args.queue!r} has no item {', '.join(map(repr, missing))}")


async def _change_found(args: Namespace, queue: Queue[Any], deed: str, question: str, **options: Any) -> Bulk:
    """Do something with all items that the flags find, after a question that says how many there are.

    Those that come after they were counted are left alone.  Raises ``Incomplete`` if a part was done.
    """
    bulk = Bulk(queue, deed, args.given, **options)
    counted = None
    if not args.yes:
        with progress("found") as show:
            counted = await bulk.count(show=show)
        if not counted.items:
            return bulk
        items = count(counted.items, "dead letter" if DEEDS[deed].state == "dead" else "item")
        place = f"queue {queue.name!r} in {queue.cluster!r}"
        await confirm(args, question.format(items=items, place=place, held=_of_them_claimed(counted.claimed)))
    try:
        with progress("changed", counted and counted.items) as show:
            await bulk.run(show)
    except asyncio.CancelledError:
        sys.stderr.write(f"stopped: {_count_changed(bulk)} changed; {REPEAT}\n")
        raise
    except ZkrqError as error:
        raise Incomplete(f"{_count_changed(bulk)} changed; then: {error}; {REPEAT}") from error
    return bulk


def _count_changed(bulk: Bulk) -> str:
    return f"{'at least ' if bulk.is_least else ''}{count(bulk.changed, 'item')}"


def _of_them_claimed(number: int) -> str:
    return f", {number:,} of them claimed" if number else ""


async def _dead_redrive(args: Namespace) -> Lines:
    _check_either(args)
    missing: list[str] = []
    async with open_cluster(args) as cluster:
        await note_missing(cluster, args.queue)
        queue = cluster.queue(args.queue)
        if args.given:
            bulk = await _change_found(args, queue, "redrive", "redrive {items} of {place}", rate=args.rate)
            revived, said = bulk.changed, _count_changed(bulk)
        else:
            async with follow("redriven", _counter(queue, "dead")):
                revived = await queue.redrive(args.id or None, rate=args.rate)
            said = count(revived, "item")
            if args.id:
                missing = await _find_left(args, queue, revived, "no dead letter, or another item has its key")
        await _note_pause(queue, revived)
    yield Line(f"{said} redriven", {"redriven": revived})
    _complain(args, missing)


async def _dead_edit(args: Namespace) -> Lines:
    item = form_of(args.codec).read(args.item.encode(errors="surrogateescape"), "ITEM")
    async with open_cluster(args) as cluster:
        queue = raw_queue(cluster, args.queue)
        redriven = await queue.edit(args.id, item, by=args.given.get("by"))
        if not redriven:
            _complain(args, await find_missing(queue, [args.id]))
    if not redriven:
        raise Incomplete(f"item {args.id!r} was not changed: it is no dead letter, or another item has its key")
    yield Line(f"{args.id}  edited and redriven", {"id": args.id, "redriven": True})


async def _dead_discard(args: Namespace) -> Lines:
    _check_either(args)
    missing: list[str] = []
    async with open_cluster(args) as cluster:
        await note_missing(cluster, args.queue)
        queue = cluster.queue(args.queue)
        if args.given:
            bulk = await _change_found(args, queue, "discard", "discard {items} of {place}")
            removed, said = bulk.changed, _count_changed(bulk)
        else:
            left = _counter(queue, "dead")
            missing = await find_missing(queue, args.id)  # before it, as discarded letters are gone
            found = len(set(args.id)) - len(missing)
            if not found:
                _complain(args, missing)
            letters = count(found if args.id else await left(), "dead letter")
            await confirm(args, f"discard {letters} of queue {args.queue!r} in {cluster.namespace!r}")
            async with follow("discarded", left):
                removed = await queue.discard(args.id or None)
            said = count(removed, "item")
    yield Line(f"{said} discarded", {"removed": removed})
    _complain(args, missing)


def _check_either(args: Namespace) -> None:
    """Raise ``ConfigError`` if both ids and conditions are given; without either, all dead letters are meant."""
    if args.given and args.id:
        raise ConfigError(f"give either ids, or one of {FLAGS}")


_IDS = "ids of the items; default: all"

COMMANDS = (
    Command(
        "cancel",
        "cancel items: remove them in any state, and stop their handlers; by id, or those that are found",
        _cancel,
        (YES,),
        {"id?...": "ids of the items; default: those that the flags find"},
        takes=conditions("state", *EVERY),
    ),
    Command(
        "advance",
        "run now: have scheduled items, and those that wait for their next attempt, be ready immediately",
        _advance,
        (YES,),
        {"id?...": "ids of the items; default: those that the flags find"},
        takes=conditions(*EVERY),
    ),
    Command("clear", "remove every item that is not claimed", _clear, (YES,), takes=conditions("group")),
    Command("delete", "remove a queue: every item in any state, and all that is stored of it", _delete, (YES,), QUEUE),
    Command(
        "dead redrive",
        "redrive dead letters: queue them again, with no attempts",
        _dead_redrive,
        (Flag("rate", "at most this many per second", float, None, "N", absent="no limit"), YES),
        {"id?...": _IDS},
        takes=conditions(*EVERY),
    ),
    Command(
        "dead edit",
        "give a dead letter another content, and redrive it",
        _dead_edit,
        (CODEC,),
        {"item": "the item as JSON (with --codec raw: as it is)"},
        takes=Takes(EDIT),
    ),
    Command(
        "dead discard",
        "discard dead letters: they are gone",
        _dead_discard,
        (YES,),
        {"id?...": _IDS},
        takes=conditions(*EVERY),
    ),
)
