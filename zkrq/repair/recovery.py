"""Everybody was restarted, after a power cut say: what the disks gave back is merged, the greatest version wins.

By itself only when nothing can be missed: all members and all eligible servers answer, and those whose data is of the
view's generation take part.  Otherwise an operator names the servers to go on with, which is told as possible loss.

A server that was out of the view has missed removals, and the tombstones of those may be gone by now.  Merging its data
with that of the view's servers would bring acked items back, so it takes part only where no named server has theirs.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from zkrq.errors import ConfigError
from zkrq.protocol.replies import Status
from zkrq.protocol.view import Life, ServerId, View, recover, restored
from zkrq.repair.places import NotNow, Reservation, meet
from zkrq.replication.copying import CopyFailed, copy_queue, queues_at
from zkrq.replication.founding import enrol
from zkrq.replication.link import Identity
from zkrq.replication.membership import Membership, someone_lives


class Outcome(NamedTuple):
    """The view after a recovery, and the servers that were to have a part in it and had none."""

    view: View
    missing: tuple[ServerId, ...]


class Recovery:
    """One attempt.  Left in the middle it is continued by whoever tries next: merging twice is merging once."""

    def __init__(self, membership: Membership, *, repairer: str) -> None:
        self._membership = membership
        self._fleet = membership.fleet
        self._repairer = repairer

    async def run(self) -> Outcome | None:
        """Recover, if all members were restarted; None where it is not needed.  Raises ``NotNow``, ``Unavailable``."""
        view = await self._membership.refresh(self._membership.view)
        wanted = {**view.members, **view.eligible}
        if await self._is_alive(view):
            return None
        met = await meet(self._fleet, self._present(wanted))
        if someone_lives(view, met):
            return None
        taking_part: dict[ServerId, Identity] = {}
        for id, who in met.items():
            if who.epoch > view.epoch:
                raise NotNow(f"{id} has seen epoch {who.epoch}, ZooKeeper knows {view.epoch}: it lost data")
            if _is_current(wanted, id, who):
                taking_part[id] = who
        if not taking_part:
            raise NotNow(
                f"all servers were restarted, and none of {', '.join(sorted(wanted))} has brought its data back: "
                "`zkrq servers recover` begins anew with the servers that it is given"
            )
        return await self._carry_out(view, taking_part, tuple(sorted(wanted.keys() - taking_part.keys())))

    async def run_with(self, named: frozenset[ServerId]) -> Outcome:
        """Go on with what these servers hold, without waiting for others: for operators.

        Where some of them have the data of the view, the others count as empty and come back by catch-up.  Where none
        has, whatever they hold is merged.
        Raises ``ConfigError`` where there is no need or no such server, ``NotNow``, ``Unavailable``.
        """
        view = await self._membership.refresh(self._membership.view)
        unknown = sorted(named - view.servers.keys())
        if unknown or not named:
            raise ConfigError(f"no server of this namespace: {', '.join(unknown) or '(none named)'}")
        if await self._is_alive(view):
            raise ConfigError("nothing to recover: a server of the view lives")
        met = await meet(self._fleet, self._present(named))
        if someone_lives(view, met):
            raise ConfigError("nothing to recover: a server of the view lives")
        foreign = [id for id, who in met.items() if who.queues and who.is_foreign(view.deployment)]
        if foreign:
            raise ConfigError(f"server {foreign[0]} holds the items of another deployment: go on without it")
        wanted = {**view.members, **view.eligible}
        current = {id: who for id, who in met.items() if _is_current(wanted, id, who)}
        # Those that hold nothing are no copies of those that do: they come back by catch-up.
        taking_part = current or {id: who for id, who in met.items() if who.generation} or met
        missing = (wanted.keys() | named) - taking_part.keys()
        return await self._carry_out(view, taking_part, tuple(sorted(missing)))

    async def _is_alive(self, view: View) -> bool:
        return someone_lives(view, await self._fleet.identify(self._present(view.members)))

    def _present(self, ids: Iterable[ServerId]) -> list[ServerId]:
        """Return the ids, sorted.  Raises ``NotNow`` where one was removed from the namespace."""
        missing = [id for id in ids if id not in self._fleet.servers]
        if missing:
            raise NotNow(f"the view moved meanwhile: {missing[0]} was removed")
        return sorted(ids)

    async def _carry_out(self, view: View, met: Mapping[ServerId, Identity], missing: tuple[ServerId, ...]) -> Outcome:
        held = {id: Reservation(self._fleet, id, who.run_id, self._repairer) for id, who in met.items()}
        try:
            for reservation in held.values():
                await reservation.take()
            await self._merge(view, met, held)
            lives = {id: await self._renew(view, id, who) for id, who in met.items()}
        except CopyFailed as failure:
            raise NotNow(str(failure)) from failure
        changed = await self._membership.change(view, partial(recover, lives=lives))
        if changed.members != lives:
            raise NotNow("the view moved meanwhile")
        return Outcome(changed, missing)

    async def _merge(self, view: View, met: Mapping[ServerId, Identity], held: Mapping[ServerId, Reservation]) -> None:
        """Afterwards each of them holds what any of them held."""

        async def keep(_: int) -> None:
            for reservation in held.values():
                await reservation.keep()

        places = [
            self._fleet.place(view.epoch, id, Life(who.run_id, who.generation))
            for id, who in sorted(met.items())
            if who.generation
        ]
        for other in places[1:]:
            for queue in await queues_at(other):
                await copy_queue(other, places[0], queue, keep)
        for other in places[1:]:
            for queue in await queues_at(places[0]):
                await copy_queue(places[0], other, queue, keep)

    async def _renew(self, view: View, id: ServerId, who: Identity) -> Life:
        """Give a server that took part the generation that follows its own; a new one to one that holds nothing."""
        known = {**view.members, **view.eligible}.get(id, Life(who.run_id, who.generation))
        life = Life(who.run_id, restored(known) if who.generation else secrets.token_hex(8))
        # Merging took its time: only its clock is asked for again, so that one that was flushed meanwhile is found out.
        again = (await meet(self._fleet, [id]))[id]
        who = replace(who, clock_us=again.clock_us)
        answer = await enrol(self._fleet, id, who, view.epoch, life, deployment=view.deployment, holding=True)
        if answer.status is not Status.OK:
            raise NotNow(f"{id} was not enrolled: {answer.reason}")
        return life


def _is_current(wanted: Mapping[ServerId, Life], id: ServerId, who: Identity) -> bool:
    """Whether a server has the data that the view knows it by, perhaps under the next generation already, given by a
    recovery that was left in the middle."""
    return id in wanted and who.generation in (wanted[id].generation, restored(wanted[id]))
