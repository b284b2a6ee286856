"""Define the commands for single items: push, pop, get, peek and cancel."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from argparse import Namespace
from typing import Any

from zkrq.claims import Claim
from zkrq.cli.command import Command, Flag, Line, Lines
from zkrq.cli.connection import open_cluster
from zkrq.cli.stdin import stdin_lines
from zkrq.codecs import RAW
from zkrq.errors import ConfigError, Receipt
from zkrq.items import Item
from zkrq.limits import DeadLetters
from zkrq.retry import Retry

POP_AT_ONCE = 100
"""Items claimed together, at most."""

_NO_LIMIT = Retry(max_attempts=None)
_KEEP_ALL = DeadLetters(max_count=None, expired=True)

QUEUE = {"queue": "the queue's name"}
"""The argument of every command that works on one queue."""


async def _push(args: Namespace) -> Lines:
    many = args.item == "-"
    if many and (args.id is not None or args.key is not None):
        raise ConfigError("--id and --key are for one item; ITEM - may read several")
    item = None if many else _parse(args.item, "ITEM")
    options: dict[str, Any] = {"delay": args.delay, "priority": args.priority, "ttl": args.ttl}
    async with open_cluster(args) as cluster:
        queue = cluster.queue(args.queue)
        if not many:
            yield _receipt(await queue.push(item, id=args.id, key=args.key, **options))
            return
        read = 0
        async for lines in stdin_lines():
            items = [_parse(line, f"line {number}") for number, line in enumerate(lines, read + 1) if line.strip()]
            read += len(lines)
            for receipt in await queue.push_many(items, **options):
                yield _receipt(receipt)


def _receipt(receipt: Receipt) -> Line:
    told = "  has the key already" if receipt.duplicate else "  is done already" if receipt.done else ""
    return Line(f"{receipt.id}{told}", receipt._asdict())


def _parse(text: str | bytes, where: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{where} is not JSON: {error}") from error


async def _pop(args: Namespace) -> Lines:
    deadline = asyncio.get_running_loop().time() + args.wait
    async with open_cluster(args) as cluster:
        # Items that this command cannot decode, or that have failed often elsewhere, are not buried here.  No dead
        # letter is dropped, and expired items become dead letters, because the queue's own consumers may want to keep
        # them.
        queue, left = cluster.queue(args.queue, codec=RAW, retry=_NO_LIMIT, dead_letters=_KEEP_ALL), args.count
        while left > 0:
            wait = max(0.0, deadline - asyncio.get_running_loop().time())
            claims = await queue.pop_many(min(left, POP_AT_ONCE), timeout=wait)
            if not claims:
                return
            for claim in claims:
                yield _delivery(claim)
            await asyncio.gather(*(claim.ack() for claim in claims))
            left -= len(claims)


def _delivery(claim: Claim[bytes]) -> Line:
    """Show a claim's item as JSON; if it is not JSON, as null, with its ``payload`` as text."""
    try:
        item: object = json.loads(claim.item)
        text, unread = json.dumps(item), dict[str, str]()
    except (ValueError, RecursionError):
        item, text, unread = None, repr(claim.item), {"payload": claim.item.decode(errors="backslashreplace")}
    value = {
        "id": claim.id,
        "item": item,
        **unread,
        "priority": claim.priority,
        "attempts": claim.attempts,
        "pushed_at": claim.pushed_at.isoformat(),
    }
    return Line(text, value)


async def _get(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        item = await cluster.queue(args.queue).get(args.id)
    if item is None:
        raise ConfigError(f"queue {args.queue!r} has no item {args.id!r}")
    yield item_line(item)


async def _peek(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        for item in await cluster.queue(args.queue).peek(args.count, args.state):
            yield item_line(item)


async def _cancel(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        found = await cluster.queue(args.queue).cancel(args.id)
    yield Line(found.value, {"id": args.id, "outcome": found.value})


def item_line(item: Item[Any]) -> Line:
    """Show an item."""
    shown = repr(item.payload) if item.item is None else json.dumps(item.item)
    why = f"  {item.reason}" if item.reason else ""
    held = f" by {item.owner}" if item.owner else ""
    moments = {"pushed_at": item.pushed_at.isoformat(), "died_at": item.died_at and item.died_at.isoformat()}
    value = {**dataclasses.asdict(item), "payload": item.payload.decode(errors="backslashreplace"), **moments}
    return Line(f"{item.id}  {item.state}{held}  {shown}{why}", value)


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
            Flag("ttl", "after which it is no longer delivered; default: no limit", float, None, "SECONDS"),
        ),
        {**QUEUE, "item": "the item as JSON; - reads one from each line of stdin"},
    ),
    Command(
        "pop",
        "take items: print each on one line, as JSON if possible, then ack it",
        _pop,
        (
            Flag("count", "at most this many items", int, 1, "N"),
            Flag("wait", "to wait for items; 0: take what is ready", float, 0.0, "SECONDS"),
        ),
        QUEUE,
    ),
    Command("get", "show one item", _get, arguments={**QUEUE, "id": "the item's id"}),
    Command(
        "peek",
        "show the first items in a state, without taking them",
        _peek,
        (
            Flag("count", "at most this many items, up to 500", int, 10, "N"),
            Flag("state", "ready, scheduled, claimed or dead", str, "ready"),
        ),
        QUEUE,
    ),
    Command("cancel", "remove one item, and stop its handler", _cancel, arguments={**QUEUE, "id": "the item's id"}),
)
