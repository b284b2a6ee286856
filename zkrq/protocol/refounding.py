"""Found a namespace again from what its Redis servers hold, after ZooKeeper has lost everything.

ZooKeeper knew which servers were in sync; without it nothing can tell a server that held every item from one that had
been out for days.  So an operator names the servers to continue with, and all that they hold is merged by version: an
item whose push had returned is there if any named server was in sync.  If another named one was not, items that were
acked since it left may come back, because tombstones are not kept for ever.

A wrong address of ZooKeeper looks like a lost one.  So that two ensembles never rule the same servers, each server gets
a new generation and a new deployment: clients of the former view find no server in sync, and cannot recover it by
themselves.  Both are made of the old ones alone, so a refounding that was left in the middle is recognised, and the
register is written last, in one step: clients see no namespace, or the whole one.

A server that was away at one refounding looks, at the next, like one that was left in the middle of it; what it holds
is stale, and merging it would bring acked items back.  Epochs tell them apart: all named servers are given everything
under one epoch before the first of them gets its new deployment, and that epoch is so much later than any before that a
server that was not there never comes to it, not even if its former clients live and go on with it alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Set
from dataclasses import replace
from typing import TYPE_CHECKING

from zkrq.protocol.enrolment import enrol, meet, reserve
from zkrq.protocol.founding import Charter, Location, misnamed
from zkrq.protocol.levels import SPOKEN
from zkrq.protocol.recovery import Recovered, Recovery
from zkrq.protocol.replies import Status
from zkrq.protocol.steps import (
    Identify,
    Invalid,
    Log,
    Nonce,
    NotNow,
    Operation,
    PlaceFailed,
    ReadRegister,
    WriteRegister,
)
from zkrq.protocol.view import FOUNDING, Life, ServerId, View

if TYPE_CHECKING:
    from zkrq.protocol.server_info import ServerInfo


EPOCHS_AHEAD = 1000
"""Epochs by which a refounding is ahead of what its servers have seen, so that no other server comes to its epoch."""


def refounded(nonce: str) -> str:
    """Return the generation, or the deployment, that follows this one when a namespace is founded again."""
    return hashlib.blake2b(b"refounded " + nonce.encode(), digest_size=8).hexdigest()


class Refounding:
    """One attempt.  If it is left in the middle, it may be repeated, with the same servers or with others."""

    def __init__(self, charter: Charter, servers: Mapping[ServerId, Location], *, repairer: str) -> None:
        """``servers``: all that this client was given; ``repairer``: its name in reservations."""
        self._namespace = charter.namespace
        self._min_replicas = charter.min_replicas
        self.servers = servers
        self._repairer = repairer

    def run_with(self, named: frozenset[ServerId]) -> Operation[Recovered]:
        """Merge what these servers hold, and write a first view in which those that held something are in sync.

        Raises ``Invalid`` if ZooKeeper knows the namespace or the servers do not belong together, ``NotNow`` if one of
        them does not answer, or another client was faster.
        """
        version = yield from self._check_register()
        holding = yield from self.holding(named)
        deployment = self._deployment(holding)
        latest = yield from self.latest(holding)
        view = yield from self._first_view(latest + EPOCHS_AHEAD, deployment)
        return (yield from self.go_on(view, version, holding))

    def holding(self, named: frozenset[ServerId]) -> Operation[dict[ServerId, ServerInfo]]:
        """Meet the named servers; return those that hold something.  Raises ``Invalid``, ``NotNow``."""
        met = yield from self._meet(named)
        holding = {id: info for id, info in met.items() if info.generation}
        if not holding:
            raise Invalid(f"none of {', '.join(sorted(named))} holds anything of namespace {self._namespace!r}")
        return holding

    def latest(self, holding: Mapping[ServerId, ServerInfo]) -> Operation[int]:
        """Return the latest epoch that these servers have seen; warn of each that has not."""
        latest = max(info.epoch for info in holding.values())
        for id, info in sorted(holding.items()):
            if info.epoch < latest:
                text = (
                    f"server {id} has seen epoch {info.epoch}, others {latest}: if it had been out of sync, items that"
                )
                yield Log(f"{text} were acked since may be delivered again", id)
        return latest

    def go_on(self, view: View, version: int, holding: Mapping[ServerId, ServerInfo]) -> Operation[Recovered]:
        """Merge what servers hold, and write the view in which they are in sync over this version of the register.

        ``view``: without members, of an epoch that no server has come to.  Raises ``NotNow``.
        """
        yield from reserve(holding, self._repairer)
        try:
            # Under the greater epoch: what the servers' former clients still write is refused from here on.
            yield from Recovery(repairer=self._repairer).merge(view, holding)
        except PlaceFailed as failure:
            raise NotNow(str(failure)) from failure
        lives: dict[ServerId, Life] = {}
        for id, info in sorted(holding.items()):
            lives[id] = yield from self._enrol(view, id, info)
        view = replace(view, members=lives)
        yield WriteRegister(view, version)
        written, _ = yield from ReadRegister()
        if written is None or written.by != view.by:
            raise NotNow("another client has changed the view meanwhile")
        return Recovered(view, tuple(sorted(self.servers.keys() - lives.keys())))

    def _check_register(self) -> Operation[int]:
        """Return the version of the register, in which there must be no view, or none that can be read."""
        known, version = yield from ReadRegister(even_damaged=True)
        if known is not None and known.epoch != FOUNDING:
            raise Invalid(
                f"ZooKeeper knows namespace {self._namespace!r} at epoch {known.epoch}, so it need not be founded "
                "again: recover its servers without --without-zookeeper"
            )
        return version

    def _meet(self, named: frozenset[ServerId]) -> Operation[dict[ServerId, ServerInfo]]:
        """Ask the named servers for their identity; check that they are those that this client means."""
        unknown = sorted(named - self.servers.keys())
        if unknown or not named:
            raise Invalid(f"not among the servers that were given: {', '.join(unknown) or '(none named)'}")
        met = yield from meet(sorted(named))
        runs: dict[str, ServerId] = {}
        for id, info in met.items():
            if (twin := runs.setdefault(info.run_id, id)) != id:
                raise Invalid(f"{twin} and {id} are the same Redis server: N copies need N servers")
            if text := misnamed(id, info.name, self.servers[id].shown, self._namespace):
                raise Invalid(text)
        return met

    def _deployment(self, holding: Mapping[ServerId, ServerInfo]) -> str:
        """Return the next deployment of these servers, some of which may have it already."""
        deployments = {info.deployment for info in holding.values()}
        first = {one for one in deployments if refounded(one) in deployments} or deployments
        if len(first) > 1 or deployments - {*first, *map(refounded, first)}:
            raise Invalid(
                f"{', '.join(sorted(holding))} belong to different deployments of namespace {self._namespace!r}: name "
                "those of one"
            )
        deployment = refounded(first.pop())
        self._check_left_in_the_middle({id for id in holding if holding[id].deployment == deployment}, holding)
        return deployment

    def _check_left_in_the_middle(self, done: Set[ServerId], holding: Mapping[ServerId, ServerInfo]) -> None:
        """Check that the others were there when those that are ``done`` got the next deployment, if any did.

        Raises ``Invalid``.  What to do then is right in any case: those that are done hold all that the others gave.
        """
        reached = max((holding[id].epoch for id in done), default=0)
        away = sorted(id for id in holding.keys() - done if done and holding[id].epoch != reached)
        if away:
            names = " ".join(sorted(done))
            raise Invalid(
                f"namespace {self._namespace!r} was founded again before, without {', '.join(away)}: what is there is "
                f"stale. Name the others alone (`zkrq servers recover --without-zookeeper {names}`), then bring each "
                "of these back: `zkrq servers add URL --name NAME --force`"
            )

    def _first_view(self, epoch: int, deployment: str) -> Operation[View]:
        needed = min(2, len(self.servers)) if self._min_replicas is None else self._min_replicas
        urls = {id: self.servers[id].public for id in sorted(self.servers)}
        # The level is lost with the view.  The latest one is safe: what was written at another can be read.
        nonce = yield from Nonce()
        return View(epoch, {}, {}, {}, urls, needed, nonce, deployment, level=SPOKEN.highest)

    def next_generation(self, view: View, info: ServerInfo) -> str:
        """Return the generation of a server in this view, made of its former one alone."""
        known = info.generation
        return known if info.deployment == view.deployment else refounded(known)

    def _enrol(self, view: View, id: ServerId, info: ServerInfo) -> Operation[Life]:
        """Give a server its next generation, unless it has it already."""
        life = Life(info.run_id, self.next_generation(view, info))
        again = (yield from meet([id]))[id]  # merging took time; see Recovery.renew
        answer = yield from enrol(
            id, replace(info, clock_us=again.clock_us), view.epoch, life, deployment=view.deployment, holding=True
        )
        if answer.status is not Status.OK:
            raise NotNow(f"{id} was not enrolled: {answer.reason}")
        return life


class Reinstating(Refounding):
    """Write a view over one that went back, because ZooKeeper was restored from an older backup: the servers know
    better.  If it is left in the middle, it may be repeated, since the servers have seen a later epoch still.

    The servers have seen later epochs than the view that is stored.  Which of them were in sync under the latest one is
    lost, so an operator names the servers to continue with, and what they hold is merged as after the loss of
    ZooKeeper.  Servers that are not named come back by catch-up.

    Clients may still run that know the later view, or even the stored one.  Three rules keep them from completing
    anything beside the new view:

    * *Its epoch is above every epoch that a server of the namespace has seen*, by so much that a server which does not
      answer has not come to it.  Named servers hear of it before anything is copied from them: from then on they refuse
      calls of the later view, which completes none without all of its members.
    * *Each named server has a new generation*, made of the former one alone.  Without it, a dump of a server from
      before the merge would count as in sync afterwards; and a client of the later view, in another ensemble that was
      not lost, could go on with a part of the servers.
    * *No client writes over the register by its version number alone.*  It may be the number that a client remembers,
      with another content (``Coordinator.swap``); and a client that has seen the register go back changes nothing until
      a later view than its own is there (``Membership``).
    """

    def run_with(self, named: frozenset[ServerId], *, map_number: int = 0) -> Operation[Recovered]:
        """Merge what these servers hold, and write a view in which those that held something are in sync.

        ``map_number``: of the shard map that pushes must know.  Raises ``Invalid`` if no server has seen a later epoch
        than the stored one, or a server that is not named knows more; ``NotNow`` if a named one does not answer.
        """
        stored, version = yield from ReadRegister()
        if stored is None or stored.epoch == FOUNDING:
            raise Invalid("ZooKeeper knows no view here: `zkrq servers recover --without-zookeeper NAME...`")
        holding = yield from self.holding(named)
        for id, info in sorted(holding.items()):
            if info.deployment not in (stored.deployment, refounded(stored.deployment)):
                raise Invalid(f"server {id} holds the items of another deployment: go on without it")
        if len({info.deployment for info in holding.values()}) > 1:
            raise Invalid(f"{', '.join(sorted(holding))} belong to different deployments: name those of one")
        latest = yield from self.latest(holding)
        if latest <= stored.epoch:
            raise Invalid(
                f"ZooKeeper's view has epoch {stored.epoch}, and these servers have seen none that is later: it did "
                "not go back"
            )
        yield from self._check_others(holding, latest)
        view = yield from self._next_view(stored, latest, map_number)
        deployment = next(iter(holding.values())).deployment
        return (yield from self.go_on(replace(view, deployment=deployment), version, holding))

    def next_generation(self, view: View, info: ServerInfo) -> str:
        """Return the next generation.  An attempt that is repeated gives another one: no view names the one before."""
        return refounded(info.generation)

    def _check_others(self, holding: dict[ServerId, ServerInfo], latest: int) -> Operation[None]:
        """Raise ``Invalid`` if a server that was not named has seen a later epoch: it may hold what the named lack."""
        others = yield from Identify([id for id in sorted(self.servers) if id not in holding])
        deployment = next(iter(holding.values())).deployment
        for id, who in others.items():
            if not isinstance(who, tuple) and who.deployment == deployment and who.epoch > latest:
                raise Invalid(
                    f"server {id} has seen epoch {who.epoch}, and the named servers none after {latest}: name it as "
                    "well, since it may hold what they lack"
                )

    def _next_view(self, stored: View, latest: int, map_number: int) -> Operation[View]:
        """Return the new view, without members."""
        if stored.level != SPOKEN.highest:
            # The stored one may be from before it was raised.  What was written at another level can be read.
            yield Log(f"level {SPOKEN.highest} is active from now on; clients that do not speak it are refused")
        urls = {id: location.public for id, location in self.servers.items()}
        return replace(
            stored,
            epoch=latest + EPOCHS_AHEAD,
            members={},
            learners={},
            eligible={},
            servers=dict(sorted({**stored.servers, **urls}.items())),
            by=(yield from Nonce()),
            map_number=max(stored.map_number, map_number),
            accusations={},
            level=max(stored.level, SPOKEN.highest),
        )
