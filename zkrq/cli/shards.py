"""Define the commands for the shards of a namespace: list, add, drain and remove them."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from zkrq.base.errors import Unavailable
from zkrq.cli.asking import YES, confirm
from zkrq.cli.command import Command, Line, Lines, look_at, open_cluster
from zkrq.cli.flags import Flag
from zkrq.cli.progress import progress
from zkrq.cli.servers import shard_value
from zkrq.client.environment import read_servers

if TYPE_CHECKING:
    from zkrq.client.cluster import Cluster
    from zkrq.client.inspection import Sizes
    from zkrq.client.shards import ShardStatus

DRAIN_LOOK_SECONDS = 1.0
"""Seconds between two looks at what is left in a draining shard: each asks for every queue there."""

NAME = {"name": "its name"}


async def _list(args: Namespace) -> Lines:
    async with look_at(args) as cluster:
        for name, shard in cluster.shards.items():
            left = None
            if shard.state in ("draining", "closed"):
                with suppress(Unavailable):
                    left = await cluster.shard_sizes(name)
            yield _line(name, shard, left)


def _line(name: str, shard: ShardStatus, left: Mapping[str, Sizes] | None) -> Line:
    """Show a shard.  ``left``: what is left in one that is draining, None if that is not known."""
    view = shard.view
    parts = [f"{name}: {shard.state}"]
    if left is not None:
        queues = ", ".join(f"{sum(sizes):,} in {queue}" for queue, sizes in sorted(left.items()))
        parts.append(f"left: {queues}" if left else "nothing is left")
    if view is not None:
        out = sorted(view.servers.keys() - set(view.members))
        parts.append(f"in sync: {', '.join(sorted(view.members))}")
        parts += [f"not in sync: {', '.join(out)}"] if out else []
    if shard.away:
        parts.append(shard.away)
    sizes = None if left is None else {queue: sizes._asdict() for queue, sizes in left.items()}
    return Line("; ".join(parts), {"shard": name, **shard_value(shard), "left": sizes})


async def _add(args: Namespace) -> Lines:
    servers = read_servers(",".join(args.url))
    async with open_cluster(args) as cluster:
        await cluster.add_shard(args.name, servers, min_replicas=args.min_replicas)
        yield _changed(cluster, args.name, "takes pushes")


async def _drain(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        await cluster.drain_shard(args.name)
        if args.wait:
            await _wait_until_empty(cluster, args.name)
            yield _changed(cluster, args.name, "is draining, and nothing is left in it")
        else:
            yield _changed(cluster, args.name, "is draining: `zkrq shards list` shows what is left in it")


async def _wait_until_empty(cluster: Cluster, name: str) -> None:
    """Return once consumers have emptied a shard; show how far they are.  A shard that is away is waited for."""
    total = left = await _count_left(cluster, name)
    with progress(f"drained {name}", total) as show:
        while left:
            await asyncio.sleep(DRAIN_LOOK_SECONDS)
            with suppress(Unavailable):
                left = await _count_left(cluster, name)
                show(max(0, total - left))


async def _count_left(cluster: Cluster, name: str) -> int:
    return sum(map(sum, (await cluster.shard_sizes(name)).values()))


async def _remove(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        await confirm(args, f"remove shard {args.name!r} of {cluster.namespace!r}")
        await cluster.remove_shard(args.name, force=args.force)
        yield Line(
            f"shard {args.name} is removed; flush its servers before they are used again",
            {"shard": args.name, "state": None},
        )


def _changed(cluster: Cluster, name: str, what: str) -> Line:
    return Line(f"shard {name} {what}", {"shard": name, "state": cluster.shards[name].state})


COMMANDS = (
    Command("shards list", "list the shards: their state, their servers, and what is left in a draining one", _list),
    Command(
        "shards add",
        "add a shard of these servers, or let a draining one take pushes again",
        _add,
        (Flag("min-replicas", "fewest in-sync servers of it for a push; default: 2, or 1 of one", int, None, "N"),),
        {**NAME, "url...": "its Redis servers: URLs, or NAME=URL"},
    ),
    Command(
        "shards drain",
        "push no more plain items to a shard, so that consumers empty it",
        _drain,
        (Flag("wait", "until nothing is left in it", bool, False),),
        NAME,
    ),
    Command(
        "shards remove",
        "remove a draining shard in which nothing is left",
        _remove,
        (Flag("force", "also while pushes that went there may be repeated", bool, False), YES),
        NAME,
    ),
)
