"""Define the commands for the schedules that a namespace stores."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio

from zkrq.cli.command import Command, Line, Lines, look_at, open_cluster
from zkrq.cli.flags import QUEUE, Flag, Takes
from zkrq.cli.forms import CODEC, form_of, raw_queue
from zkrq.operations.push import RECEIPT
from zkrq.operations.schedules import PUT_SCHEDULE, SCHEDULE, WHEN
from zkrq.process.program import run_until_signal

if TYPE_CHECKING:
    from zkrq.client.cluster import Cluster
    from zkrq.client.timetable import StoredSchedule


def schedule_value(entry: StoredSchedule) -> dict[str, object]:
    """Return a schedule as a value for ``--json``."""
    return SCHEDULE.tell(entry) | {"item": _item(entry.payload)}


def _item(payload: bytes | None) -> object:
    if payload is None:
        return None
    try:
        return json.loads(payload)
    except (ValueError, RecursionError):
        return payload.decode(errors="replace")


def _line(entry: StoredSchedule) -> Line:
    value = schedule_value(entry)
    state = "paused" if entry.paused else f"next {value['next'] or 'not known here'}"
    item = "item made by the code" if entry.payload is None else f"item {json.dumps(value['item'])}"
    last = f"; last {value['last']}" if entry.last else ""
    lost = f"; {entry.losses:,} lost, the last one {value['last_loss']}" if entry.losses else ""
    declared = "; declared in code" if entry.declared else ""
    text = f"{entry.queue}  {entry.name}  {entry}; {state}{last}{lost}; {item}{declared}"
    return Line(text, value)


async def _list(args: Namespace) -> Lines:
    async with look_at(args) as cluster:
        for entry in await cluster.schedules().list():
            yield _line(entry)


def _payload(args: Namespace) -> bytes:
    return form_of(args.codec).read(args.item.encode(errors="surrogateescape"), "the item")


async def _add(args: Namespace) -> Lines:
    payload = _payload(args)
    async with open_cluster(args) as cluster:
        queue = raw_queue(cluster, args.queue)
        yield _line(
            await cluster.schedules().add(
                queue, args.name, WHEN.kind.parse(args.when), payload, replace=args.replace, **args.given
            )
        )


async def _change(args: Namespace) -> Lines:
    changes: dict[str, Any] = {**args.given}
    if args.item is not None:
        changes["item"] = _payload(args)
    async with open_cluster(args) as cluster:
        yield _line(await cluster.schedules().change(raw_queue(cluster, args.queue), args.name, **changes))


async def _pause(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        yield _line(await cluster.schedules().pause(args.queue, args.name))


async def _resume(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        yield _line(await cluster.schedules().resume(args.queue, args.name))


async def _run_now(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        receipt = await cluster.schedules().run_now(args.queue, args.name)
    yield Line(f"{receipt.id}{'  duplicate' if receipt.duplicate else ''}", RECEIPT.tell(receipt))


async def _remove(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        schedules = cluster.schedules()
        entry = await schedules.get(args.queue, args.name)
        await schedules.remove(args.queue, args.name)
    again = "; a process whose code declares it stores it again when it starts" if entry and entry.declared else ""
    yield Line(f"removed{again}", {"queue": args.queue, "name": args.name})


class _Running:
    """Push what is due until a signal."""

    grace = 0.0

    async def run(self, grace: float) -> None:
        await anyio.sleep_forever()

    def was_cut_off(self) -> bool:
        return False


@asynccontextmanager
async def _start(cluster: AbstractAsyncContextManager[Cluster]) -> AsyncGenerator[_Running]:
    async with cluster as opened, opened.schedules().run():
        yield _Running()


def _run(args: Namespace) -> int:
    return run_until_signal(_start(open_cluster(args)))


_ADDED = Takes(PUT_SCHEDULE)

# What is left out stays, so what contradicts it is known to the schedule only.
_CHANGES = replace(
    PUT_SCHEDULE,
    parameters=tuple(
        replace(each, default=None, required=False, absent="as it is") for each in PUT_SCHEDULE.parameters
    ),
    rules=(),
)

_NAMED = {**QUEUE, "name": "the schedule's name"}

COMMANDS = (
    Command("schedules list", "list the schedules that are stored, with their next moments", _list),
    Command(
        "schedules add",
        "push an item at every moment of a schedule",
        _add,
        (Flag("replace", "in the place of one of that name, if there is one", bool, False), CODEC),
        {**_NAMED, **_ADDED.arguments, "item": "the item as JSON"},
        takes=_ADDED,
    ),
    Command(
        "schedules change",
        "change when a schedule pushes, or what",
        _change,
        (Flag("item", "the item as JSON", str, None, "ITEM", absent="as it is"), CODEC),
        _NAMED,
        takes=Takes(_CHANGES),
    ),
    Command("schedules pause", "push nothing more for a schedule until it is resumed", _pause, arguments=_NAMED),
    Command("schedules resume", "push again for a schedule, at moments that come", _resume, arguments=_NAMED),
    Command("schedules run-now", "push the item of a schedule now, once more", _run_now, arguments=_NAMED),
    Command("schedules remove", "remove a schedule; items that it has pushed stay", _remove, arguments=_NAMED),
    Command(
        "schedules run",
        "push the items of schedules that were added, until SIGTERM or SIGINT; any number of processes may",
        _run,
        program=True,
    ),
)
