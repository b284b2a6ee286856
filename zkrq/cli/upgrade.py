"""Define the command that raises the active level, and says which clients are too old for it."""

from __future__ import annotations

from argparse import Namespace

from zkrq.cli.command import Command, Incomplete, Line, Lines, count, open_cluster
from zkrq.cli.flags import Flag
from zkrq.client.inner import client_of


async def _upgrade(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        before = cluster.level
        if not args.check:
            level = await cluster.upgrade(args.level, force=args.force)
            text = f"level {level} is active" + (", as before" if level == before else f"; before: {before}")
            yield Line(text, {"level": level, "before": before})
            return
        upgrading = client_of(cluster).upgrading
        level, release, late = await upgrading.find_late(args.level)
        for session, client in sorted(late.items(), key=lambda each: (each[1].host, each[1].description)):
            shown = f"{client.host or '-'}  {client.description or session}  zkrq {client.release}"
            yield Line(shown, {"session": session, **client._asdict(), "levels": list(client.levels)})
        if late:
            raise Incomplete(f"{count(len(late), 'client')} must be replaced by zkrq {release} or later first")
        names = f"level {before} is active, and every client speaks level {level}"
        yield Line(names, {"level": before, "wanted": level})


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
