"""Define the commands for flows: list them, show one, seal, cancel, finish and redrive it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from zkrq.base.flows import name_of_flow
from zkrq.cli.asking import YES, confirm
from zkrq.cli.command import Command, Line, Lines, count, look_at, open_cluster
from zkrq.cli.flags import QUEUE, Takes
from zkrq.operations.flows import CANCEL_FLOW, CAUSES, FLOW, LIST_FLOWS, held_up

if TYPE_CHECKING:
    from zkrq.base.flows import FlowStatus
    from zkrq.client.cluster import Cluster
    from zkrq.consuming.flow import Flow


def _line(status: FlowStatus) -> Line:
    figures = ", ".join(f"{getattr(status, name):,} {name}" for name in ("done", *CAUSES))
    why = held_up(status)
    outer = f"; in {status.outer}" if status.outer else ""
    return Line(
        f"{status.queue}  {status.name}  {status.state}; {figures}{outer}{f'; held up by {why}' if why else ''}",
        FLOW.tell(status),
    )


def _member(status: FlowStatus, id: str) -> str:
    return f"flow {status.nested[id]}" if id in status.nested else id


def _flow(cluster: Cluster, args: Namespace) -> Flow:
    return cluster.queue(args.queue).flow(args.flow)


def _named(cluster: Cluster, args: Namespace) -> str:
    return f"{name_of_flow(args.queue, args.flow)} in {cluster.namespace!r}"


async def _list(args: Namespace) -> Lines:
    async with look_at(args) as cluster:
        async for status in cluster.flows(**args.given):
            yield _line(status)


async def _show(args: Namespace) -> Lines:
    async with look_at(args) as cluster:
        status = await _flow(cluster, args).status()
    ids: dict[str, Any] = {name: status.ids.get(name, ()) for name in CAUSES}
    line = _line(status)
    members = (f"  {name}: {_member(status, id)} of {status.queues[id]}" for name in CAUSES for id in ids[name])
    yield line._replace(text="\n".join([line.text, *members]))


async def _seal(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        flow = _flow(cluster, args)
        await flow.seal()
        yield _line(await flow.status())


async def _cancel(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        flow = _flow(cluster, args)
        left = (await flow.status()).left
        await confirm(args, f"cancel {_named(cluster, args)} with {count(left, 'member')} left")
        await flow.cancel(**args.given)
        yield _line(await flow.status())


async def _finish(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        flow = _flow(cluster, args)
        status = await flow.status()
        undone = status.left + status.dead + status.missed
        await confirm(args, f"end {_named(cluster, args)} as done, without {count(undone, 'member')}")
        await flow.finish()
        yield _line(await flow.status())


async def _redrive(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        redriven = await _flow(cluster, args).redrive()
    yield Line(f"{count(redriven, 'item')} redriven", {"redriven": redriven})


_NAMED = {**QUEUE, "flow": "the flow's name"}

_PAGES: Mapping[str, str] = dict.fromkeys(("limit", "after"), "the command reads all pages")

COMMANDS = (
    Command("flows list", "list flows, those that have not ended first", _list, takes=Takes(LIST_FLOWS, _PAGES)),
    Command("flows show", "show one flow, and which members keep it from its end", _show, arguments=_NAMED),
    Command("flows seal", "say that nothing more comes but what members push", _seal, arguments=_NAMED),
    Command(
        "flows cancel",
        "cancel a flow: remove its queued members, and what is held for its end",
        _cancel,
        (YES,),
        _NAMED,
        takes=Takes(CANCEL_FLOW),
    ),
    Command("flows finish", "end a flow as done, whatever is left of it", _finish, (YES,), _NAMED),
    Command("flows redrive", "queue the dead letters of a flow again", _redrive, arguments=_NAMED),
)
