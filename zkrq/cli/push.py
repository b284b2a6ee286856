"""Define the command ``push``."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Any

from zkrq.base.errors import ConfigError, Receipt
from zkrq.cli.command import QUEUE, Command, Flag, Line, Lines, open_cluster
from zkrq.cli.forms import CODEC, Form, form_of, raw_queue
from zkrq.cli.progress import progress
from zkrq.cli.stdin import stdin_lines


async def _push(args: Namespace) -> Lines:
    many = args.item == "-"
    if args.key is None and (args.replace or args.key_window is not None):
        raise ConfigError(f"--{'replace' if args.replace else 'key-window'} needs a key: --key user-42")
    if many and (args.id is not None or args.key is not None):
        raise ConfigError("--id and --key are for one item; ITEM - may read several")
    form = form_of(args.codec)
    item = b"" if many else _payload(form, args.item.encode(errors="surrogateescape"), "ITEM")
    options: dict[str, Any] = {"delay": args.delay, "priority": args.priority, "ttl": args.ttl, "group": args.group}
    async with open_cluster(args) as cluster:
        queue = raw_queue(cluster, args.queue)
        if not many:
            of_key = {"key": args.key, "replace": args.replace, "key_window": args.key_window}
            yield _receipt(await queue.push(item, id=args.id, **of_key, **options))
            return
        read = pushed = 0
        with progress("pushed", hidden=sys.stdout.isatty()) as show:  # the receipts show it, too
            async for lines in stdin_lines():
                numbered = [(number, line) for number, line in enumerate(lines, read + 1) if line.strip()]
                items = [_payload(form, line, f"line {number}") for number, line in numbered]
                read += len(lines)
                for receipt in await queue.push_many(items, **options):
                    yield _receipt(receipt)
                pushed += len(items)
                show(pushed)


def _receipt(receipt: Receipt) -> Line:
    return Line(f"{receipt.id}{_told(receipt)}", receipt._asdict())


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


def _payload(form: Form, text: bytes, where: str) -> bytes:
    try:
        return form.encode(text)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{where} is not JSON: {error}") from error


COMMANDS = (
    Command(
        "push",
        "push an item, print its id",
        _push,
        (
            Flag("id", "the item's id; makes the push repeatable"),
            Flag("delay", "before it may be delivered", float, 0.0, "SECONDS"),
            Flag("priority", "0 to 9, higher first", int, 0, "N"),
            Flag("key", "push nothing while another item with this key is queued, scheduled or claimed"),
            Flag("replace", "push it in the place of queued items with this key", bool, False),
            Flag(
                "key-window",
                "push nothing either this long after such a push, whatever became of its item",
                float,
                None,
                "SECONDS",
            ),
            Flag("ttl", "after which it is no longer delivered; default: no limit", float, None, "SECONDS"),
            Flag("group", "the tenant, user or job that it belongs to; groups take turns"),
            CODEC,
        ),
        {**QUEUE, "item": "the item as JSON (with --codec raw: as it is); - reads one from each line of stdin"},
    ),
)
