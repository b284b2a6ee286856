"""Define the commands for a namespace and its Redis servers: found it, list, add, remove and recover servers."""

from __future__ import annotations

from argparse import Namespace

from zkrq.cli.command import Command, Flag, Line, Lines
from zkrq.cli.connection import open_cluster, setting, settings_of
from zkrq.connecting import founder
from zkrq.health import Health


async def _found(args: Namespace) -> Lines:
    async with founder(**settings_of(args), min_replicas=args.min_replicas) as cluster:
        view = cluster.view
    servers = sorted(view.servers)
    text = f"namespace {cluster.namespace} is founded: {', '.join(servers)}, min_replicas {view.min_replicas}"
    yield Line(text, {"namespace": cluster.namespace, "servers": servers, "min_replicas": view.min_replicas})


def server_lines(health: Health) -> list[Line]:
    """Show each server of a namespace."""
    return [
        Line(
            f"{id}: {server.place}{'' if server.connected else ', not connected'}",
            {"server": id, **server._asdict()},
        )
        for id, server in health.servers.items()
    ]


async def _servers_list(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        for line in server_lines(cluster.health()):
            yield line


async def _servers_add(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        name = await cluster.add_server(args.url, name=args.name, force=args.force)
        yield Line(f"{name} is in sync", {"server": name, "epoch": cluster.view.epoch})


async def _servers_remove(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        await cluster.remove_server(args.name)
        yield Line(f"{args.name} is removed", {"server": args.name, "epoch": cluster.view.epoch})


async def _servers_recover(args: Namespace) -> Lines:
    await open_cluster(args).recover(args.name)
    yield Line(f"recovered with {', '.join(args.name)}", {"servers": args.name})


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
            Flag("name", "its name; default: host:port"),
            Flag("force", "take it over from another deployment, and wipe its items", bool, False),
        ),
        {"url": "its URL; all that it holds of this namespace is wiped"},
    ),
    Command("servers remove", "remove a server from the namespace", _servers_remove, arguments={"name": "its name"}),
    Command(
        "servers recover",
        "after all in-sync servers were lost: continue with these; items that only others held are lost",
        _servers_recover,
        arguments={"name...": "the servers to continue with"},
    ),
)
