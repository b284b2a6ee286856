"""Enrol servers: write a generation into a server, which identifies it from then on.  Meet and seal them.

Repair calls servers in lives of its own choosing, not only in the one that the view names.  A reservation on the server
keeps two clients from repairing it at the same time; safety does not need it, since every step may be repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from zkrq.protocol.calls import Enrol, Reserve, Seal
from zkrq.protocol.replies import Answer, Status
from zkrq.protocol.steps import Answers, Ask, Identify, NotNow, Operation, Taken
from zkrq.protocol.view import Life, ServerId

if TYPE_CHECKING:
    from zkrq.protocol.server_info import ServerInfo
    from zkrq.protocol.view import View

ENROL_WINDOW_MS = 10_000
"""Milliseconds by the server's clock after which an enrolment is refused."""

HOLD_MS = 10_000
"""Milliseconds for which the right to repair a server lasts unless it is renewed."""


def meet(servers: Iterable[ServerId]) -> Operation[dict[ServerId, ServerInfo]]:
    """Ask servers for their identity; all must answer and be usable.  Raises ``NotNow``."""
    met: dict[ServerId, ServerInfo] = {}
    for id, who in (yield from Identify(list(servers))).items():
        if isinstance(who, Answer):
            raise NotNow(f"server {id}: {who.reason}")
        met[id] = who
    return met


def seal(view: View, servers: Iterable[ServerId], *, anew: bool = False) -> Operation[Answers]:
    """Make servers of the view adopt its epoch, which also shows which of them answer; ``anew``: see ``Ask``."""
    lives = {id: view.receivers[id] for id in sorted(servers)}
    return (yield from Ask(view.epoch, lives, Seal(), anew=anew)) if lives else {}


def enrol(
    server: ServerId, who: ServerInfo, epoch: int, life: Life, *, deployment: str, holding: bool
) -> Operation[Answer]:
    """Give a server, whose identity is ``who``, the generation of ``life``.  ``holding``: whether it may hold queues.

    Sent once and short-lived, because a late duplicate could vouch for a server that was flushed meanwhile.
    """
    ask = enrolment(server, who, epoch, life, deployment=deployment, holding=holding)
    answers = yield from ask
    return answers[server]


def enrolment(server: ServerId, who: ServerInfo, epoch: int, life: Life, *, deployment: str, holding: bool) -> Ask:
    """Return the step of ``enrol``."""
    call = Enrol(who.generation, server, deployment, who.clock_us, ENROL_WINDOW_MS, holding)
    return Ask(epoch, {server: life}, call, once=True)


def reserve(servers: Mapping[ServerId, ServerInfo], repairer: str) -> Operation[None]:
    """Take, or keep, the right to repair these servers.  Raises ``NotNow``."""
    for id, who in servers.items():
        answers = yield from Ask(0, {id: Life(who.run_id, "")}, Reserve(repairer, HOLD_MS))
        if answers[id].status is Status.TAKEN:
            raise Taken(f"server {id} is being repaired by another client")
        if answers[id].status is not Status.OK:
            raise NotNow(f"server {id}: {answers[id].reason}")
