"""Define the command ``push``."""

from __future__ import annotations

import sys
from argparse import Namespace

from zkrq.base.errors import ConfigError, Receipt
from zkrq.cli.command import Command, Line, Lines, open_cluster
from zkrq.cli.flags import Takes
from zkrq.cli.forms import CODEC, form_of, raw_queue
from zkrq.cli.progress import progress
from zkrq.cli.stdin import stdin_lines
from zkrq.operations.push import PUSH, RECEIPT


async def _push(args: Namespace) -> Lines:
    many = args.item == "-"
    if many and ("id" in args.given or "key" in args.given):
        raise ConfigError("--id and --key are for one item; ITEM - may read several")
    form = form_of(args.codec)
    item = b"" if many else form.read(args.item.encode(errors="surrogateescape"), "ITEM")
    async with open_cluster(args) as cluster:
        queue = raw_queue(cluster, args.queue)
        if not many:
            yield _receipt(await queue.push(item, **args.given))
            return
        read = pushed = 0
        with progress("pushed", hidden=sys.stdout.isatty()) as show:  # the receipts show it, too
            async for lines in stdin_lines():
                numbered = [(number, line) for number, line in enumerate(lines, read + 1) if line.strip()]
                items = [form.read(line, f"line {number}") for number, line in numbered]
                read += len(lines)
                for receipt in await queue.push_many(items, **args.given):
                    yield _receipt(receipt)
                pushed += len(items)
                show(pushed)


def _receipt(receipt: Receipt) -> Line:
    return Line(f"{receipt.id}{_told(receipt)}", RECEIPT.tell(receipt))


def _told(receipt: Receipt) -> str:
    if receipt.duplicate and receipt.done:
        return "  has begun the window of the key, and is done"
    if receipt.duplicate:
        return "  has the key already"
    if receipt.done:
        return "  is done already"
    if receipt.replaced:
        return f"  in the place of {', '.join(receipt.replaced)}"
    if receipt.new is None:
        return "  may have been in the queue already"
    return "" if receipt.new else "  is in the queue already"


COMMANDS = (
    Command(
        "push",
        "push an item, print its id",
        _push,
        (CODEC,),
        {"item": "the item as JSON (with --codec raw: as it is); - reads one from each line of stdin"},
        takes=Takes(PUSH),
    ),
)
