"""Hold the servers that a client knows, and provide the one way to call them.

A call names the *life* of each server that it is meant for: a run of its process and the generation that it was given
at its enrolment.  A server that has been restarted, flushed or enrolled anew does not execute a call that was meant for
an earlier life.  Operations take the lives from the view; repair chooses lives that no view names yet.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from zkrq.base.errors import ConfigError
from zkrq.protocol.replies import Answer, Status
from zkrq.protocol.view import Life, ServerId, View
from zkrq.replication.exchange import Round
from zkrq.replication.link import ServerError
from zkrq.replication.request import Asked, Request
from zkrq.replication.server import Server
from zkrq.replication.urls import Told, redact, without_credentials
from zkrq.replication.wire import pack_words, refusing

if TYPE_CHECKING:
    from zkrq.protocol.calls import Call
    from zkrq.protocol.server_info import ServerInfo

MakeServer = Callable[..., Server]
"""Makes the ``Server`` of an id and a URL, without connecting; ``dial=``: in another way than usual."""

Observer = Callable[[Mapping[ServerId, Life], Mapping[ServerId, Answer]], None]
"""Called with the answers to every call, and the lives that were called."""

_REMOVED = Answer(Status.GONE, (), "it was removed from the namespace")

_log = logging.getLogger("zkrq.view")


class Fleet:
    """Own the ``Server`` of every server id: first the given ones, then those that the view names."""

    def __init__(
        self, urls: Mapping[ServerId, str], make_server: MakeServer, *, namespace: str, told: Told | None = None
    ) -> None:
        """``told``: for servers that only the view names, None: as these URLs say."""
        self.servers: Final = {id: make_server(id, url) for id, url in urls.items()}
        """Servers by id; follows the view."""
        self._urls = dict(urls)
        self._told = told or Told([*urls.values()])
        self._make_server = make_server
        self._namespace = namespace
        self._observer: Observer | None = None
        self.is_dropped = False
        """Whether the cluster is closed: no call will be answered."""

    def report_to(self, observer: Observer) -> None:
        """Call ``observer`` with the answers to every call, before the caller gets them."""
        self._observer = observer

    # -- which servers -------------------------------------------------------------------------------------------------

    @property
    def urls(self) -> Mapping[ServerId, str]:
        """URLs that this client was given, credentials included."""
        return self._urls

    def know(self, server: ServerId, url: str) -> None:
        """Use this URL for a server that is about to be in the view."""
        self._urls[server] = url

    def url_for(self, url: str) -> str:
        """Return a URL of the view as this client uses it; see ``Told.url_for``.  Raises ``ConfigError``."""
        return self._told.url_for(url)

    def follow(self, view: View, old: View | None) -> None:
        """Drop the servers that ``view`` no longer names, and make those that are new in it.

        A server that left the view is connected to anew before it is used again: it may be out of sync because it lets
        nobody in, and the connection that exists may be from before.
        """
        # Out of sync, but still a server of the namespace: it may be caught up again, over a new connection.
        for id in sorted(old.receivers.keys() - view.receivers.keys() & self.servers.keys() if old else ()):
            self.servers[id].disconnect("out of sync")
        # No longer a server of the namespace at all: its calls in flight end, and its name may come back for another
        # one.
        self._follow_names(view)
        for id in sorted(self.servers.keys() - view.servers.keys()):
            self.servers.pop(id).drop()
            if old and id in old.servers:
                self._urls.pop(id, None)  # if the name comes back, it is another server's
        for id in sorted(view.servers.keys() - self.servers.keys()):
            self.servers[id] = self._make(id, view.servers[id])

    def _follow_names(self, view: View) -> None:
        """Keep the URLs that this client was given, with their passwords, for servers that have another name now."""
        places = {public: id for id, public in view.servers.items() if id not in self._urls}
        for id, url in tuple(self._urls.items()):
            if id not in view.servers and (name := places.get(without_credentials(url))):
                self._urls[name] = url

    def _make(self, id: ServerId, url: str) -> Server:
        if own := self._urls.get(id):
            return self._make_server(id, own)
        try:
            used = self.url_for(url)
        except ConfigError as error:
            return self._make_server(id, url, dial=refusing(str(error)))
        if url != without_credentials(url):
            text = "only scheme, host, port, path and database are used of server %s's URL in the view: %s"
            _log.warning(text, id, redact(url), extra={"cluster": self._namespace, "server": id})
        return self._make_server(id, used)

    def guest(self, server: ServerId, url: str) -> Fleet:
        """Return a fleet of one server that no view names yet; ``drop`` it after use."""
        return Fleet({server: url}, self._make_server, namespace=self._namespace)

    def drop(self) -> None:
        """Close the connections of all servers permanently, because the cluster is closed."""
        self.is_dropped = True
        for server in self.servers.values():
            server.drop("the cluster is closed")

    def check_invariants(self) -> None:
        """Assert what holds between any two callbacks.

        - A server stands under its own id, because a call looks it up there, with the life of that id.
        - Once the cluster is closed no server is connected.
        """
        for id, server in self.servers.items():
            assert server.id == id, f"server {server.id} stands under {id}"
            assert not self.is_dropped or server.identity is None, f"closed, and {id} is connected"
            server.check_invariants()

    # -- asking --------------------------------------------------------------------------------------------------------

    async def identify(self, servers: Iterable[ServerId]) -> dict[ServerId, ServerInfo | Answer]:
        """Ask servers for their identity; one that does not answer, or cannot be used, is an ``Answer`` that says
        why."""

        async def identify(id: ServerId) -> ServerInfo | Answer:
            server = self.servers.get(id)
            try:
                return await server.identify(anew=True) if server else _REMOVED
            except ServerError as error:
                return error.answer

        ids = list(servers)
        return dict(zip(ids, await asyncio.gather(*map(identify, ids)), strict=True))

    async def libraries(self) -> dict[ServerId, Sequence[str] | str]:
        """Return the names of zkrq's libraries of functions on every server, or why they are not known."""
        found: dict[ServerId, Sequence[str] | str] = {}
        for id, server in tuple(self.servers.items()):
            try:
                found[id] = await server.libraries()
            except ServerError as error:
                found[id] = error.answer.reason
        return found

    async def remove_libraries(self, used: Collection[str]) -> dict[ServerId, str]:
        """Remove unused libraries of functions from every server; return why not, of those where they stay."""
        failed: dict[ServerId, str] = {}
        for id, server in tuple(self.servers.items()):
            try:
                await server.remove_libraries(used)
            except ServerError as error:
                failed[id] = error.answer.reason
        return failed

    async def ask_in(self, view: View, servers: Iterable[ServerId], call: Call[Any]) -> dict[ServerId, Answer]:
        """Make one call on several servers of ``view`` at the same time, in the lives that the view names."""
        return await self.ask(view.epoch, {id: view.receivers[id] for id in servers}, call)

    async def ask(
        self,
        epoch: int,
        lives: Mapping[ServerId, Life],
        call: Call[Any],
        *,
        once: bool = False,
        twins: Mapping[ServerId, Server] | None = None,
    ) -> dict[ServerId, Answer]:
        """Make one call on several servers at the same time, on each in the life that ``lives`` names.

        The calls to connected servers are sent before anything else runs in this event loop.  Never raises for an error
        of a server: its answer describes it.  ``once``: do not repeat a call when its connection breaks.  ``twins``:
        used in place of this fleet's servers, and not reported to the observer.
        """
        servers = self.servers if twins is None else twins
        asked = Asked(call.script, call.queue, epoch, pack_words(call.words()), call.weight, once)
        requests: dict[ServerId, Request] = {}
        answers: dict[ServerId, Answer] = {}
        # All calls leave in this turn of the event loop, before anything else of this client runs.  So the
        # operation's decision (which servers, which epoch) and its calls cannot be separated by another operation of
        # this client.
        round, now = Round(), asyncio.get_running_loop().time()
        for id, life in lives.items():
            if server := servers.get(id):
                requests[id] = Request(server, life, asked, round, now)
            else:
                answers[id] = _REMOVED
        if requests and round.left == len(requests):  # all were sent: no server needs a connection first
            await round.landed
        # The usual case needs no task for any server.  One that has no connection, or whose reply is unusual, gets a
        # task of its own now, and the others' answers are kept meanwhile.
        slow: dict[ServerId, Request] = {}
        for id, request in requests.items():
            if answer := request.usual_answer:
                answers[id] = answer
            else:
                slow[id] = request
        if slow:
            found = await asyncio.gather(*[request.answer() for request in slow.values()])
            answers.update(zip(slow, found, strict=True))
        if self._observer and twins is None:
            # Before the caller sees the answers: standing and obstacles must be up to date when it decides about an
            # eviction.
            self._observer(lives, answers)
        return answers

    async def ask_anew(self, epoch: int, lives: Mapping[ServerId, Life], call: Call[Any]) -> dict[ServerId, Answer]:
        """Make one call as ``ask`` does, over connections that are made for it: does each server let this client in?

        The connections that exist may be from before the servers' passwords or rights were changed.
        """
        twins = {id: self.servers[id].twin() for id in lives if id in self.servers}
        try:
            return await self.ask(epoch, lives, call, twins=twins)
        finally:
            for twin in twins.values():
                twin.drop()
