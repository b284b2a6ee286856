"""Define the command that raises the active level, and says which clients are too old for it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping

from zkrq.cli.command import Command, Incomplete, Line, Lines, count, open_cluster
from zkrq.cli.flags import Flag
from zkrq.client.inner import client_of
from zkrq.protocol.levels import ClientInfo, Feature


async def _upgrade(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        before = cluster.level
        level, release, late = await client_of(cluster).upgrading.find_late(args.level)
        if not args.check:
            level = await cluster.upgrade(args.level, force=args.force)
            yield raised(before, level, release, late)
            return
        for session, client in sorted(late.items(), key=lambda each: (each[1].host, each[1].description)):
            shown = f"{client.host or '-'}  {client.description or session}  zkrq {client.release}"
            yield Line(shown, {"session": session, **client._asdict(), "levels": list(client.levels)})
        if late:
            raise Incomplete(f"{count(len(late), 'client')} must be replaced by zkrq {release} or later first")
        names = f"level {before} is active, and every client speaks level {level}"
        yield Line(names, {"level": before, "wanted": level})


def raised(before: int, level: int, release: str, late: Mapping[str, ClientInfo]) -> Line:
    """Say what an upgrade has done.

    ``release``: the first that speaks the level.  ``late``: clients that do not, which only force passes over.
    """
    features = [each.value[0] for each in Feature if before < each.level <= level]
    refused = sorted(each.label for each in late.values())
    value = {"level": level, "before": before, "features": features, "refused": refused}
    if level == before:
        return Line(f"level {level} is active, as before", value)
    parts = [f"raised from level {before} to level {level}, that of zkrq {release}"]
    parts += [f"it brings {', '.join(features)}"] if features else []
    parts += [f"{count(len(refused), 'client')} refused from now on: {', '.join(refused)}"] if refused else []
    return Line("; ".join(parts), value)


COMMANDS = (
    Command(
        "upgrade",
        "after all clients were replaced by a later release: let it write what the former one cannot read",
        _upgrade,
        (
            Flag("check", "change nothing; list the clients that are too old, by host", bool, False),
            Flag("level", "the level to raise to; default: the latest of this release", int, None, "N"),
            Flag("force", "even if clients are too old: they are refused from then on", bool, False),
        ),
    ),
)
