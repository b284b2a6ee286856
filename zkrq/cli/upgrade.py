"""Define the command that raises the active level, and says which clients are too old for it."""

from __future__ import annotations

from argparse import Namespace

from zkrq.cli.command import Command, Flag, Incomplete, Line, Lines, count, open_cluster
from zkrq.protocol.levels import RELEASES, SPOKEN, too_old


async def _upgrade(args: Namespace) -> Lines:
    level: int = args.level or SPOKEN.highest
    async with open_cluster(args) as cluster:
        if not args.check:
            before = cluster.level
            await cluster.upgrade(level, force=args.force)
            text = f"level {level} is active" + (", as before" if level == before else f"; before: {before}")
            yield Line(text, {"level": level, "before": before})
            return
        late = too_old(await cluster.clients(), level)
        for session, client in sorted(late.items(), key=lambda each: (each[1].host, each[1].description)):
            shown = f"{client.host or '-'}  {client.description or session}  zkrq {client.version or 'before 0.2.0'}"
            yield Line(shown, {"session": session, **client._asdict(), "levels": list(client.levels)})
        if late:
            raise Incomplete(f"{count(len(late), 'client')} must be replaced by zkrq {RELEASES[level]} or later first")
        names = f"level {cluster.level} is active, and every client that is known speaks level {level}"
        yield Line(names, {"level": cluster.level, "wanted": level})


COMMANDS = (
    Command(
        "upgrade",
        "after all clients were replaced by a later release: let it write what the former one cannot read",
        _upgrade,
        (
            Flag("check", "change nothing; list the clients that are too old, by host", bool, False),
            Flag("level", f"the level to raise to; default: {SPOKEN.highest}", int, None, "N"),
            Flag("force", "even if clients are too old: they are refused from then on", bool, False),
        ),
    ),
)
