"""Define the command ``top``: watch a namespace live.  Needs rich (extra ``cli``)."""

from __future__ import annotations

import asyncio
import sys
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from zkrq.base.errors import ConfigError, ZkrqError
from zkrq.cli.command import Command, Line, Lines, look_at
from zkrq.cli.flags import Flag, duration
from zkrq.cli.servers import server_value, shard_value
from zkrq.client.inner import copied_by_learners
from zkrq.client.inspection import Statistics, shards_left_out
from zkrq.operations.queues import CONSUMER, FIGURES

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from zkrq.client.cluster import Cluster
    from zkrq.client.consumers import Consumer
    from zkrq.client.health import Health
    from zkrq.client.shards import ShardStatus

LEAST_INTERVAL = 0.2
"""Seconds between two looks, at least: each reads all claims."""

SHOWN = 50
"""Queues, and consumers, that are shown: the largest ones."""


class Snapshot(NamedTuple):
    """What a look found.  ``at``: seconds, monotonic.  ``copied``: of each learner, its items in percent of the
    primaries', which also grow while it is caught up."""

    at: float
    health: Health
    shards: Mapping[str, ShardStatus]
    queues: Mapping[str, Statistics]
    consumers: Mapping[str, Consumer]
    copied: Mapping[str, float]

    @property
    def left_out(self) -> list[str]:
        """Shards whose items are not in the figures of the queues."""
        return shards_left_out(self.queues.values(), self.shards)

    def value(self) -> dict[str, object]:
        """Return it as JSON can write it."""
        return {
            "epoch": self.health.epoch,
            "ready": self.health.ok,
            "session": self.health.session,
            "trouble": list(self.health.trouble),
            "warnings": list(self.health.warnings),
            "servers": {
                id: {**server_value(server), "copied_percent": self.copied.get(id)}
                for id, server in self.health.servers.items()
            },
            "shards": {name: shard_value(shard) for name, shard in self.shards.items()},
            "away": self.left_out,
            "queues": {name: FIGURES.tell(each) for name, each in self.queues.items()},
            "consumers": {owner: CONSUMER.tell(each) for owner, each in self.consumers.items()},
        }


async def take_snapshot(cluster: Cluster) -> Snapshot:
    """Look at everything.  Raises ``Unavailable``."""
    queues = await cluster.statistics()
    consumers, copied = await cluster.consumers(), await copied_by_learners(cluster, queues)
    health = await cluster.check_health()
    return Snapshot(time.monotonic(), health, cluster.shards, queues, consumers, copied)


def show(now: Snapshot, before: Snapshot | None, trouble: str = "") -> RenderableType:
    """Draw a snapshot.

    ``before``: an earlier one, for what is pushed and removed per second.  ``trouble``: why none is newer.
    """
    from rich.console import Group
    from rich.text import Text

    health, several = now.health, len(now.shards) > 1
    state = "ready to push and claim" if health.ok else "not ready"
    members = sum(server.place == "member" for server in health.servers.values())
    where = f"{len(now.shards)} shards" if several else f"epoch {health.epoch}"
    head = f"{where}, {members} in sync of {len(health.servers)}, {state}, ZooKeeper {health.session}"
    left_out = [f"The figures of the queues are without the items of shard {name}." for name in now.left_out]
    warnings = [Text(text, style="bold red") for text in (*filter(None, [trouble]), *health.trouble, *left_out)]
    warnings += [Text(text, style="bold yellow") for text in health.warnings]
    shards = [_shards(now)] if several else []
    return Group(head, *warnings, *shards, _servers(now), _queues(now, before), _consumers(now))


def _shards(now: Snapshot) -> Table:
    table = _table("shard", "state", "epoch", "in sync", "")
    for name, shard in now.shards.items():
        style = {"open": "green", "draining": "yellow"}.get(shard.state, "red")
        view = shard.view
        known = (f"{view.epoch}", f"{len(view.members)} of {len(view.servers)}") if view else ("", "")
        table.add_row(name, f"[{style}]{shard.state}[/]", *known, "[red]away[/]" if shard.away else "")
    return table


def _servers(now: Snapshot) -> Table:
    several = len(now.shards) > 1
    table = _table("server", *(["shard"] if several else []), "place", "")
    for id, server in now.health.servers.items():
        style = {"member": "green", "learner": "yellow"}.get(server.place, "red")
        notes = [] if server.connected else ["not connected"]
        if server.place == "learner":
            notes.append(f"{now.copied.get(id, 0.0):.0f} % of the items")
        if server.catching_up and server.catching_up.seconds_left is not None:
            notes.append(f"{server.catching_up.seconds_left:.0f} s left")
        shard = [server.shard] if several else []
        table.add_row(_safe(id), *shard, f"[{style}]{server.place}[/]", ", ".join(notes))
    return table


def _queues(now: Snapshot, before: Snapshot | None) -> Table:
    table = _table("queue", "ready", "scheduled", "claimed", "dead", "pushed/s", "removed/s", "oldest", "")
    largest = sorted(now.queues.items(), key=lambda each: (-sum(each[1].sizes), each[0]))
    for name, each in largest[:SHOWN]:
        earlier = before and before.queues.get(name)
        passed = before and earlier and now.at > before.at and each.flow.since(earlier.flow)
        pushed, removed = (
            (f"{count / (now.at - before.at):,.1f}" for count in passed) if before and passed else ("", "")
        )
        sizes = each.sizes
        table.add_row(
            name,
            f"{sizes.ready:,}",
            f"{sizes.scheduled:,}",
            f"{sizes.claimed:,}",
            f"[red]{sizes.dead:,}[/]" if sizes.dead else "0",
            pushed,
            removed,
            "" if each.oldest_ready is None else f"{each.oldest_ready:,.1f} s",
            f"[yellow]{each.pause}[/]" if each.pause else f"[yellow]{each.limited}[/]" if each.limited else "",
        )
    return table


def _consumers(now: Snapshot) -> Table:
    table = _table("consumer", "description", "holds")
    busiest = sorted(now.consumers.items(), key=lambda each: (-sum(each[1].claims.values()), each[0]))
    for owner, each in busiest[:SHOWN]:
        held = ", ".join(f"{count:,} of {queue}" for queue, count in sorted(each.claims.items())) or "nothing"
        table.add_row(_safe(owner), _safe(each.description), held)
    return table


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    texts = {"server", "shard", "state", "place", "queue", "consumer", "description", "holds", ""}
    for column in columns:
        table.add_column(column, justify="left" if column in texts else "right")
    return table


def _safe(text: str) -> str:
    """Return a text of another process as rich shows it, without codes for the terminal."""
    from rich.markup import escape

    return escape("".join(letter if letter.isprintable() else "?" for letter in text))


async def _top(args: Namespace) -> Lines:
    if not find_spec("rich"):
        raise ConfigError("`zkrq top` needs rich: pip install 'zkrq[cli]'")
    if args.interval < LEAST_INTERVAL:
        raise ConfigError(f"--interval is {args.interval:g} s: at least {LEAST_INTERVAL:g} s")
    async with look_at(args) as cluster:
        if args.json:
            yield Line("", (await take_snapshot(cluster)).value())
        elif args.once or not sys.stdout.isatty():
            before = await take_snapshot(cluster)
            await asyncio.sleep(args.interval)  # what passes in a second is known from two looks
            snapshot = await take_snapshot(cluster)
            yield Line(as_text(show(snapshot, before)), snapshot.value())
        else:
            await watch(cluster, args.interval)


async def watch(cluster: Cluster, interval: float) -> None:
    """Show one snapshot after the other until this is cancelled."""
    from rich.live import Live

    before, now = None, await take_snapshot(cluster)
    with Live(show(now, None), screen=True, auto_refresh=False) as live:
        while True:
            live.refresh()
            await asyncio.sleep(interval)
            try:
                before, now = now, await take_snapshot(cluster)
            except ZkrqError as error:
                live.update(show(now._replace(health=cluster.health(), shards=cluster.shards), before, str(error)))
            else:
                live.update(show(now, before))


def as_text(drawn: RenderableType) -> str:
    """Return what was drawn, without colours."""
    from rich.console import Console

    console = Console(width=160, no_color=True, highlight=False)
    with console.capture() as captured:
        console.print(drawn)
    return captured.get().rstrip("\n")


COMMANDS: Sequence[Command] = (
    Command(
        "top",
        "watch servers, queues and consumers live",
        _top,
        (
            duration("interval", "between two looks, each of which reads all claims", 2.0),
            Flag("once", "print one look, and what passed within --interval, as without a terminal", bool, False),
        ),
    ),
)
