"""Recover after all servers were restarted, for instance by a power cut: merge the data of their disks by version.

This happens automatically only if nothing can be missed: all members and all eligible servers answer, and those whose
data is of the view's generation take part.  Otherwise an operator names the servers to continue with, which is
reported as a possible loss.

A server that was out of the view has missed removals, and the tombstones of those may be gone by now.  Merging its data
with that of the view's servers would bring acked items back, so it takes part only if no named server has theirs.

A server's next generation follows from its old one alone.  So a recovery that was left in the middle is recognised and
continued, even if the view has changed; and a dump from before it is never mistaken for one from after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from zkrq.protocol.copying import QueueCopy, queues_at
from zkrq.protocol.enrolment import enrol, meet, reserve
from zkrq.protocol.lives import alive, holding, restarted
from zkrq.protocol.replies import Answer, Status
from zkrq.protocol.server_info import ServerInfo
from zkrq.protocol.steps import (
    Change,
    Identify,
    Invalid,
    Look,
    Nonce,
    NotNow,
    Now,
    Operation,
    Place,
    PlaceFailed,
    Refresh,
    Report,
)
from zkrq.protocol.view import Life, ServerId, View, recover, restored


class Recovered(NamedTuple):
    """The view after a recovery, and the servers that should have taken part and did not."""

    view: View
    missing: tuple[ServerId, ...]


class Stuck(NotNow):
    """All members were restarted, and nothing is merged unless an operator gives up what other servers may hold.

    ``there``: servers to continue with then.
    """

    def __init__(self, message: str, there: Iterable[ServerId]) -> None:
        super().__init__(message)
        self.there = tuple(sorted(there))


class _Possible(NamedTuple):
    """A recovery that may begin: the servers that take part, and those whose data is missing."""

    view: View
    met: Mapping[ServerId, ServerInfo]
    missing: tuple[ServerId, ...]


class Recovery:
    """One attempt.  If it is left in the middle, the next client continues it: merging twice has the effect of once."""

    def __init__(self, *, repairer: str) -> None:
        """Recover once.  ``repairer``: name of this client in reservations."""
        self._repairer = repairer

    def run(self) -> Operation[Recovered | None]:
        """Recover if all members were restarted; return None if that is not needed.

        Raises ``NotNow``, ``Stuck`` if it may be so for ever.
        """
        possible = yield from self._examine()
        return (yield from self._carry_out(*possible)) if possible else None

    def look(self) -> Operation[None]:
        """Return if no recovery is needed; change nothing.  Raises ``NotNow``, also where ``run`` would recover."""
        if possible := (yield from self._examine()):
            names = ", ".join(possible.met)
            raise NotNow(f"all servers were restarted; any client that runs continues with the data of {names}")

    def _examine(self) -> Operation[_Possible | None]:
        """Find out whether all members were restarted, and which servers have brought their data back."""
        view = yield from Refresh((yield from Look()))
        wanted = self.wanted(view)
        identities = yield from Identify(_present(view, wanted))
        if self.has_live_member(view, identities):
            return None
        try:
            met = yield from self.meet(_present(view, wanted))
        except NotNow as error:
            there = restarted(view, _lives(identities))
            if not there:
                raise
            raise Stuck(f"{error}; start it, or continue without what only it holds", there) from error
        if self.has_live_member(view, met):
            return None
        taking_part: dict[ServerId, ServerInfo] = {}
        for id, who in met.items():
            if who.epoch > view.epoch:
                raise NotNow(f"{id} has seen epoch {who.epoch}, ZooKeeper knows {view.epoch}: it lost data")
            if id in wanted and self.takes_part(view, wanted[id], who):
                taking_part[id] = who
        if not taking_part:
            raise Stuck(
                f"all servers were restarted, and none of {', '.join(sorted(wanted))} has brought its data back; to "
                "start again with what is there",
                met,
            )
        missing = tuple(sorted(wanted.keys() - taking_part.keys()))
        return _Possible(view, taking_part, missing)

    def run_with(self, named: frozenset[ServerId]) -> Operation[Recovered]:
        """Continue with the data of these servers, without waiting for others: for operators.

        If some of them have the data of the view, the others count as empty and come back by catch-up.  If none has,
        all their data is merged.  Raises ``Invalid`` if there is no need or no such server, ``NotNow``.
        """
        view = yield from Refresh((yield from Look()))
        unknown = sorted(named - view.servers.keys())
        if unknown or not named:
            raise Invalid(f"no server of this namespace: {', '.join(unknown) or '(none named)'}")
        if (yield from self._is_alive(view)):
            raise Invalid("nothing to recover: a server of the view lives")
        met = yield from meet(_present(view, named))
        if self.has_live_member(view, met):
            raise Invalid("nothing to recover: a server of the view lives")
        foreign = [id for id, who in met.items() if who.queues and who.is_foreign(view.deployment)]
        if foreign:
            raise Invalid(f"server {foreign[0]} holds the items of another deployment: go on without it")
        wanted = self.wanted(view)
        current = {id: who for id, who in met.items() if id in wanted and self.takes_part(view, wanted[id], who)}
        # Empty servers are not copies of the others: they come back by catch-up.
        taking_part = current or {id: who for id, who in met.items() if who.generation} or met
        missing = (wanted.keys() | named) - taking_part.keys()
        return (yield from self._carry_out(view, taking_part, tuple(sorted(missing))))

    # -- participants --------------------------------------------------------------------------------------------------

    def wanted(self, view: View) -> Mapping[ServerId, Life]:
        """Return the servers that may hold promised items; see the function."""
        return holding(view)

    def meet(self, servers: Iterable[ServerId]) -> Operation[dict[ServerId, ServerInfo]]:
        """Ask servers for their identity; a silent one may hold what the others have lost.  Raises ``NotNow``."""
        return meet(servers)

    def has_live_member(self, view: View, identities: Mapping[ServerId, ServerInfo | Answer]) -> bool:
        """Tell whether a member was met in the life that the view names; see the function."""
        return has_live_member(view, identities)

    def _is_alive(self, view: View) -> Operation[bool]:
        return self.has_live_member(view, (yield from Identify(_present(view, view.members))))

    def takes_part(self, view: View, known: Life, who: ServerInfo) -> bool:
        """Tell whether a server has the data that the view knows, possibly under the next generation, given by a
        recovery that was left in the middle."""
        return who.generation in (known.generation, self.renewed(view, known))

    def renewed(self, view: View, known: Life) -> str:
        """Return the next generation: made of the old one alone, so that it is recognised when ``view`` has changed."""
        return restored(known)

    # -- merging -------------------------------------------------------------------------------------------------------

    def _carry_out(
        self, view: View, met: Mapping[ServerId, ServerInfo], missing: tuple[ServerId, ...]
    ) -> Operation[Recovered]:
        lives: dict[ServerId, Life] = {}
        yield from reserve(met, self._repairer)
        try:
            yield from self.merge(view, met)
        except PlaceFailed as failure:
            raise NotNow(str(failure)) from failure
        for id, who in met.items():
            lives[id] = yield from self.renew(view, id, who)
        changed = yield from Change(view, partial(recover, lives=lives, now_ms=(yield from Now())))
        if changed.members != lives:
            raise NotNow("the view moved meanwhile")
        return Recovered(changed, missing)

    def merge(self, view: View, met: Mapping[ServerId, ServerInfo]) -> Operation[None]:
        """Have each of the servers hold what any of them holds.  Raises ``PlaceFailed``, ``NotNow``."""
        places = self.places(view, met)
        for other in places[1:]:
            yield from self.copy_all(met, other, places[0])
        for other in places[1:]:
            yield from self.copy_all(met, places[0], other)

    def places(self, view: View, met: Mapping[ServerId, ServerInfo]) -> list[Place]:
        """The servers that hold something, each in the life in which it was met."""
        lives = ((id, Life(who.run_id, who.generation)) for id, who in sorted(met.items()) if who.generation)
        return [Place(id, life, view.epoch) for id, life in lives]

    def copy_all(self, met: Mapping[ServerId, ServerInfo], source: Place, target: Place) -> Operation[None]:
        """Have ``target`` learn all that ``source`` holds.  Raises ``PlaceFailed``."""

        def copied(items: int) -> Operation[None]:
            if (yield from Report(items, 0)):
                yield from reserve(met, self._repairer)

        for queue in (yield from queues_at(source)):
            yield from QueueCopy(queue).go_on(source, target, copied)

    def renew(self, view: View, id: ServerId, who: ServerInfo) -> Operation[Life]:
        """Give a server that took part its next generation, or a new one if it is empty."""
        known = self.wanted(view).get(id, Life(who.run_id, who.generation))
        life = Life(who.run_id, self.renewed(view, known) if who.generation else (yield from Nonce()))
        # Merging took time.  Only the clock is read again, so that a flushed server is detected.
        again = (yield from meet([id]))[id]
        who = replace(who, clock_us=again.clock_us)
        answer = yield from enrol(id, who, view.epoch, life, deployment=view.deployment, holding=True)
        if answer.status is not Status.OK:
            raise NotNow(f"{id} was not enrolled: {answer.reason}")
        return life


def has_live_member(view: View, identities: Mapping[ServerId, ServerInfo | Answer]) -> bool:
    """Tell whether a member was met in the life that the view names."""
    return bool(alive(view, _lives(identities)))


def _lives(identities: Mapping[ServerId, ServerInfo | Answer]) -> Mapping[ServerId, Life]:
    """Return the lives in which servers were met."""
    met = ((id, who) for id, who in identities.items() if isinstance(who, ServerInfo))
    return {id: Life(who.run_id, who.generation) for id, who in met}


def _present(view: View, ids: Iterable[ServerId]) -> list[ServerId]:
    """Return the ids, sorted.  Raises ``NotNow`` if one was removed from the namespace."""
    missing = [id for id in ids if id not in view.servers]
    if missing:
        raise NotNow(f"the view moved meanwhile: {missing[0]} was removed")
    return sorted(ids)
