"""Define the commands that remove items, or queue dead letters again: clear, delete, dead discard, dead redrive."""

from __future__ import annotations

from argparse import Namespace

from zkrq.cli.asking import YES, confirm
from zkrq.cli.command import QUEUE, Command, Flag, Line, Lines, count, open_cluster
from zkrq.cli.progress import follow


async def _clear(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        queue = cluster.queue(args.queue)

        async def left() -> int:
            sizes = await queue.size()
            return sizes.ready + sizes.scheduled

        await confirm(args, f"remove {count(await left(), 'item')} of queue {args.queue!r} in {cluster.namespace!r}")
        async with follow("removed", left):
            removed = await queue.clear()
    yield Line(f"{count(removed, 'item')} removed", {"removed": removed})


async def _delete(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        queue = cluster.queue(args.queue)

        async def left() -> int:
            return sum(await queue.size())

        items = count(await left(), "item")
        await confirm(args, f"delete queue {args.queue!r} in {cluster.namespace!r} with {items}, claimed ones included")
        async with follow("removed", left):
            removed = await queue.delete()
    yield Line(f"queue {args.queue!r} is deleted: {count(removed, 'item')} removed", {"removed": removed})


async def _dead_redrive(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        queue = cluster.queue(args.queue)

        async def left() -> int:
            return (await queue.size()).dead

        async with follow("queued again", left):
            revived = await queue.redrive(args.id or None, rate=args.rate)
    yield Line(f"{count(revived, 'item')} queued again", {"redriven": revived})


async def _dead_discard(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        queue = cluster.queue(args.queue)

        async def left() -> int:
            return (await queue.size()).dead

        letters = count(len(args.id) or await left(), "dead letter")
        await confirm(args, f"remove {letters} of queue {args.queue!r} in {cluster.namespace!r}")
        async with follow("removed", left):
            removed = await queue.discard(args.id or None)
    yield Line(f"{count(removed, 'item')} removed", {"removed": removed})


COMMANDS = (
    Command("clear", "remove every item that is not claimed", _clear, (YES,), QUEUE),
    Command("delete", "remove a queue: every item in any state, and all that is stored of it", _delete, (YES,), QUEUE),
    Command(
        "dead redrive",
        "queue dead letters again",
        _dead_redrive,
        (Flag("rate", "at most this many per second; default: no limit", float, None, "N"),),
        {**QUEUE, "id?...": "ids of the items; default: all"},
    ),
    Command("dead discard", "remove dead letters", _dead_discard, (YES,), {**QUEUE, "id?...": "ids; default: all"}),
)
