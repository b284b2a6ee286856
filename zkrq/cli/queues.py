"""Define the commands for whole queues: statistics, finding items, pausing, the list of dead letters, consumers."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from zkrq.base import clock
from zkrq.base.errors import ConfigError, ZkrqError
from zkrq.cli.command import Command, Line, Lines, look_at, note_missing, note_new, open_cluster
from zkrq.cli.conditions import EVERY, FLAGS, conditions
from zkrq.cli.flags import Flag, Takes
from zkrq.cli.items import LOOKED_AT, item_line
from zkrq.cli.servers import server_lines, server_value
from zkrq.client.inspection import Sizes, Statistics, shards_left_out
from zkrq.client.texts import show_backlog
from zkrq.operations.items import DEAD_LETTERS
from zkrq.operations.queues import BACKLOG, CONSUMER, FIGURES, PAUSE, QUIET, RESUME, UNQUIET, end_of_pause

if TYPE_CHECKING:
    from zkrq.client.backlog import Backlog
    from zkrq.client.cluster import Cluster
    from zkrq.client.quieting import Quieted

BACKLOGS_MAX = 20
"""Queues of which `zkrq stats` says whether their backlog shrinks: those with the most ready items."""


async def _stats(args: Namespace) -> Lines:
    async with look_at(args) as cluster:
        statistics = await cluster.statistics()
        health = await cluster.check_health()
        left_out = shards_left_out(statistics.values(), cluster.shards)
        backlogs = await _read_backlogs(cluster, statistics)
    width = max(map(len, ["queue", *statistics]))
    rows: list[tuple[str, Iterable[object], str]] = [("queue", Sizes._fields, "")]
    rows += [(name, each.sizes, _note_of(each, backlogs.get(name))) for name, each in statistics.items()]
    text = [
        f"{cluster.namespace}: epoch {health.epoch}, {'ready to push and claim' if health.ok else 'not ready'}",
        *health.trouble,
        *(f"warning: {text}" for text in health.warnings),
        *(line.text for line in server_lines(health)),
        "",
        *(f"without the items of shard {name}, which is away" for name in left_out),
        *(f"{name:{width}}" + "".join(f"{figure:>11}" for figure in figures) + note for name, figures, note in rows),
    ]
    value = {
        "health": {**health._asdict(), "servers": {id: server_value(server) for id, server in health.servers.items()}},
        "away": left_out,
        "queues": {name: FIGURES.tell(each) for name, each in statistics.items()},
        "backlogs": {name: BACKLOG.tell(each) for name, each in backlogs.items()},
    }
    yield Line("\n".join(text), value)


async def _read_backlogs(cluster: Cluster, statistics: Mapping[str, Statistics]) -> dict[str, Backlog]:
    """Read what the largest backlogs do, by the names of their queues; without those that cannot be asked now."""
    largest = sorted(statistics, key=lambda name: -statistics[name].sizes.ready)[:BACKLOGS_MAX]
    names = [name for name in largest if statistics[name].sizes.ready]
    found: dict[str, Backlog] = {}
    for name in names:
        with suppress(ZkrqError):
            found[name] = await cluster.queue(name).backlog()
    return found


def _note_of(statistics: Statistics, backlog: Backlog | None) -> str:
    damaged = f"{statistics.damaged:,} damaged set aside" if statistics.damaged else None
    notes = [note for note in (statistics.pause, statistics.limited, damaged, show_backlog(backlog)) if note]
    return f"  {', '.join(notes)}" if notes else ""


async def _pause(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        await note_new(cluster, args.queue)
        await cluster.queue(args.queue).pause(**args.given)
    until = end_of_pause(args.given)
    ending = f"until {clock.at_ms(until).isoformat(timespec='seconds')}" if until else "until it is resumed"
    yield Line(f"{args.queue} is paused: no item is claimed {ending}", {"queue": args.queue, "paused": True})


async def _resume(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        await note_new(cluster, args.queue)
        await cluster.queue(args.queue).resume()
    yield Line(f"{args.queue} is resumed", {"queue": args.queue, "paused": False})


async def _dead_list(args: Namespace) -> Lines:
    async with look_at(args) as cluster:
        await note_missing(cluster, args.queue)
        queue = cluster.queue(args.queue)
        letters = await queue.dead_letters(args.count)
        for letter in letters:
            yield item_line(letter)
        if len(letters) == args.count and (dead := (await queue.statistics()).sizes.dead) > args.count:
            more = "--count N shows more, `zkrq failures` counts them by reason or task"
            sys.stderr.write(f"these are the oldest {args.count:,} of {dead:,} dead letters: {more}\n")


async def _find(args: Namespace) -> Lines:
    if not args.given.keys() - {"state"}:
        listed = f"`zkrq list {args.queue} --state {args.given.get('state', 'ready')}`"
        raise ConfigError(f"find needs one of {FLAGS}; for all items: `zkrq export {args.queue}`, of a state: {listed}")
    async with look_at(args) as cluster:
        await note_missing(cluster, args.queue)
        async for item in cluster.queue(args.queue).find(**args.given):
            yield item_line(item)


async def _consumers(args: Namespace) -> Lines:
    async with look_at(args) as cluster:
        for owner, consumer in sorted((await cluster.consumers()).items()):
            held = ", ".join(f"{n} of {queue}" for queue, n in sorted(consumer.claims.items())) or "nothing"
            about = [f"zkrq {consumer.release}"]
            about += [f"on {consumer.host}"] if consumer.host else []
            about += [f"since {consumer.since:%Y-%m-%d %H:%M:%S} UTC"] if consumer.since else []
            about += [f"process {consumer.pid}"] if consumer.pid else []
            about += [f"{consumer.slots:,} slots"] if consumer.slots else []
            about += ["quiet" if consumer.claims else "quiet, has finished"] if consumer.quiet else []
            yield Line(
                f"{owner}  {consumer.description}  {', '.join(about)}; holds {held}",
                {"owner": owner, **CONSUMER.tell(consumer)},
            )
            for queue in sorted(consumer.claims) if args.items else ():
                for item in await cluster.queue(queue).peek(LOOKED_AT, "claimed"):
                    if item.owner == owner:
                        yield item_line(item)


async def _quiet(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        quieted = await cluster.quiet(*args.owner, host=args.host)
        alive = await cluster.consumers()
    there = tuple(owner for owner in quieted.done if owner in alive)
    for line in _quieted_lines(quieted._replace(done=there), "quiet: claims nothing more, and finishes what it has"):
        yield line
    for owner in quieted.done:
        if owner not in alive:
            yield Line(f"{owner}  has ended: what it had is delivered again", {"owner": owner, "outcome": "ended"})


async def _unquiet(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        quieted = await cluster.unquiet(*args.owner, host=args.host)
    for line in _quieted_lines(quieted, "claims again"):
        yield line


def _quieted_lines(quieted: Quieted, done: str) -> Iterable[Line]:
    """Say what became of each consumer that was named."""
    said = {
        "done": done,
        "silent": "has not said so in time; it follows when it hears",
        "unable": "its release does not know this; stop its process instead",
    }
    for outcome, text in said.items():
        for owner in getattr(quieted, outcome):
            yield Line(f"{owner}  {text}", {"owner": owner, "outcome": outcome})


COMMANDS = (
    Command(
        "find",
        "show the items that meet all given conditions",
        _find,
        takes=conditions("state", *EVERY),
    ),
    Command("stats", "count the items of each queue, and show the servers", _stats),
    Command("pause", "stop claims from a queue", _pause, takes=Takes(PAUSE, called={"seconds": "for"})),
    Command("resume", "allow claims again", _resume, takes=Takes(RESUME)),
    Command("dead list", "list the dead letters, with their reasons", _dead_list, takes=Takes(DEAD_LETTERS)),
    Command(
        "consumers",
        "list the consumers, and the claims that they hold",
        _consumers,
        (Flag("items", "also the items that each works on, of 500 claimed ones of a queue", bool),),
    ),
    Command(
        "quiet",
        "have consumers claim nothing more and finish what they have",
        _quiet,
        arguments={"owner?...": "owner ids, as `zkrq consumers` lists them"},
        takes=Takes(QUIET, {"owners": "they are arguments"}),
    ),
    Command(
        "unquiet",
        "let quiet consumers claim again",
        _unquiet,
        arguments={"owner?...": "owner ids, as `zkrq consumers` lists them"},
        takes=Takes(UNQUIET, {"owners": "they are arguments"}),
    ),
)
