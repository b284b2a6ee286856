"""Define the commands for damaged entries that no server could read: list, show, restore and drop."""

from __future__ import annotations

from argparse import Namespace
from base64 import b64encode

from zkrq.cli.command import Command, Line, Lines, count, open_cluster
from zkrq.cli.flags import QUEUE
from zkrq.client.damaged import damaged_entries, damaged_entry, drop_damaged, restore_damaged

_ONE = {**QUEUE, "id": "the entry's id, as `zkrq damaged list` prints it"}


async def _list(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        names = args.queue or await cluster.queues()
        for name in names:
            async for each in damaged_entries(cluster, name):
                size = f"record of {count(each.record_bytes, 'byte')}, payloads of {count(each.payload_bytes, 'byte')}"
                text = f"{name}  {each.id}  set aside {each.at:%Y-%m-%d %H:%M} UTC: {each.reason}; {size}"
                yield Line(text, {"queue": name, **each._asdict()})


async def _show(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        left = await damaged_entry(cluster, args.queue, args.id)
    parts = {"record": left.record, "payloads": left.payload, "notes": left.notes}
    text = [f"{name}: {part!r}" for name, part in parts.items()]
    shown = {name: b64encode(part).decode() for name, part in parts.items()}
    yield Line("\n".join([f"reason: {left.reason}", *text]), {"reason": left.reason, **shown})


async def _restore(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        items = await restore_damaged(cluster, args.queue, args.id)
    yield Line(f"restored: {count(items, 'item')} ready again", {"queue": args.queue, "id": args.id, "items": items})


async def _drop(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        await drop_damaged(cluster, args.queue, args.id)
    yield Line(f"dropped: what was left of {args.id}", {"queue": args.queue, "id": args.id})


COMMANDS = (
    Command(
        "damaged list",
        "list damaged entries that no server could read and that are set aside",
        _list,
        (),
        {"queue?...": "the queues' names; default: every queue"},
    ),
    Command("damaged show", "print what is left of a damaged entry", _show, (), _ONE),
    Command("damaged restore", "queue the items of a damaged entry again, from its payloads", _restore, (), _ONE),
    Command("damaged drop", "drop what is left of a damaged entry, on every server", _drop, (), _ONE),
)
