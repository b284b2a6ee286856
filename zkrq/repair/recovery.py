"""Everybody was restarted, after a power cut say: what the disks gave back is merged, the greatest version wins.

By itself only when nothing can be missed: all members and all eligible servers answer, and those whose data is of the
view's generation take part.  Otherwise an operator names the servers to go on with, which is told as possible loss.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from functools import partial
from typing import NamedTuple

from zkrq.errors import ConfigError
from zkrq.repair.places import NotNow, meet, place, reserve
from zkrq.replication.copying import CopyFailed, copy_queue, queues_at
from zkrq.replication.founding import enrol, identify
from zkrq.replication.membership import Membership, someone_lives
from zkrq.replication.replies import Status
from zkrq.replication.server import Identity
from zkrq.replication.view import Life, ServerId, View, recover, restored


class Outcome(NamedTuple):
    """The view after a recovery, and the servers that were to have a part in it and had none."""

    view: View
    missing: tuple[ServerId, ...]


class Recovery:
    """One attempt.  Left in the middle it is continued by whoever tries next: merging twice is merging once."""

    def __init__(self, membership: Membership, *, repairer: str) -> None:
        self._membership = membership
        self._repairer = repairer

    async def run(self) -> Outcome | None:
        """Recover, if all members were restarted; None where it is not needed.  Raises ``NotNow``, ``Unavailable``."""
        view = await self._membership.refresh(self._membership.view)
        wanted = {**view.members, **view.eligible}
        if await self._is_alive(view, view.members):
            return None
        met = await meet({id: self._membership.servers[id] for id in wanted})
        taking_part: dict[ServerId, Identity] = {}
        for id, who in met.items():
            if who.epoch > view.epoch:
                raise NotNow(f"{id} has seen epoch {who.epoch}, ZooKeeper knows {view.epoch}: it lost data")
            if who.generation in (wanted[id].generation, restored(wanted[id])):
                taking_part[id] = who
        if not taking_part:
            raise NotNow(
                f"all servers were restarted, and none of {', '.join(sorted(wanted))} has brought its data back: "
                "`zkrq servers recover` begins anew with the servers that it is given"
            )
        return await self._carry_out(view, taking_part, tuple(sorted(wanted.keys() - taking_part.keys())))

    async def run_with(self, named: Collection[ServerId]) -> Outcome:
        """Go on with what these servers hold, whatever it is, without waiting for others: for operators.

        Raises ``ConfigError`` where there is no need or no such server, ``NotNow``, ``Unavailable``.
        """
        view = await self._membership.refresh(self._membership.view)
        unknown = sorted(set(named) - view.servers.keys())
        if unknown or not named:
            raise ConfigError(f"no server of this namespace: {', '.join(unknown) or '(none named)'}")
        if await self._is_alive(view, view.members):
            raise ConfigError("nothing to recover: a server of the view lives")
        met = await meet({id: self._membership.servers[id] for id in sorted(named)})
        missing = {**view.members, **view.eligible}.keys() - met.keys()
        return await self._carry_out(view, met, tuple(sorted(missing)))

    async def _is_alive(self, view: View, servers: Collection[ServerId]) -> bool:
        return someone_lives(view, await identify({id: self._membership.servers[id] for id in servers}))

    async def _carry_out(self, view: View, met: Mapping[ServerId, Identity], missing: tuple[ServerId, ...]) -> Outcome:
        try:
            for id, who in met.items():
                await reserve(self._membership.servers[id], who.run_id, self._repairer)
            await self._merge(view, met)
            lives = {id: await self._renew(view, id, who) for id, who in met.items()}
        except CopyFailed as failure:
            raise NotNow(str(failure)) from failure
        changed = await self._membership.change(view, partial(recover, lives=lives))
        if changed.members != lives:
            raise NotNow("the view moved meanwhile")
        return Outcome(changed, missing)

    async def _merge(self, view: View, met: Mapping[ServerId, Identity]) -> None:
        """Afterwards each of them holds what any of them held."""
        places = {
            id: place(self._membership.servers[id], view.epoch, Life(who.run_id, who.generation))
            for id, who in met.items()
            if who.generation
        }
        if len(places) < 2:
            return
        base_id = min(places)
        base = places.pop(base_id)

        async def renew(_: int) -> None:
            await reserve(self._membership.servers[base_id], met[base_id].run_id, self._repairer)

        for other in places.values():
            for queue in await queues_at(other):
                await copy_queue(other, base, queue, renew)
        for queue in await queues_at(base):
            await asyncio.gather(*(copy_queue(base, other, queue, renew) for other in places.values()))

    async def _renew(self, view: View, id: ServerId, who: Identity) -> Life:
        """Give a server that took part the generation that follows its own."""
        known = {**view.members, **view.eligible}.get(id, Life(who.run_id, who.generation))
        life = Life(who.run_id, restored(known))
        answer = await enrol(self._membership.servers[id], who, view.epoch, life, holding=True)
        if answer.status is Status.LATE:  # merging took its time: ask for the time again
            again = (await meet({id: self._membership.servers[id]}))[id]
            answer = await enrol(self._membership.servers[id], again, view.epoch, life, holding=True)
        if answer.status is not Status.OK:
            raise NotNow(f"{id} was not enrolled: {answer.reason}")
        return life
