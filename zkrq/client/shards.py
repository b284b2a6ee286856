"""Keep the shards of a namespace as one client uses them: follow the map, open and leave shards.

The first shard is opened with the client.  A shard that is away does not keep the client from opening: it is tried
again until it is there.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self

import anyio

from zkrq.base.errors import Closed, ConfigError, Unavailable, ZkrqError
from zkrq.base.tasks import Rounds
from zkrq.client.shard import Shard
from zkrq.coordination.coordinator import VIEW, Coordinator, Versioned
from zkrq.producing.placement import MAP, Placement, Target
from zkrq.protocol.shards import (
    FIRST,
    Entry,
    ShardMap,
    ShardName,
    ShardState,
    confirmed,
    decode,
    encode,
    kept_at_home,
    spread,
)
from zkrq.protocol.view import ServerId, View
from zkrq.protocol.view import decode as decode_view
from zkrq.replication.urls import Told

if TYPE_CHECKING:
    from zkrq.base.events import Events
    from zkrq.base.settings import Settings
    from zkrq.replication.wire import Dial

LOOK_SECONDS = 5.0
"""Seconds between two tries to open the shards that are away."""

CHANGE_TRIES = 20
"""Times that a change of the map is tried while other clients change it."""

_log = logging.getLogger("zkrq.shards")


class MapChange(Protocol):
    """A function of ``protocol/shards.py`` with all arguments bound except the map and ``by``, the new map's nonce.

    Raises ``ValueError`` to refuse.
    """

    def __call__(self, map: ShardMap, /, *, by: str) -> ShardMap: ...


Prepare = Callable[[ShardMap, int, ShardMap], Awaitable[object]]

Given = Mapping[ShardName, Mapping[str, str]]
"""Servers that a client was given, by shard: URLs by name.  Shards without any are found through the map."""


class _NeedsHome(Exception):
    """A queue has limits."""


class ShardStatus(NamedTuple):
    """Describe one shard as this client knows it.

    ``state``: joining, open, draining or closed.  ``view``: which of its servers are in sync, None if this client could
    not open it.  ``away``: why nothing can be had of it now, None if it can.
    """

    state: str
    view: View | None
    away: str | None

    @property
    def takes_pushes(self) -> bool:
        """Whether a plain push may go there now, as far as this client knows."""
        return self.state == ShardState.OPEN.value and self.view is not None and self.view.writable and not self.away


class Shards:
    """Own the shards of a client.  ``open`` has those that it is connected to, in the order of their names."""

    def __init__(
        self,
        given: Given,
        coordinator: Coordinator,
        settings: Settings,
        *,
        events: Events,
        dial: Dial,
        changed: Callable[[], None],
        renewed: Callable[[], None],
    ) -> None:
        """``changed`` is called after a shard was opened or left, ``renewed``: see ``Shard.renewed``."""
        self.given = given
        self._coordinator = coordinator
        self._settings = settings
        self._namespace = settings.namespace
        self._events = events
        self.told: Final = Told([url for servers in given.values() for url in servers.values()], dial)
        self._changed, self._renewed = changed, renewed
        self.first: Final = self.make(FIRST, given[FIRST], VIEW, settings)
        self.open: dict[ShardName, Shard] = {FIRST: self.first}
        self.away: dict[ShardName, str] = {}
        """Shards of the map that could not be opened, and why."""
        self._unfinished: dict[ShardName, str] = {}
        self.placement: Final = self.make_placement()
        self.placement.targets[FIRST] = self._target(self.first)
        self._found = Versioned(None, -1)
        self._is_map_read = True
        """Whether the last look could read the map."""
        self.went_back = ""
        """Why the map cannot be changed: its register holds an older one; empty while it does not."""
        self._reading = asyncio.Lock()
        self._opening = asyncio.Lock()
        self._stacks: dict[ShardName, AsyncExitStack] = {}
        self._rounds = Rounds(self.open_missing, seconds=LOOK_SECONDS)
        self.run = self._rounds.run
        """Open and leave shards as the map says, until cancelled."""

    @property
    def map(self) -> ShardMap:
        """Latest map that this client knows."""
        return self.placement.map

    def make(self, name: ShardName, servers: Mapping[str, str], register: str, settings: Settings) -> Shard:
        """Make a shard, without connecting."""
        shard = Shard(
            name, servers, self._coordinator, settings, events=self._events, told=self.told, register=register
        )
        shard.renewed = self._renewed
        return shard

    def make_placement(self) -> Placement:
        """Make what places pushes by the map."""
        return Placement(self._coordinator, self.refresh, self.open_unknown)

    def _target(self, shard: Shard) -> Target:
        return Target(shard.name, shard.replicas, lambda: shard.away)

    def reachable(self) -> tuple[Sequence[Shard], tuple[ShardName, ...]]:
        """Return the shards that can be asked now, at least one, and the names of others on which items may be."""
        opened = [shard for shard in self.open.values() if self.map.shard_with(shard.register)]
        here = [shard for shard in opened if len(opened) == 1 or not shard.away] or opened
        names = {shard.name for shard in here}
        return here, tuple(name for name in self.map.used if name not in names)

    async def all_used(self) -> Sequence[Shard]:
        """Return every shard on which items may be, sorted by name.

        The first shard's servers know of every other that takes pushes, and a client that has asked them since knows it
        too (``View.map_number``): ask there, and then look whether there are others now.  Raises ``Unavailable`` if one
        is away.
        """
        if self.first.view.map_number > self.map.number:
            await self.refresh()
        await self.open_unknown()
        used = [self.find(name) for name in self.map.used]
        for shard in used if len(used) > 1 else ():
            if why := shard.away:
                raise Unavailable(why)
        return used

    async def keep_at_home(self, queues: Collection[str]) -> None:
        """Have every item of these queues go to its queue's home.  When this returns, no client pushes elsewhere.

        Raises ``ConfigError`` if there are too many such queues, ``Unavailable``.
        """
        map = await self.change(partial(kept_at_home, queues=queues))
        number = max(map.homed[queue] for queue in queues)
        for shard in await self.all_used():
            await shard.replicas.ask_for_map(number)

    async def confirm_home(self, queue: str) -> bool:
        """Return whether every item of a queue goes home, after it was given limits: see ``confirmed``.

        Raises ``Unavailable``.
        """
        return queue in (await self.change(partial(confirmed, queue=queue))).homed

    async def home(self, queue: str) -> Shard:
        """Return the home of a queue.  Raises ``Unavailable``."""
        return self.find((await self.placement.home(queue)).name)

    async def let_spread(self, queue: str, needs_home: Callable[[Shard], Awaitable[bool]]) -> None:
        """Let plain items of a queue go to any shard, unless its home says that it needs it: see ``confirmed``.

        Raises ``Unavailable``.
        """

        async def look(*_: object) -> None:
            if await needs_home(await self.home(queue)):
                raise _NeedsHome

        with suppress(_NeedsHome):
            if queue in self.map.homed:
                await self.change(partial(spread, queue=queue), prepare=look)

    async def open_unknown(self) -> None:
        """Open the shards that this client has heard of, and has not tried to open yet, in bounded time."""
        if any(self._is_unknown(name, entry) for name, entry in self.map.used.items()):
            with anyio.move_on_after(self._settings.operation_timeout):
                await self.open_missing()

    def _is_unknown(self, name: ShardName, entry: Entry) -> bool:
        """Tell whether this client has heard of a shard, and has not tried to open it yet."""
        shard = self.open.get(name)
        return name not in self.away if shard is None else shard.register != entry.register

    async def is_left(self, shard: Shard) -> bool:
        """Tell whether a shard was removed, after a call there has failed; nothing was left in it then."""
        try:
            return (await self.refresh()).shard_with(shard.register) is None
        except Unavailable:
            return False

    def status(self) -> Mapping[str, ShardStatus]:
        """Describe the shards.  Raises ``Closed`` before there is a view."""
        known: dict[str, ShardStatus] = {}
        for name, (state, *_) in sorted(self.map.shards.items()):
            shard = self.open.get(name)
            away = shard.away if shard else self._why_not(name)
            known[name] = ShardStatus(state.value, shard and shard.view, away)
        return known

    def find(self, name: ShardName) -> Shard:
        """Return a shard.  Raises ``ConfigError`` for an unknown one, ``Unavailable`` for one that is not open here."""
        if name in self.open:
            return self.open[name]
        self.entry(name)
        raise Unavailable(self._why_not(name))

    def entry(self, name: ShardName) -> Entry:
        """Return what the map says of a shard.  Raises ``ConfigError`` for an unknown one."""
        if name in self.map.shards:
            return self.map.shards[name]
        raise ConfigError(f"there is no shard {name!r}: there are {', '.join(sorted(self.map.shards))}")

    def _why_not(self, name: ShardName) -> str:
        if name in self.map.shards and self.map.shards[name].is_new:
            return f"shard {name} is being added: {self._unfinished.get(name, 'it takes no pushes yet')}"
        return f"shard {name} is away: {self.away.get(name, 'not open yet')}"

    def note_unfinished(self, name: ShardName, error: ZkrqError) -> None:
        """Note why a shard could not be added."""
        if name not in self._unfinished:
            _log.warning("shard %s is not used for now: %s", name, error, extra=self._about(name))
        self._unfinished[name] = str(error)

    def with_server(self, id: ServerId) -> Shard:
        """Return the shard that a server belongs to; the first one if none does."""
        return next((shard for shard in self.open.values() if id in shard.view.servers), self.first)

    # -- opening and closing -------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Begin; ``join`` follows."""
        await self.first.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave every shard."""
        for name in tuple(self._stacks):
            await self._stacks.pop(name).aclose()
        await self.first.__aexit__(kind, error, traceback)

    async def join(self, recover_with: frozenset[ServerId] = frozenset()) -> bool:
        """Open the shards; see ``Shard.open``.  Returns and raises as it does, of the first shard."""
        recovered = await self.first.open(recover_with)
        await self.refresh()
        self._coordinator.follow(MAP)
        with anyio.move_on_after(self._settings.command_timeout):  # one that is slow is opened in the background
            await self.open_missing()
        return recovered

    def check_invariants(self) -> None:
        """Assert what holds between any two callbacks.

        - The first shard is always open, and a shard that is open is not away.
        - Pushes go only to shards that are open here, each under its own name: an id would name another one.
        - Each open shard has a register of its own, so that a written view is read by one of them.
        """
        self.map.check_invariants()
        assert self.open.get(FIRST) is self.first, "the first shard is not open"
        assert not self.open.keys() & self.away.keys(), f"open, and away: {self.open.keys() & self.away.keys()}"
        for name, target in self.placement.targets.items():
            assert target.name == name, f"pushes to {name} go to {target.name}"
            assert target.replicas is self.open[name].replicas, f"pushes to {name} go to a shard that was left"
            assert target.under_way >= 0, f"{target.under_way} pushes are under way to {name}"
        registers = {shard.register for shard in self.open.values()}
        assert len(registers) == len(self.open), f"two open shards of one register: {registers}"
        for name, shard in self.open.items():
            assert shard.name == name, f"shard {shard.name} stands under {name}"
            shard.check_invariants()

    # -- the map -------------------------------------------------------------------------------------------------------

    def register_changed(self, register: str) -> None:
        """Read what was written: the map, or a shard's view."""
        if register == MAP:
            self._rounds.call()
        for shard in self.open.values():
            if shard.register == register:
                shard.view_changed()

    async def refresh(self) -> ShardMap:
        """Read the map again.  Raises ``Unavailable``, ``ConfigError`` if the register holds no map."""
        async with self._reading:
            before = self._found
            found = await self._coordinator.read(MAP)
            # What was read while this client wrote may be older than what it wrote.
            if self._found is before or found.version > self._found.version:
                self._take(found)
        return self.map

    def _take(self, found: Versioned) -> None:
        if found == self._found and not self.went_back:
            return
        try:
            map = decode(found.data)
        except ValueError as error:
            raise ConfigError(f"namespace {self._namespace!r} in ZooKeeper: {error}") from error
        if map.number < self.map.number:  # as with a view that went back; see Membership
            self._note_went_back(map)
            raise Unavailable(self.went_back)
        self.went_back = ""
        self._found = found
        known = self.map.shards  # what could not be opened may be there now
        self.away = {name: why for name, why in self.away.items() if known.get(name) == map.shards.get(name)}
        self._events.several_shards = len(map.shards) > 1
        for name, shard in self.open.items():
            # Removed, and perhaps there is another one of that name: until that is open, no push may take this one for
            # it, because nobody will look into this one again.
            if map.shard_with(shard.register) is None:
                self.placement.targets.pop(name, None)
        self.placement.follow(map, found.version)
        self._rounds.call()

    def _note_went_back(self, stored: ShardMap) -> None:
        """Report once that ZooKeeper stores an older map than this client knows."""
        tell, step = self.first.membership.tell_went_back, "see docs/operations.md#zookeeper-restored-from-a-backup"
        self.went_back = tell("shard map", self.map.number, stored.number, step, told=self.went_back)

    async def change(self, change: MapChange, *, prepare: Prepare | None = None) -> ShardMap:
        """Change the map by compare-and-set; return it.

        ``prepare`` is called before each try, with the map of which nothing may have changed when the new one is
        written, the version of its register, and the new one.  Raises ``ConfigError`` if ``change`` refuses,
        ``Unavailable``.
        """
        if refusal := self.first.membership.refusal:  # no server is asked before
            raise ConfigError(refusal)
        for _ in range(CHANGE_TRIES):
            map, version = await self.refresh(), self._found.version
            try:
                wanted = change(map, by=secrets.token_hex(8))
            except ValueError as error:
                raise ConfigError(str(error)) from error
            if wanted is map:
                return map
            if prepare:
                await prepare(map, version, wanted)
            written = await self._coordinator.swap(MAP, encode(wanted), version)
            if written is not None:
                if written.version > self._found.version:  # otherwise it was read already, and perhaps a later one
                    self._take(written)
                return self.map
        raise Unavailable("the shard map is being changed by others; nothing was changed here, retry later")

    async def open_missing(self) -> None:
        """Read the map, open its shards, and leave those that were removed; what fails is tried again after a while."""
        async with self._opening:
            await self._open_missing()

    async def _open_missing(self) -> None:
        try:
            await self.refresh()
        except Closed:
            raise
        except ZkrqError as error:
            if self._is_map_read:  # otherwise it is known: an outage of ZooKeeper lasts for many looks
                _log.warning("the shard map could not be read: %s", error, extra=self._about(None))
            self._is_map_read = False
        else:
            self._is_map_read = True
        for name, shard in tuple(self.open.items()):
            if self.map.shard_with(shard.register) is None:  # perhaps there is another one of that name
                await self._leave(name)
        missing = [(name, entry) for name, entry in self.map.shards.items() if name not in self.open]
        self.away = {name: why for name, why in self.away.items() if name in dict(missing)}
        await asyncio.gather(*(self._try_to_open(name, entry) for name, entry in missing))

    async def _try_to_open(self, name: ShardName, entry: Entry) -> None:
        try:
            await self._open(name, await self._find(name, entry))
        except Closed:
            raise
        except ZkrqError as error:
            if name not in self.away and entry.state is not ShardState.JOINING:
                _log.warning("shard %s is not used for now: %s", name, error, extra=self._about(name))
            self.away[name] = str(error)

    async def _find(self, name: ShardName, entry: Entry, further: Mapping[str, str] = MappingProxyType({})) -> Shard:
        """Make a shard of the servers that its view names, with the URLs that this client was given for them, and of
        ``further`` ones that the view does not name."""
        data = (await self._coordinator.read(entry.register)).data
        if data is None:
            raise Unavailable(f"shard {name} has no view in ZooKeeper")
        try:
            view = decode_view(data)
        except ValueError as error:
            raise ConfigError(f"shard {name} of namespace {self._namespace!r} in ZooKeeper: {error}") from error
        fleet, given = self.first.fleet, self.given.get(name, {})
        servers, refusal = dict(further), ""
        for id, url in view.servers.items():
            try:
                servers[id] = given.get(id) or fleet.url_for(url)
            except ConfigError as error:  # the shard's fleet follows the view, and has a server that says why
                refusal = str(error)
        if not servers:
            raise ConfigError(f"shard {name}: {refusal}")
        return self.make(name, servers, entry.register, replace(self._settings, found=False, min_replicas=None))

    async def find_closed(self, name: ShardName, entry: Entry, further: Mapping[str, str]) -> Shard:
        """Make a shard of all servers that its view names and that this client was given; it is not open here.

        Raises ``ConfigError`` if it is: then its view did not go back.
        """
        if name in self.open:
            raise ConfigError(f"shard {name} can be used, so its view did not go back")
        return await self._find(name, entry, further)

    async def recover(self, servers: frozenset[ServerId]) -> bool:
        """Open the shard of these servers with their data, if it is one that this client could not open.

        Returns whether their data was used.  Raises ``ConfigError``, ``Unavailable``.
        """
        async with self._opening:
            for name, entry in self.map.shards.items():
                if name not in self.open:
                    shard = await self._find(name, entry)
                    if servers <= shard.fleet.servers.keys():
                        return await self._open(name, shard, recover_with=servers)
        return False

    async def _open(self, name: ShardName, shard: Shard, recover_with: frozenset[ServerId] = frozenset()) -> bool:
        """Open a shard; see ``Shard.open``."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(shard)
            recovered = await shard.open(recover_with)
            shard.start()
            self._stacks[name] = stack.pop_all()
        self._coordinator.follow(shard.register)
        self.away.pop(name, None)
        self.open = dict(sorted([*self.open.items(), (name, shard)]))
        self.placement.targets[name] = self._target(shard)
        _log.info("shard %s is used from now on", name, extra=self._about(name))
        self._changed()
        return recovered

    async def _leave(self, name: ShardName) -> None:
        self.open = {other: shard for other, shard in self.open.items() if other != name}
        self.placement.targets.pop(name, None)
        self._changed()
        _log.info("shard %s was removed, and is left", name, extra=self._about(name))
        await self._stacks.pop(name).aclose()

    def _about(self, name: ShardName | None) -> dict[str, object]:
        return {"cluster": self._namespace, "shard": name}
