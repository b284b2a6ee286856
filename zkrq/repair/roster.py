"""Change which servers belong to the namespace, while all clients continue."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from zkrq.base.errors import ConfigError, Unavailable, ZkrqError
from zkrq.protocol.calls import Seal
from zkrq.protocol.clocks import compare
from zkrq.protocol.enrolment import enrolment
from zkrq.protocol.founding import misnamed
from zkrq.protocol.replies import Answer, Status, denial
from zkrq.protocol.steps import clocks_ahead
from zkrq.protocol.view import Life, ServerId, View, extend, remove, rename
from zkrq.replication.urls import redact, without_credentials

if TYPE_CHECKING:
    from zkrq.protocol.server_info import ServerInfo
    from zkrq.replication.fleet import Fleet
    from zkrq.replication.membership import Membership


class Roster:
    """Change the list of servers in the view."""

    def __init__(self, membership: Membership, *, namespace: str) -> None:
        self._membership = membership
        self._namespace = namespace

    async def add(self, id: ServerId, url: str, *, force: bool = False) -> None:
        """Add a server to the list, outside the view.  ``force``: even if it belongs to another deployment.

        Raises ``ConfigError``, ``Unavailable``.
        """
        guest = self._membership.fleet.guest(id, url)
        try:
            await self._add(guest, id, url, force=force)
        finally:
            guest.drop()

    async def check(self, id: ServerId, url: str) -> None:
        """Raise ``ConfigError`` or ``Unavailable`` if no server of use answers at a URL; nothing is changed."""
        guest = self._membership.fleet.guest(id, url)
        try:
            await _meet(guest, id, url)
        finally:
            guest.drop()

    async def _add(self, guest: Fleet, id: ServerId, url: str, *, force: bool) -> None:
        public = without_credentials(url)
        while True:
            who = await _meet(guest, id, url)
            view = await self._membership.refresh(self._membership.view)
            if view.servers.get(id, public) != public:
                raise ConfigError(f"{id} is the server at {view.servers[id]}: remove that first, or use another name")
            twin = view.id_of(who.run_id)
            if twin not in (None, id):
                raise ConfigError(f"{id} and {twin} are the same Redis server: N copies need N servers")
            members = await self._membership.fleet.identify(view.members)
            if reason := compare(clocks_ahead({**members, id: who})).against(id):
                raise ConfigError(f"server {id}: {reason}; nothing was changed")
            if who.is_foreign(view.deployment):
                if force:
                    await self._take_over(view, guest, id, who)
                elif who.queues or who.epoch > view.epoch:
                    raise ConfigError(
                        f"server {id} belongs to another deployment of a namespace {self._namespace!r}, that of "
                        f"another ZooKeeper perhaps, with {who.queues} queue(s): nothing was changed. What it holds is "
                        "wiped, and the other deployment loses it, with force=True (--force)"
                    )
            elif who.epoch > view.epoch:
                raise ConfigError(
                    f"server {id} has seen epoch {who.epoch} of namespace {self._namespace!r}, later than the view's "
                    f"{view.epoch}: ZooKeeper has lost data; nothing was changed"
                )
            elif text := misnamed(id, who.name if who.name in view.servers else "", redact(url), self._namespace):
                raise ConfigError(text)
            if id in view.servers:
                return
            self._membership.fleet.know(id, url)
            await self._membership.change(view, partial(extend, server=id, url=public))

    async def _take_over(self, view: View, guest: Fleet, id: ServerId, who: ServerInfo) -> None:
        """Take over a server, under a generation that no view names.  Its own deployment then finds it out of sync, and
        any client of this one may wipe it."""
        passing = Life(who.run_id, secrets.token_hex(8))
        ask = enrolment(id, who, view.epoch, passing, deployment=view.deployment, holding=True)
        answer = (await guest.ask(ask.epoch, ask.lives, ask.call, once=ask.once))[id]
        if answer.status is not Status.OK:
            raise Unavailable(f"server {id} was not taken over: {answer.reason}; retry")

    async def wait_in_sync(self, id: ServerId, timeout: float) -> bool:
        """Wait until a server is a member; return False after ``timeout`` seconds.  Raises ``ConfigError`` if it is
        removed meanwhile."""
        changed = asyncio.Event()
        with self._membership.watching(lambda view: changed.set()), suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while id not in self._membership.view.members:
                    if id not in self._membership.view.servers:
                        raise ConfigError(f"server {id} was removed from the namespace meanwhile")
                    changed.clear()
                    await changed.wait()
        return id in self._membership.view.members

    async def remove(self, id: ServerId) -> None:
        """Remove a server from the list and the view.  Raises ``ConfigError``, ``Unavailable``."""
        while True:
            view = await self._membership.refresh(self._membership.view)
            self._check_known(view, id)
            try:
                remove(view, id, by="")
            except ValueError as error:
                raise ConfigError(f"server {id!r} cannot be removed: {error}") from error
            await self._check_rest(view, id)
            changed = await self._membership.change(view, partial(remove, server=id))
            if id not in changed.servers:
                return

    async def rename(self, id: ServerId, name: ServerId) -> None:
        """Give a server of the list another name.  Raises ``ConfigError``, ``Unavailable``."""
        while True:
            view = await self._membership.refresh(self._membership.view)
            self._check_known(view, id)
            try:
                changed = await self._membership.change(view, partial(rename, server=id, name=name))
            except ValueError as error:
                raise ConfigError(f"server {id!r} is not renamed: {error}") from error
            if id not in changed.servers and changed.servers.get(name) == view.servers[id]:
                break
        await self._note_name(changed, name)

    async def _note_name(self, view: View, name: ServerId) -> None:
        """Note on a server what it is called now: without ZooKeeper its own entry is all that says so.  One that does
        not answer is told when it is enrolled again."""
        who = (await self._membership.fleet.identify([name]))[name]
        if isinstance(who, Answer) or name not in view.receivers:
            return
        ask = enrolment(name, who, view.epoch, view.receivers[name], deployment=view.deployment, holding=True)
        await self._membership.fleet.ask(ask.epoch, ask.lives, ask.call, once=ask.once)

    def _check_known(self, view: View, id: ServerId) -> None:
        if id not in view.servers:
            raise ConfigError(f"{id!r} is not a server of this namespace: {', '.join(view.servers)}")

    async def _check_rest(self, view: View, leaving: ServerId) -> None:
        """Check that the servers that stay answer, because the leaving one might be the last that holds everything."""
        if leaving not in view.members:
            return
        staying = view.members.keys() - {leaving}
        answers = await self._membership.fleet.ask_in(view, staying, Seal())
        well = sum(answer.status is Status.OK for answer in answers.values())
        if staying and well < max(1, view.min_replicas):
            raise Unavailable(
                f"server {leaving} is in sync, and only {well} other(s) answer; nothing was changed, retry later"
            )


async def _meet(guest: Fleet, id: ServerId, url: str) -> ServerInfo:
    """Return the identity of a server that may be added.  Raises ``ConfigError``, ``Unavailable``."""
    who = (await guest.identify([id]))[id]
    if isinstance(who, Answer):
        raise _refusal(id, url, who)
    if who.dropping:
        raise ConfigError(f"server {id}: {who.dropping}")
    return who


def _refusal(id: ServerId, url: str, answer: Answer) -> ZkrqError:
    """Return the error to raise for a server that cannot be added."""
    match answer.status:
        case Status.UNFIT:
            return ConfigError(f"server {id}: {answer.reason}")
        case Status.DENIED:
            return ConfigError(denial(id, answer))
        case _:
            return Unavailable(f"server {id} at {redact(url)} does not answer: {answer.reason}")
