"""Raise the active level when every client speaks a later one, and say which clients do not.

Each client names its release and its levels in a znode that ends with its session, before its first write.  It is not
this list that keeps clients out, but the epoch in which the level is raised (``protocol/levels.py``).

The leader looks at the list now and then: it reports when clients of several releases are there, and if its program
asks for it (``auto_upgrade``), raises the level when none of an older release was seen for a day.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import secrets
import socket
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from zkrq.base import clock
from zkrq.base.errors import Changes, ConfigError, ZkrqError
from zkrq.base.events import SeveralReleases, shorten
from zkrq.base.version import __version__
from zkrq.coordination.coordinator import latest, session_of
from zkrq.protocol import calls
from zkrq.protocol.levels import RELEASES, SPOKEN, UNNAMED, ClientInfo, decode, encode, known, too_old
from zkrq.protocol.scripts import LIBRARY
from zkrq.protocol.view import raise_level

if TYPE_CHECKING:
    from zkrq.base.events import Events
    from zkrq.base.settings import Settings
    from zkrq.client.shards import Shards
    from zkrq.consuming.identity import Identity
    from zkrq.coordination.coordinator import Coordinator

LOOK_SECONDS = 60.0
"""Seconds between two looks of the leader at the releases of the clients, and until a client that could not name its
own in a new session tries again."""

QUIET_SECONDS = 24 * 3600.0
"""Seconds for which no client of an older release must have been seen before the level is raised by itself."""

GAP_SECONDS = 3600.0
"""Seconds without a look after which that day begins anew: a client of an older release may have been there."""

NOTED_SECONDS = 600.0
"""Seconds after which a look is noted, for the next leader."""

SEEN = "upgrade"
"""Register of two moments, in seconds since 1970: since when no client of an older release was seen, the last look."""

_log = logging.getLogger("zkrq")


class Late(NamedTuple):
    """Clients that do not speak a level, by their sessions; ``release``: the first one that does."""

    level: int
    release: str
    clients: Mapping[str, ClientInfo]


class Upgrading:
    """Know the releases of a namespace's clients, and raise its level."""

    def __init__(
        self, shards: Shards, coordinator: Coordinator, settings: Settings, events: Events, identity: Identity
    ) -> None:
        """``identity``: knows the slots of this client's workers."""
        self._shards = shards
        self._identity = identity
        self._coordinator = coordinator
        self._settings = settings
        self._events = events
        self._releases: tuple[str, ...] = ()
        self.id = secrets.token_hex(8)
        """Names this client over all of its sessions."""
        self._started = clock.now().timestamp()
        self._introducing, self._introductions = asyncio.Lock(), 0
        self._is_named = True
        """Whether this client has named its release in its present session."""

    @property
    def level(self) -> int:
        """The active level: the lowest one of the shards that this client has opened."""
        return min(shard.view.level for shard in self._shards.open.values())

    async def introduce(self) -> None:
        """Name the release and the levels of this client, the slots of its workers, and whether it is quiet.

        Raises ``Unavailable``, ``ConfigError``.
        """
        who = self._settings.describe(), socket.gethostname(), __version__, SPOKEN, LIBRARY.name
        async with self._introducing:
            self._introductions += 1
            slots, is_quiet = self._identity.slots, self._identity.is_quiet
            info = ClientInfo(*who, self._started, slots, self.id, os.getpid(), is_quiet)
            await self._coordinator.introduce(encode(info), self._introductions)

    async def introduce_again(self) -> None:
        """Do so in a new session; what fails is tried again at every look, or a consumer would seem too old."""
        self._is_named = False
        try:
            await self.introduce()
            self._is_named = True
        except ZkrqError as error:
            _log.info("this client could not name its release: %s", error, extra=self._about)

    async def clients(self) -> Mapping[str, ClientInfo]:
        """Return what is known of every live client, by its session.  Raises ``Unavailable``."""
        told, consumers = await self._coordinator.clients(), await self._coordinator.consumers()
        return known(latest(told), {session_of(owner): text for owner, text in consumers.items()})

    async def consumers(self) -> Mapping[str, ClientInfo]:
        """Return what is known of every live consumer, by its owner id.  Raises ``Unavailable``."""
        alive = await self._coordinator.consumers()
        told = {session: decode(text) for session, text in latest(await self._coordinator.clients()).items()}
        return {owner: told.get(session_of(owner), UNNAMED)._replace(description=text) for owner, text in alive.items()}

    async def find_late(self, level: int | None) -> Late:
        """Return the clients that do not speak a level, None: the latest.  Raises ``ConfigError``, ``Unavailable``."""
        level = _check_wanted(level)
        return Late(level, RELEASES[level], too_old(await self.clients(), level))

    async def upgrade(self, level: int | None = None, *, force: bool = False) -> int:
        """Make a level active in every shard, and remove the libraries that no client uses; return the level.

        ``level``: None: the latest.
        May be repeated, also to continue where it failed.  ``force``: even if clients are there that do not speak it;
        they are refused from then on.  Raises ``ConfigError``, ``Unavailable``; ``OutcomeUnknown``: it is raised in a
        part of the shards, or in all, call it again.
        """
        level = _check_wanted(level)
        if level < self.level:
            raise ConfigError(
                f"the namespace is at level {self.level}, and a level is never lowered: what was written since could "
                "not be read; nothing was changed"
            )
        if not force and (late := too_old(await self.clients(), level)):
            raise ConfigError(
                f"{len(late)} client(s) do not speak level {level}: {shown(late)}; replace them by zkrq "
                f"{RELEASES[level]} or later, or have them refused with force=True (--force); nothing was changed"
            )
        with Changes() as changes:
            for shard in await self._shards.all_used():
                membership = shard.membership
                while (view := membership.view).level < level:
                    await membership.change(view, partial(raise_level, level=level, release=__version__))
                    changes.made += 1
                # A client that has not read the view is refused by each server from here on.
                await shard.replicas.tell_all(calls.Seal())
            await self._remove_libraries()
        return level

    async def _remove_libraries(self) -> None:
        """Remove the functions of releases that no client uses.  A client that needs one loads it again."""
        used = await self._used_libraries()
        if "" in used:  # one that does not name its library
            return
        for shard in self._shards.open.values():
            for id, why in (await shard.fleet.remove_libraries(used)).items():
                _log.info("server %s: unused libraries of functions stay: %s", id, why, extra=self._about)

    async def _used_libraries(self) -> set[str]:
        return {each.library for each in (await self.clients()).values()} | {LIBRARY.name}

    @property
    def _is_refused(self) -> bool:
        return any(shard.membership.refusal for shard in self._shards.open.values())

    # -- in the background ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look now and then, while this client leads, until cancelled; name the release if that has failed, and lead no
        more if the level is not spoken."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if not self._is_named:
                await self.introduce_again()
            if self._coordinator.leading:
                try:
                    # What the leader does for all, a client that cannot read the view does not.
                    await (self._coordinator.stand_down() if self._is_refused else self.look())
                except ZkrqError as error:
                    _log.info("the releases of the clients could not be read: %s", error, extra=self._about)

    async def look(self) -> None:
        """Report the releases of the clients if they are others than before; upgrade if that is asked for and due."""
        clients = await self.clients()
        releases = tuple(sorted({each.version or "unknown" for each in clients.values()}))
        if releases != self._releases:
            self._releases = releases
            if len(releases) > 1:
                self._events.tell(SeveralReleases(self._settings.namespace, releases, self.level))
        if self._settings.auto_upgrade and self.level < SPOKEN.highest:
            quiet = await self._quiet_seconds(bool(too_old(clients, SPOKEN.highest)))
            if quiet >= QUIET_SECONDS:
                await self.upgrade()

    async def _quiet_seconds(self, is_late: bool) -> float:
        """Return for how long no client of an older release was seen, by whichever leader."""
        now, found = clock.now_ms() / 1000, await self._coordinator.read(SEEN)
        since, looked = _moments(found.data or b"")
        # What happened while nobody looked is not known: the former release may have been back in the meantime.
        if is_late or not 0 <= now - looked <= GAP_SECONDS:
            since, looked = now, 0.0
        if now - looked > NOTED_SECONDS:
            await self._coordinator.swap(SEEN, f"{since} {now} {secrets.token_hex(4)}".encode(), found.version)
        return now - since

    @property
    def _about(self) -> dict[str, Any]:
        return {"cluster": self._settings.namespace}


def _moments(data: bytes) -> tuple[float, float]:
    """Read the register ``SEEN``; long ago for anything that is not its content."""
    try:
        first, last, _ = data.split()
        since, looked = float(first), float(last)
    except ValueError:
        return 0.0, 0.0
    return (since, looked) if 0 <= since <= looked < math.inf else (0.0, 0.0)


def shown(clients: Mapping[str, ClientInfo]) -> str:
    """Name clients for people, by host."""
    return shorten(sorted(each.label for each in clients.values()))


def _check_wanted(level: int | None) -> int:
    """Return a level that this release speaks, for None the latest.  Raises ``ConfigError``."""
    if level is None:
        return SPOKEN.highest
    if level not in SPOKEN:
        raise ConfigError(f"level {level!r}: this release speaks {SPOKEN}; nothing was changed")
    return level
