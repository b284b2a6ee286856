"""Define the commands for a namespace and its Redis servers: found it, list, add, remove and recover servers."""

from __future__ import annotations

import time
from argparse import Namespace
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

from zkrq.base.errors import ConfigError, ZkrqError
from zkrq.base.events import Event, ServerCaughtUp
from zkrq.cli.command import Command, Line, Lines, count, look_at, open_cluster, setting, settings_of
from zkrq.cli.flags import Flag
from zkrq.client.addresses import name_at, written
from zkrq.client.connecting import founder
from zkrq.client.inner import client_of
from zkrq.client.texts import show_duration
from zkrq.protocol.shards import FIRST
from zkrq.replication.urls import redact

if TYPE_CHECKING:
    from zkrq.client.cluster import Cluster
    from zkrq.client.health import Health, ServerHealth
    from zkrq.client.shards import ShardStatus


async def _found(args: Namespace) -> Lines:
    async with founder(**settings_of(args), min_replicas=args.min_replicas) as cluster:
        view = cluster.view
    servers = sorted(view.servers)
    text = f"namespace {cluster.namespace} is founded: {', '.join(servers)}, min_replicas {view.min_replicas}"
    yield Line(text, {"namespace": cluster.namespace, "servers": servers, "min_replicas": view.min_replicas})


def server_value(server: ServerHealth) -> dict[str, object]:
    """Return what is known of a server as JSON can write it."""
    return {**server._asdict(), "out_since": server.out_since and server.out_since.isoformat(timespec="seconds")}


def shard_value(shard: ShardStatus) -> dict[str, object]:
    """Return what is known of a shard as JSON can write it."""
    view = shard.view
    return {
        "state": shard.state,
        "away": shard.away,
        "epoch": view and view.epoch,
        "min_replicas": view and view.min_replicas,
        "servers": sorted(view.servers) if view else [],
        "in_sync": sorted(view.members) if view else [],
    }


def server_lines(health: Health) -> list[Line]:
    """Show each server of a namespace, with its shard where there are several."""
    several = len({server.shard for server in health.servers.values()}) > 1
    return [
        Line(
            f"{id}: {server.place}{f' of shard {server.shard}' if several else ''}, {_connection(server)}",
            {"server": id, **server_value(server)},
        )
        for id, server in health.servers.items()
    ]


def _connection(server: ServerHealth) -> str:
    """Return the version of a server, and why it cannot be used as far as that is known."""
    text = f"Redis {server.version}" if server.connected else "not connected"
    return text + (f" ({server.reason})" if server.reason else "")


async def _servers_list(args: Namespace) -> Lines:
    async with look_at(args) as cluster:
        for line in server_lines(await cluster.check_health()):
            yield line


async def _servers_add(args: Namespace) -> Lines:
    copied: list[int] = []

    def hear(event: Event) -> None:
        if isinstance(event, ServerCaughtUp):
            copied.append(event.items)

    async with open_cluster(args, on_event=hear) as cluster:
        known, began = {*client_of(cluster).shards.find(args.shard).view.servers}, time.monotonic()
        name = await cluster.add_server(args.url, name=args.name, force=args.force, shard=args.shard)
        seconds = time.monotonic() - began
        items = f", {count(copied[-1], 'item')} copied" if copied else ""  # None: another process has copied them
        took = f"in {show_duration(seconds)}{items}"
        told = f"{name} was in the namespace already, and is in sync"
        if name not in known:
            told = f"{name} is in sync {took}"
            await _record(cluster, "add", f"{name} was added {took}")
        step = f"; write {written(args.url, name)} into ZKRQ_REDIS" if args.shard == FIRST else ""
        value = {"seconds": round(seconds, 3), "items": copied[-1] if copied else None}
        yield Line(f"{told}{step}", {**_changed(cluster, name, args.shard), **value})


async def _record(cluster: Cluster, what: str, result: str) -> None:
    """Record a change of servers where `zkrq serve` records its own, by best effort."""
    from zkrq.serve.audit import make_line, write_lines  # here, because `zkrq --help` loads no face

    with suppress(ZkrqError):
        await write_lines(client_of(cluster).coordinator, [make_line("the command line", what, "servers", result)])


def _name_of(cluster: Cluster, named: str) -> str:
    """Return the name of a server that is named by it, or by its URL."""
    if "://" not in named:
        return named
    views = (shard.view for shard in cluster.shards.values())
    servers = {id: url for view in views if view for id, url in view.servers.items()}
    return name_at(named, servers) or redact(named)


async def _servers_remove(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        name = _name_of(cluster, args.name)
        known = cluster.health().servers.get(name)
        await cluster.remove_server(name)
        await _record(cluster, "remove", f"{name} was removed")
        yield Line(f"{name} is removed", _changed(cluster, name, known.shard if known else FIRST))


async def _servers_rename(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        name = _name_of(cluster, args.name)
        known = cluster.health().servers.get(name)
        await cluster.rename_server(name, args.new)
        shard = known.shard if known else FIRST
        step = "; write so in ZKRQ_REDIS" if shard == FIRST else ""
        yield Line(f"{name} is called {args.new}{step}", _changed(cluster, args.new, shard))


def _changed(cluster: Cluster, server: str, shard: str) -> dict[str, object]:
    """Describe a server that came or went, with the epoch of its shard's view since then."""
    view = cluster.shards[shard].view
    return {"server": server, "shard": shard, "epoch": view and view.epoch}


async def _servers_recover(args: Namespace) -> Lines:
    if args.without_zookeeper:
        if args.shard != FIRST:
            raise ConfigError("without ZooKeeper nothing is known of shards: only the first one can be founded again")
        cluster = open_cluster(args, found=True, min_replicas=args.min_replicas)
        await cluster.recover(args.name, without_zookeeper=True)
        yield Line(f"founded again with {', '.join(args.name)}", {"servers": args.name})
        return
    cluster = open_cluster(args)
    if args.older_zookeeper:
        urls = {name: url for name, _, url in (each.partition("=") for each in args.name)}
        async with nullcontext() if args.shard == FIRST else cluster:
            await cluster.recover(urls if any(urls.values()) else args.name, older_zookeeper=True, shard=args.shard)
    elif args.shard == FIRST:
        await cluster.recover(args.name)  # it does not open without them
    else:
        async with cluster:
            await cluster.recover(args.name)
    names = [each.partition("=")[0] for each in args.name]
    yield Line(f"recovered with {', '.join(names)}", {"servers": names})


COMMANDS = (
    Command(
        "found",
        "found a namespace with the given servers; repeating it changes nothing",
        _found,
        (setting("min-replicas", "fewest in-sync servers for a push; default: 2, or 1 of one", "N"),),
    ),
    Command("servers list", "list the Redis servers of the namespace, and which are in sync", _servers_list),
    Command(
        "servers add",
        "add a Redis server to the namespace; returns when it is in sync",
        _servers_add,
        (
            Flag("name", "its name; default: host:port, or the next one (redis-4) where the others have names"),
            Flag("shard", "the shard that gets another copy of its items", str, FIRST),
            Flag("force", "take it over from another deployment, and wipe its items", bool, False),
        ),
        {"url": "its URL; all that it holds of this namespace is wiped"},
    ),
    Command(
        "servers remove",
        "remove a server from the namespace",
        _servers_remove,
        arguments={"name": "its name, or its URL"},
    ),
    Command(
        "servers rename",
        "give a server another name; nothing is copied",
        _servers_rename,
        arguments={"name": "its name, or its URL", "new": "its new name"},
    ),
    Command(
        "servers recover",
        "after all in-sync servers were lost: continue with these; items that only others held are lost",
        _servers_recover,
        (
            Flag("shard", "the shard whose servers were lost", str, FIRST),
            Flag(
                "without-zookeeper", "ZooKeeper has lost the namespace: found it again from these servers", bool, False
            ),
            Flag(
                "older-zookeeper",
                "ZooKeeper was restored from an older backup: write a view above all that its servers have seen",
                bool,
                False,
            ),
            setting("min-replicas", "as the namespace was founded, with --without-zookeeper; default: 2", "N"),
        ),
        {"name...": "the servers to continue with; NAME=URL for a shard that a restored shard map lacks"},
    ),
)
