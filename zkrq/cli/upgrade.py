"""Define the command that raises the active level, and says which clients are too old for it."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from zkrq.cli.command import Command, Flag, Incomplete, Line, Lines, count, open_cluster
from zkrq.client.inner import client_of

if TYPE_CHECKING:
    from zkrq.client.upgrading import Unnamed


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
        if before < level:
            async for line in _unnamed(await upgrading.find_unnamed(args.wait), was_removed=bool(args.wait)):
                yield line
        names = f"level {before} is active, and every client that is known speaks level {level}"
        yield Line(names, {"level": before, "wanted": level})


async def _unnamed(found: Unnamed, *, was_removed: bool) -> Lines:
    """Say whether there may be a client that no list has.  Raises ``Incomplete`` if there is one."""
    for server, reason in sorted(found.unknown.items()):
        text = f"{server}  whether a program uses functions of another release is not known: {reason}"
        yield Line(text, {"server": server, "unknown": reason})
    for server, names in sorted(found.libraries.items()):
        text = f"{server}  has functions that no listed client uses: {', '.join(names)}"
        yield Line(text, {"server": server, "functions": list(names)})
    if not found.libraries:
        return
    who = f"a program of zkrq {found.release} that only pushes names no release, so it is not listed"
    if was_removed:
        raise Incomplete(
            f"{who}: one has loaded its functions again, unless that was a program of another namespace on these "
            "servers; look for it"
        )
    text = (
        f"{who}, and may use them: `zkrq upgrade --check --wait 60` removes them, and sees whether one loads them again"
    )
    yield Line(text, {"next": "zkrq upgrade --check --wait 60"})


COMMANDS = (
    Command(
        "upgrade",
        "after all clients were replaced by a later release: let it write what the former one cannot read",
        _upgrade,
        (
            Flag("check", "change nothing; list the clients that are too old, by host", bool, False),
            Flag(
                "wait",
                "with --check: remove functions that no listed client uses, and see for so long whether any are "
                "loaded again",
                float,
                0.0,
                "SECONDS",
            ),
            Flag("level", "the level to raise to; default: the latest of this release", int, None, "N"),
            Flag("force", "even if clients are too old: they are refused from then on", bool, False),
        ),
    ),
)
