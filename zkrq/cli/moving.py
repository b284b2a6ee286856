"""Define the commands that copy items: move dead, export, import.

A dead letter that is moved is removed only when every in-sync server has its copy.  Both a move and an import may be
repeated: what was pushed before is known by its id.
"""

from __future__ import annotations

import asyncio
import json
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from zkrq.base.errors import ConfigError, QueueFull, Receipt, ZkrqError
from zkrq.base.limits import QueueSettings
from zkrq.cli.command import Command, Incomplete, Line, Lines, count, note_missing, open_cluster
from zkrq.cli.conditions import EVERY, conditions
from zkrq.cli.flags import QUEUE, Flag
from zkrq.cli.forms import raw_queue
from zkrq.cli.progress import progress
from zkrq.cli.stdin import stdin_lines
from zkrq.client.changing import differing, write_settings
from zkrq.client.copies import (
    Copy,
    each_exported,
    exported,
    exported_settings,
    id_of_moved,
    imported,
    imported_settings,
    in_sequence,
)
from zkrq.client.queue import push_encoded

if TYPE_CHECKING:
    from zkrq.client.items import Item
    from zkrq.client.queue import Queue
    from zkrq.operations.push import PushOptions

AT_ONCE = 100
"""Items that are pushed together."""


# -- move --------------------------------------------------------------------------------------------------------------


class Moved(NamedTuple):
    """``moved``: letters that the other queue has, and the first one no longer.  ``kept``: their key is taken there."""

    moved: int = 0
    kept: int = 0


async def move_letters(source: Queue[bytes], target: Queue[bytes], **conditions: Any) -> AsyncGenerator[Moved]:
    """Move the dead letters that meet the conditions (see ``Queue.find``); yield what was done with each page of them.

    Payload, headers, key, group, priority and what was saved are kept; a copy is ready immediately, and starts with no
    attempts.  A letter stays if another item in the other queue has its key, and so does one that stands for an inner
    flow.  If this fails or is cancelled, a letter
    is in its queue, in the other one, or in both; moving again moves the rest, and removes those that are in both.
    Raises what ``push`` and ``discard`` do.
    """
    after: str | None = None
    while True:
        page = await source.find_page(**conditions, state="dead", limit=AT_ONCE, after=after)
        letters = list({letter.id: letter for letter in page.items if letter.nested is None}.values())
        outcomes = await asyncio.gather(
            *(_copy(source.name, letter, target) for letter in letters), return_exceptions=True
        )
        receipts = {
            letter.id: outcome
            for letter, outcome in zip(letters, outcomes, strict=True)
            if not isinstance(outcome, BaseException)
        }
        there = [id for id, receipt in receipts.items() if not receipt.duplicate]
        moved = await source.discard(there) if there else 0
        yield Moved(moved, len(receipts) - len(there))
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        if page.next is None:
            return
        after = page.next


async def _copy(queue: str, letter: Item[bytes], target: Queue[bytes]) -> Receipt:
    return await _push(
        target,
        letter.payload,
        letter.saved_bytes,
        id=id_of_moved(queue, letter),
        key=letter.key,
        group=letter.group,
        priority=letter.priority,
        headers=letter.headers,
        task=letter.task,
    )


async def _push(queue: Queue[bytes], payload: bytes, saved: bytes | None, **options: Unpack[PushOptions]) -> Receipt:
    """Push a copy, with what was saved of the item."""
    if saved is None:
        return await queue.push(payload, **options)
    return await push_encoded(queue, payload, saved=saved, **options)


async def _move_dead(args: Namespace) -> Lines:
    if args.queue == args.to:
        raise ConfigError(f"{args.to!r} is the same queue: zkrq dead redrive {args.to} queues its dead letters again")
    moved = kept = 0
    async with open_cluster(args) as cluster:
        await note_missing(cluster, args.queue)
        source, target = raw_queue(cluster, args.queue), raw_queue(cluster, args.to)
        with progress("moved", (await source.size()).dead) as show:
            try:
                async for some in move_letters(source, target, **args.given):
                    moved, kept = moved + some.moved, kept + some.kept
                    show(moved)
            except ZkrqError as error:
                again = "repeat the command: the rest is moved, and no letter is lost"
                raise _stopped(_said_moved(moved, kept, args.to), error, args.to, again) from error
    yield Line(_said_moved(moved, kept, args.to), {"moved": moved, "kept": kept})


def _said_moved(moved: int, kept: int, to: str) -> str:
    stayed = f"; {count(kept, 'dead letter')} stayed, because another item has the key there" if kept else ""
    return f"{count(moved, 'dead letter')} moved to {to!r}{stayed}"


def _stopped(done: str, failure: ZkrqError, queue: str, again: str) -> ZkrqError:
    """Return the error of a command that pushes into a queue and has stopped: what was done, why, and how to go on."""
    is_full = isinstance(failure, QueueFull)
    room = f"let consumers take items, or `zkrq queues set {queue} --max-size N`; then " if is_full else ""
    kind = ConfigError if isinstance(failure, ConfigError) else Incomplete
    return kind(f"{done}; then: {failure}; {room}{again}")


# -- export ------------------------------------------------------------------------------------------------------------


async def _export(args: Namespace) -> Lines:
    claimed = written = 0
    async with open_cluster(args) as cluster:
        await note_missing(cluster, args.queue)
        queue = raw_queue(cluster, args.queue)
        if (settings := await queue.settings()) != QueueSettings():
            value = exported_settings(args.queue, settings)
            yield Line(json.dumps(value), value)
        with progress("exported", hidden=sys.stdout.isatty()) as show:
            async for item in each_exported(queue, args.given):
                value = exported(item)
                yield Line(json.dumps(value), value)
                claimed, written = claimed + (item.state == "claimed"), written + 1
                show(written)
    if claimed:
        sys.stderr.write(f"claimed items among these: {claimed:,}; import pushes a copy of each\n")


# -- import ------------------------------------------------------------------------------------------------------------


async def push_copies(queue: Queue[bytes], copies: Sequence[Copy]) -> tuple[Counter[str], ZkrqError | None]:
    """Push copies together; return what became of them, and the first error."""
    pushes = (
        _push(queue, copy.payload, copy.saved, id=copy.id, at=copy.due_at, ttl=copy.ttl, **copy.options)
        for copy in copies
    )
    outcomes = await asyncio.gather(*pushes, return_exceptions=True)
    told, failure = Counter[str](), None
    for outcome in outcomes:
        if isinstance(outcome, ZkrqError):
            failure = failure or outcome
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            told[_outcome(outcome)] += 1
    return told, failure


def _outcome(receipt: Receipt) -> str:
    if receipt.duplicate:
        return "key taken"
    if receipt.done:
        return "done"
    return "there" if receipt.new is False else "pushed"


_SAID = {
    "pushed": "pushed",
    "there": "there already",
    "done": "pushed before and done",
    "key taken": "left out, because another item has the key",
    "dead": "left out, because they are dead letters (--dead pushes them)",
    "over": "left out, because their ttl has ended",
}
"""What is said of each outcome."""


async def _copies_of(
    lines: AsyncGenerator[list[bytes], None], told: Counter[str], *, with_dead: bool
) -> AsyncGenerator[list[Copy]]:
    """Yield the copies that lines make, some at a time; count those that are left out.  Settings are passed over."""
    read = 0
    async for some in lines:
        copies = [
            imported(line, f"line {n}")
            for n, line in enumerate(some, read + 1)
            if line.strip() and imported_settings(line) is None
        ]
        read += len(some)
        told["dead"] += sum(copy.state == "dead" for copy in copies if not with_dead)
        wanted = [copy for copy in copies if with_dead or copy.state != "dead"]
        told["over"] += sum(copy.is_over for copy in wanted)
        yield [copy for copy in wanted if not copy.is_over]


async def _together(copies: AsyncGenerator[list[Copy]], *, ordered: bool) -> AsyncGenerator[list[Copy]]:
    """Yield the copies that are pushed together.  In a queue that keeps an order those of a group follow one another;
    the order is known only once all lines were read, because an export is not sorted."""
    if ordered:
        for together in in_sequence([copy async for some in copies for copy in some], AT_ONCE):
            yield together
        return
    async for wanted in copies:
        for start in range(0, len(wanted), AT_ONCE):
            yield wanted[start : start + AT_ONCE]


async def _begun(lines: AsyncGenerator[list[bytes], None]) -> tuple[bytes, AsyncGenerator[list[bytes], None]]:
    """Read the first line; return it, and all lines with it."""
    some = list[bytes]()
    while not some:
        some = await anext(lines)

    async def all_lines() -> AsyncGenerator[list[bytes], None]:
        yield some
        async for more in lines:
            yield more

    return some[0], all_lines()


async def _take_settings(queue: Queue[bytes], exported: QueueSettings | None, *, wanted: bool) -> QueueSettings:
    """Give the queue the settings of the exported one, if that is wanted, or say that they differ; return those that
    it has."""
    present = await queue.settings()
    if exported in (None, present):
        return present
    if wanted:
        await write_settings(queue, exported, differing(exported, present), present)
        return exported
    sys.stderr.write(
        f"the exported queue had other settings ({exported}): import with --settings gives them to this one\n"
    )
    return present


async def _import(args: Namespace) -> Lines:
    told, failure = Counter[str](), None
    async with open_cluster(args) as cluster:
        queue = raw_queue(cluster, args.queue)
        first, lines = await _begun(stdin_lines())
        settings = await _take_settings(queue, imported_settings(first), wanted=args.settings)
        copies = _copies_of(lines, told, with_dead=args.dead)
        with progress("imported") as show:
            async for together in _together(copies, ordered=settings.groups.ordered):
                some, failure = await push_copies(queue, together)
                told += some
                show(told.total())
                if failure:
                    break
    said = ", ".join(f"{told[name]:,} {text}" for name, text in _SAID.items() if told[name] or name == "pushed")
    if failure:
        raise _stopped(said, failure, args.queue, "import the same lines again: what is there already stays once")
    yield Line(said, {name.replace(" ", "_"): told[name] for name in _SAID})


COMMANDS = (
    Command(
        "move dead",
        "push dead letters into another queue, and remove them from their own; can be repeated",
        _move_dead,
        arguments={"queue": "the queue that has them", "to": "the other queue"},
        takes=conditions(*EVERY),
    ),
    Command(
        "export",
        "write items, all or those that are found, as lines of JSON, without taking them",
        _export,
        takes=conditions("state", *EVERY),
    ),
    Command(
        "import",
        "push items from lines that export has written, read from stdin; can be repeated",
        _import,
        (
            Flag("dead", "also push dead letters, which are delivered then", bool, False),
            Flag("settings", "first give the queue the settings that the exported one had", bool, False),
        ),
        QUEUE,
    ),
)
