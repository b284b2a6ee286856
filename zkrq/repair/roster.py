"""Which servers belong to the namespace: one more, one less, while everybody works on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from zkrq.errors import ConfigError, Unavailable
from zkrq.replication.founding import check_name
from zkrq.replication.link import Identity, ServerError
from zkrq.replication.membership import Membership
from zkrq.replication.replies import Status
from zkrq.replication.server import Server
from zkrq.replication.view import ServerId, View, extend, remove
from zkrq.replication.wire import redact, without_credentials


class Roster:
    """Changes the list of servers in the view."""

    def __init__(
        self, membership: Membership, make_server: Callable[[ServerId, str], Server], *, namespace: str
    ) -> None:
        self._membership = membership
        self._make_server = make_server
        self._namespace = namespace

    async def add(self, id: ServerId, url: str) -> None:
        """Put a server on the list, outside the view.  Raises ``ConfigError``, ``Unavailable``."""
        who = await self._meet(id, url)
        public = without_credentials(url)
        while True:
            view = await self._membership.refresh(self._membership.view)
            if id in view.servers:
                if view.servers[id] != public:
                    raise ConfigError(
                        f"{id} is the server at {view.servers[id]}: remove that first, or take another name"
                    )
                return
            check_name(id, who.name if who.name in view.servers else "", redact(url), self._namespace)
            if who.epoch > view.epoch:
                raise ConfigError(
                    f"server {id} has seen epoch {who.epoch} of a namespace {self._namespace!r}, later than the view's "
                    f"{view.epoch}: is it another ZooKeeper's? Remove its keys, {{{self._namespace}}}:*, first"
                )
            twin = view.id_of(who.run_id)
            if twin:
                raise ConfigError(f"{id} and {twin} are the same Redis server: N copies need N servers")
            self._membership.know(id, url)
            await self._membership.change(view, partial(extend, server=id, url=public))

    async def _meet(self, id: ServerId, url: str) -> Identity:
        server = self._make_server(id, url)
        try:
            who = await server.identify()
        except ServerError as error:
            if error.answer.status is Status.UNFIT:
                raise ConfigError(f"server {id}: {error}") from error
            raise Unavailable(f"server {id} at {redact(url)} does not answer: {error}") from error
        finally:
            server.drop()
        return who

    async def wait_in_sync(self, id: ServerId, timeout: float) -> bool:
        """Wait until a server is a member; False after ``timeout`` seconds.  Raises ``ConfigError`` when it is removed
        meanwhile."""
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
        """Take a server off the list and out of the view.  Raises ``ConfigError``, ``Unavailable``."""
        while True:
            view = await self._membership.refresh(self._membership.view)
            if id not in view.servers:
                raise ConfigError(f"{id!r} is no server of this namespace: {', '.join(view.servers)}")
            try:
                remove(view, id, by="")
            except ValueError as error:
                raise ConfigError(f"server {id!r} cannot be removed: {error}") from error
            await self._check_rest(view, id)
            changed = await self._membership.change(view, partial(remove, server=id))
            if id not in changed.servers:
                return

    async def _check_rest(self, view: View, leaving: ServerId) -> None:
        """Who stays must answer, or the one that leaves might be the last that holds everything."""
        if leaving not in view.members:
            return
        staying = view.members.keys() - {leaving}
        answers = await self._membership.seal(view, staying)
        well = sum(answer.status is Status.OK for answer in answers.values())
        if staying and well < max(1, view.min_replicas):
            raise Unavailable(
                f"server {leaving} is in sync, and only {well} other(s) answer; nothing was changed, retry later"
            )
