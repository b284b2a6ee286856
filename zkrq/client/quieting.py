"""Quiet consumers: have live ones claim nothing more, finish what they have, and say so.

A register of ZooKeeper names the quiet clients, each by an id that it makes when it starts and keeps over its sessions.
A client follows the register once it has enrolled as a consumer, and says in its introduction (``levels.ClientInfo``)
whether it is quiet.  So an operator is answered by the consumers themselves, and learns which of them did not hear.

What is named there can stop only the clients that it names.  An entry is of no use once its client has ended, so the
next change removes it: not immediately, because a client between two sessions looks as if it had ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from zkrq.base import clock
from zkrq.base.errors import ConfigError, Unavailable, ZkrqError
from zkrq.base.events import ConsumerQuiet
from zkrq.base.tasks import Rounds
from zkrq.client.registers import moments_in, rewrite, with_moments
from zkrq.coordination.coordinator import session_of

if TYPE_CHECKING:
    from zkrq.base.events import Events
    from zkrq.base.tasks import Tasks
    from zkrq.client.upgrading import Upgrading
    from zkrq.consuming.identity import Identity
    from zkrq.coordination.coordinator import Coordinator, Versioned
    from zkrq.protocol.levels import ClientInfo

REGISTER = "quiet"
"""Name of the register that holds the ids of quiet clients."""

QUIET_MAX = 5_000
"""Clients that may be quiet at the same time: what a register has room for."""

KEPT_SECONDS = 3600.0
"""Seconds for which an entry stays although no client has its id: its client may be between two sessions."""

READ_SECONDS = 60.0
"""Seconds between two looks of a consumer without notice of a change."""

CONFIRM_SECONDS = 10.0
"""Seconds that an operator waits for consumers to say that they have heard."""

ASK_SECONDS = 0.25
"""Seconds between two looks at what they say."""

_log = logging.getLogger("zkrq.claims")


class NoSuchConsumer(ConfigError):
    """No live consumer was named."""


class Quieted(NamedTuple):
    """What consumers said to an operator, by their owner ids.

    ``done``: those that say that they are quiet, or are quiet no more, or have ended since.  ``silent``: those that
    have not said so in time; they follow as soon as they hear.  ``unable``: those whose release cannot be made quiet.
    """

    done: tuple[str, ...]
    silent: tuple[str, ...] = ()
    unable: tuple[str, ...] = ()


def decode(data: bytes | None) -> dict[str, int]:
    """Return the ids of quiet clients, and when each was named, in milliseconds since 1970; none from what cannot be
    read: it is written anew."""
    return moments_in(data, "clients")


def encode(clients: Mapping[str, int]) -> bytes:
    """Encode what ``decode`` reads, unlike any other writing of the same."""
    return with_moments("clients", clients)


def changed(known: Mapping[str, int], ids: Collection[str], live: Collection[str], now_ms: int) -> dict[str, int]:
    """Return the entries with these clients named.  ``live``: ids of the clients that are there.  Raises
    ``ConfigError`` if there is no room for them."""
    oldest_ms = now_ms - 1000 * KEPT_SECONDS
    kept = {id: moment for id, moment in known.items() if id in live or oldest_ms < moment <= now_ms}
    after = {**kept, **dict.fromkeys(ids, now_ms)}
    if len(after) > QUIET_MAX:
        raise ConfigError(f"{len(after)} clients would be quiet: at most {QUIET_MAX} can be; nothing was changed")
    return after


def choose(consumers: Mapping[str, ClientInfo], owners: Sequence[str], host: str | None) -> dict[str, ClientInfo]:
    """Return the consumers with these owner ids, or those of a host.  Raises ``NoSuchConsumer`` if there is none."""
    if bool(owners) is (host is not None):
        raise NoSuchConsumer("name either owner ids of consumers, as `zkrq consumers` lists them, or a host")
    if host is not None:
        if not (found := {owner: each for owner, each in consumers.items() if each.host == host}):
            hosts = ", ".join(sorted({each.host for each in consumers.values()})) or "none"
            raise NoSuchConsumer(f"no consumer is on host {host!r}; they are on: {hosts}; nothing was changed")
        return found
    if missing := [owner for owner in owners if owner not in consumers]:
        names = ", ".join(map(repr, missing))
        raise NoSuchConsumer(
            f"no live consumer has the owner id {names}: `zkrq consumers` lists them; nothing was changed"
        )
    return {owner: consumers[owner] for owner in owners}


class Quieting:
    """Make consumers quiet, and be quiet if this client is named."""

    def __init__(
        self,
        coordinator: Coordinator,
        tasks: Tasks,
        events: Events,
        cluster: str,
        identity: Identity,
        upgrading: Upgrading,
        changed: Callable[[], None],
    ) -> None:
        """``changed`` is called after this client has become quiet, or is quiet no more: ``identity.is_quiet``."""
        self._coordinator = coordinator
        self._tasks = tasks
        self._events = events
        self._cluster = cluster
        self._identity = identity
        self._upgrading = upgrading
        self._changed = changed
        self._rounds: Rounds | None = None

    def begin(self) -> None:
        """Follow the register, from the first enrolment on: a client that only pushes does not."""
        if self._rounds is None:
            self._rounds = Rounds(self._look, seconds=READ_SECONDS)
            self._coordinator.follow(REGISTER)
            self._tasks.supervise(self._rounds.run, "follow which consumers are quiet")

    def register_changed(self, register: str) -> None:
        """Read it again if it is this register that was written."""
        if register == REGISTER:
            self.look_soon()

    def look_soon(self) -> None:
        """Look now, because the register was written, or this client has no owner id any more."""
        if self._rounds:
            self._rounds.call()

    async def _look(self) -> None:
        try:
            named = decode((await self._coordinator.read(REGISTER)).data)
            if self._upgrading.id in named:  # it enrols before its next claim, which never comes, and must be listed
                await self._identity.get()
        except ZkrqError as error:
            text = "whether this consumer is to be quiet is not known at present: %s"
            _log.info(text, error, extra={"cluster": self._cluster})
            return
        is_quiet = self._upgrading.id in named
        if is_quiet is not self._identity.is_quiet:
            self._identity.is_quiet = is_quiet
            self._events.tell(ConsumerQuiet(self._cluster, is_quiet))
            self._changed()

    async def quiet(self, owners: Sequence[str], host: str | None) -> Quieted:
        """Make consumers quiet; see ``Cluster.quiet``."""
        return await self._set(owners, host, True)

    async def unquiet(self, owners: Sequence[str], host: str | None) -> Quieted:
        """Let them claim again; see ``Cluster.unquiet``."""
        return await self._set(owners, host, False)

    async def _set(self, owners: Sequence[str], host: str | None, is_quiet: bool) -> Quieted:
        consumers = await self._upgrading.consumers()
        if not is_quiet:  # one whose entry as a consumer was removed is found by its session, too
            known = {session: each for session, each in (await self._upgrading.clients()).items() if each.is_quiet}
            listed = {session_of(owner) for owner in consumers}
            named = {session_of(owner): owner for owner in owners}
            gone = {named.get(session, session): each for session, each in known.items() if session not in listed}
            consumers = {**gone, **consumers}
        chosen = choose(consumers, owners, host)
        unable = tuple(owner for owner, each in chosen.items() if not each.id)
        ids = {each.id for each in chosen.values() if each.id}
        if ids:
            await self._write(ids, is_quiet)
        waited = {owner: each for owner, each in chosen.items() if each.id}
        done, silent = await self._confirmed(waited, is_quiet)
        return Quieted(done, silent, unable)

    async def _write(self, ids: Collection[str], is_quiet: bool) -> None:
        live = {each.id for each in (await self._upgrading.clients()).values()}

        def write(found: Versioned) -> bytes:
            known = decode(found.data)
            if is_quiet:
                return encode(changed(known, ids, live, clock.now_ms()))
            return encode({id: moment for id, moment in known.items() if id not in ids})

        if await rewrite(self._coordinator, REGISTER, write) is None:
            raise Unavailable("other clients quiet consumers at the same time: repeat it")

    async def _confirmed(
        self, waited: Mapping[str, ClientInfo], is_quiet: bool
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return those that have said so in time, and those that have not; one that has ended has."""
        until = asyncio.get_running_loop().time() + CONFIRM_SECONDS
        while True:
            said = {each.id: each.is_quiet for each in (await self._upgrading.clients()).values()}
            silent = tuple(owner for owner, each in waited.items() if said.get(each.id, is_quiet) is not is_quiet)
            if not silent or asyncio.get_running_loop().time() >= until:
                return tuple(owner for owner in waited if owner not in silent), silent
            await asyncio.sleep(ASK_SECONDS)
