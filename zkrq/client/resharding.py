"""Add, drain and remove shards, for operators, while all clients continue."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from zkrq.base import clock
from zkrq.base.checks import check_count
from zkrq.base.errors import Closed, ConfigError, Unavailable, ZkrqError
from zkrq.client.declaring import read_shared, write_shared
from zkrq.producing.placement import MAP, read_home, write_home
from zkrq.protocol import calls
from zkrq.protocol.clocks import PUT_WINDOW
from zkrq.protocol.enrolment import enrolment
from zkrq.protocol.server_info import ServerInfo
from zkrq.protocol.shards import (
    FIRST,
    Entry,
    ShardMap,
    ShardName,
    ShardState,
    begun,
    check_same,
    closed,
    drained,
    given_up,
    heard,
    joined,
    moves,
    opened,
    overtaken,
    rejoined,
    removed,
    shard_of,
)
from zkrq.protocol.shards import home as choose_home
from zkrq.protocol.view import FOUNDING, Life, NoView, ServerId, View, decode

if TYPE_CHECKING:
    from zkrq.base.settings import Settings
    from zkrq.client.shard import Shard
    from zkrq.client.shards import Prepare, Shards
    from zkrq.coordination.coordinator import Coordinator

ADD_SECONDS = 5.0
"""Seconds until adding a given shard is retried."""

HEADS_PAGE = 500
"""Ids that are read in one call."""

FIRST_REMEMBERED = b"\1window "
"""No id of an item, and none of the window of a key, is smaller; those of the records of a queue itself are."""

SHARE_TRIES = 10
"""Times that a queue's pause is copied to a new shard while others change it."""


class ShardChange(Protocol):
    """A ``MapChange`` of one shard, whose name is not bound yet."""

    def __call__(self, map: ShardMap, /, *, name: ShardName, by: str) -> ShardMap: ...


class Resharding:
    """Change which shards a namespace has."""

    def __init__(self, shards: Shards, coordinator: Coordinator, settings: Settings) -> None:
        self._shards = shards
        self._coordinator = coordinator
        self._settings = settings

    # -- with the namespace --------------------------------------------------------------------------------------------

    async def found_given(self) -> None:
        """Add the shards that this client was given, if the namespace never had others.

        All are in the map before the first is founded.  So what fails here is continued by ``add_begun``.  Another
        client may have added and removed them meanwhile: then they are not added again.
        Raises ``ConfigError``, ``Unavailable``.
        """
        given = {name: servers for name, servers in self._shards.given.items() if name != FIRST}
        if given and self._shards.map.number == 0:
            for name, servers in given.items():
                await self._check_strangers(name, servers, self._settings.min_replicas)
            await self._shards.change(partial(begun, registers={name: _new_register(name) for name in given}))
            await self.add_begun()

    async def add_begun(self) -> None:
        """Add the shards that this client was given, and those whose addition another client has begun.

        Raises ``ConfigError``, ``Unavailable``.
        """
        for name in self._begun():
            try:
                await self.add(name, self._shards.given[name], self._settings.min_replicas)
            except ConfigError:
                # Drained meanwhile, so another client has opened it first: then it is begun no longer.
                entry = (await self._shards.refresh()).shards.get(name)
                if entry is None or entry.state is not ShardState.DRAINING:
                    raise

    async def keep_adding(self) -> None:
        """Try to add the shards that were begun until there are none, so that this client opens without them."""
        while names := self._begun():
            for name in names:
                try:
                    await self.add(name, self._shards.given[name], self._settings.min_replicas)
                except Closed:
                    return
                except ZkrqError as error:
                    self._shards.note_unfinished(name, error)
            await asyncio.sleep(ADD_SECONDS)

    def _begun(self) -> Sequence[ShardName]:
        shards = self._shards.map.shards
        return [name for name in self._shards.given if name in shards and shards[name].is_new]

    # -- by an operator ------------------------------------------------------------------------------------------------

    async def reinstate(self, name: ShardName, named: frozenset[ServerId], urls: Mapping[str, str]) -> None:
        """Continue with what these servers of a shard hold, after ZooKeeper was restored from an older backup.

        ``urls``: of servers that the restored view does not name.  A shard that the restored map lacks is added again,
        of these servers and those that this client was given for it.  Repeat it if it fails.  Raises ``ConfigError``,
        ``Unavailable``.
        """
        given = {**self._shards.given.get(name, {}), **urls}
        map = await self._shards.change(overtaken)
        entry = map.shards.get(name)
        if entry is not None and await self._is_founded(entry.register):
            async with await self._shards.find_closed(name, entry, given) as shard:
                await shard.reinstate(named, map.number)
            await self._use(name, entry.register)
            return
        if not given:
            raise ConfigError(f"the restored shard map has no shard {name!r}: give its servers as NAME=URL")
        await self.add(name, given, self._settings.min_replicas, holding=named)

    async def add(
        self,
        name: ShardName,
        servers: Mapping[str, str],
        min_replicas: int | None,
        *,
        holding: frozenset[ServerId] = frozenset(),
    ) -> None:
        """Add a shard of these servers, or let one that is draining take pushes again; it does when this returns.

        ``holding``: those whose items it begins with; empty: it begins without any.  Repeat it if it fails.  Raises
        ``ConfigError``, ``Unavailable``.
        """
        entry = (await self._shards.refresh()).shards.get(name)
        is_new = entry is None
        if entry:
            await self._check_not_ended(name, entry)
        if entry is None or (entry.is_new and not await self._is_founded(entry.register)):
            await self._check_strangers(name, servers, min_replicas)
            entry = await self._join(name)
        if entry.state is ShardState.JOINING:
            try:
                await self._found(name, entry.register, servers, min_replicas, holding)
            except ConfigError:
                if is_new and not await self._is_founded(entry.register):
                    await self._shards.change(partial(given_up, name=name, register=entry.register))
                raise
        shard = await self._use(name, entry.register)
        if set(shard.view.servers) != set(servers):
            raise ConfigError(f"there is a shard {name!r} already, of {', '.join(shard.view.servers)}")
        await self._rejoin(shard)

        async def prepare(map: ShardMap, version: int, wanted: ShardMap) -> None:
            await self._settle(map, version, wanted)
            await self._share(shard, map)

        await self._change(opened, name, entry.register, prepare=prepare)

    async def _change(
        self,
        change: ShardChange,
        name: ShardName,
        register: str,
        *,
        prepare: Prepare | None = None,
    ) -> None:
        """Change what the map says of one shard; see ``Shards.change``.

        Raises ``ConfigError`` if there is another one of that name now: an operator's call may wait for minutes.
        """

        def change_same(map: ShardMap, *, by: str) -> ShardMap:
            check_same(map, name, register)
            return change(map, name=name, by=by)

        await self._shards.change(change_same, prepare=prepare)

    async def _join(self, name: ShardName) -> Entry:
        """Enter a shard into the map, unless there is one of that name; return what the map says of it."""
        return (await self._shards.change(partial(joined, name=name, register=_new_register(name)))).shards[name]

    async def _check_strangers(self, name: ShardName, servers: Mapping[str, str], min_replicas: int | None) -> None:
        """Check the servers of a new shard before anything is written.  Raises ``ConfigError``."""
        if min_replicas is not None:
            check_count("min_replicas", min_replicas, least=1, most=len(servers))
        await self._shards.open_missing()
        others = [(other, shard) for other, shard in self._shards.open.items() if other != name]
        for other, shard in others:
            if twins := shard.view.servers.keys() & servers.keys():
                raise ConfigError(f"server {min(twins)} belongs to shard {other}: servers need different names")
        async with self._shards.make(name, servers, "", self._settings) as shard:
            met = await shard.fleet.identify(list(shard.fleet.servers))
        for id, who in met.items():
            for other, known in others:
                if isinstance(who, ServerInfo) and (twin := known.view.id_of(who.run_id)):
                    raise ConfigError(f"{id} is server {twin} of shard {other}: a shard needs servers of its own")

    async def _found(
        self,
        name: ShardName,
        register: str,
        servers: Mapping[str, str],
        min_replicas: int | None,
        holding: frozenset[ServerId],
    ) -> None:
        """Found the view of a shard that the map names already, so that all who add it found the same one.

        ``holding``: see ``add``.
        """
        level = self._shards.first.view.level  # so that every client of the namespace can use the shard
        settings = replace(self._settings, found=True, min_replicas=min_replicas, level=level)
        async with self._shards.make(name, servers, register, settings) as shard:
            if holding and not await self._is_founded(register):
                await shard.refound(holding)
            else:
                await shard.open()

    async def _rejoin(self, shard: Shard) -> None:
        """Take back that a shard drains or was closed, before it takes pushes again.

        The view of one that was closed is another one then, so a removal that has found nothing in it ends in vain.
        """
        entry = self._shards.entry(shard.name)
        await self._change(rejoined, shard.name, shard.register)
        if entry.state in (ShardState.CLOSED, ShardState.JOINING) and not entry.is_new:  # fails if its view has ended
            await self._ask_for_map(shard)

    async def _use(self, name: ShardName, register: str) -> Shard:
        """Return the shard with this view, opened here.  Raises ``Unavailable``."""
        for is_read in (False, True):
            if (shard := self._shards.open.get(name)) and shard.register == register:
                return shard
            if not is_read:
                await self._shards.open_missing()
        raise Unavailable(f"shard {name} cannot be reached: {self._shards.away.get(name, 'it was removed')}")

    async def _settle(self, map: ShardMap, version: int, wanted: ShardMap) -> None:
        """Under a settling map: register the homes that would be others under the wanted one (``protocol/shards.py``).

        ``version``: of the map's register.  If the map is another one meanwhile, less may be done; then the wanted one
        is not written.  Raises ``Unavailable``, also if one of the shards of the hash cannot be reached, or if a server
        of it is away that may come back with what it holds.
        """
        shards = [await self._use(name, map.shards[name].register) for name in map.hashed]
        for shard in shards:
            await self._ask_for_map(shard)
        for shard in shards:
            for queue in await shard.replicas.names(calls.Queues(), complete=True):
                if moves(queue, map, wanted):
                    register, at = await read_home(self._coordinator, queue)
                    if not register or map.shard_with(register) is None:
                        home = map.shards[choose_home(queue, map.hashed)].register
                        await write_home(self._coordinator, queue, home, at, (MAP, version))

    async def _share(self, shard: Shard, map: ShardMap) -> None:
        """Give the queues on a new shard the pause and the limits that they have on the first one, and no others.

        Before that, the servers of the first shard are told of the new one.  A client that pauses a queue afterwards,
        or gives it limits, knows of the new shard and changes the map, which keeps this client from opening the shard
        (see ``renewed``).  Queues that have limits are named in the map, if they were not before; that changes it, too.

        Another client may open the shard meanwhile, and then a queue may be paused there as well: first on the first
        shard, then on this one.  So this one is read before the first one, or a pause that was taken in between would
        be ended here; and both are read again after a change, because the last writer leaves both in the same state.
        Limits may be declared on the new shard first, if it is the queue's home.  A client that declares them changes
        the map before, and has all servers ask for the new map: they refuse what this client writes by its older one.
        """
        if not map.shards[shard.name].is_new:
            return  # it had items before, so who pauses a queue tells its servers
        await self._ask_for_map(self._shards.first)
        first, new = self._shards.first.replicas, shard.replicas
        limited = set[str]()
        for queue in {*await first.names(calls.Queues()), *await new.names(calls.Queues())}:
            for _ in range(SHARE_TRIES):
                known, wanted = [await read_shared(each, queue) for each in (new, first)]
                if wanted == known:
                    break
                try:
                    await write_shared(new, queue, wanted, known, map.number)
                except Unavailable:
                    if (await self._shards.refresh()).number == map.number:
                        raise
                    return  # the caller meets the newer map, and looks again
            else:
                raise Unavailable(f"the settings of queue {queue!r} are changed all the time: add the shard again")
            if wanted.needs_home:
                limited.add(queue)
        if spread := limited - map.homed.keys():
            await self._shards.keep_at_home(spread)

    async def _ask_for_map(self, shard: Shard) -> None:
        """Have a shard's servers refuse pushes that were placed by an older map than the present one."""
        await shard.replicas.ask_for_map(self._shards.map.number)

    async def drain(self, name: ShardName) -> None:
        """Let a shard take no new items, except in queues whose home it is.

        Raises ``ConfigError``, ``Unavailable``.
        """
        await self._shards.refresh()
        entry = self._shards.entry(name)
        if entry.is_new:
            raise ConfigError(f"shard {name} is being added: add it again, or remove it")
        await self._check_not_ended(name, entry)
        shard = await self._use(name, entry.register)
        if entry.state is ShardState.CLOSED:
            await self._rejoin(shard)
        await self._change(drained, name, entry.register)
        await self._ask_for_map(shard)  # before the moment that is noted: later pushes do not go there
        await self._change(partial(heard, now_ms=clock.now_ms()), name, entry.register, prepare=self._settle)

    async def remove(self, name: ShardName, *, force: bool) -> None:
        """Remove a draining shard in which nothing is left.

        An earlier call may have been interrupted anywhere, so what is left to do follows from what is there:

        * **Never opened**: no item was pushed there.  It leaves the map.
        * **Draining**: it is looked through, without changing anything.  Then it is closed, so that its servers refuse
          every push, and looked through again: a push may have arrived in between.  If something is left, it is
          draining again; otherwise its view ends.
        * **Closed**: an earlier call was interrupted.  The second look is repeated.
        * **Its view has ended**: no client can use it any more.  It leaves the map.

        Raises ``ConfigError`` and changes nothing if something is left; ``Unavailable``: call it again.
        """
        await self._shards.refresh()
        entry = self._shards.entry(name)
        if entry.is_new:
            await self._shards.change(partial(given_up, name=name, register=entry.register))
            await self._shards.open_missing()
            return
        if not await self._has_ended(entry.register):
            await self._empty_and_end(name, entry, force=force)
        await self._change(removed, name, entry.register)
        await self._shards.open_missing()

    async def _empty_and_end(self, name: ShardName, entry: Entry, *, force: bool) -> None:
        """Make sure that nothing is left in a shard, and that no client can use it any more: see ``remove``."""
        if entry.state is ShardState.DRAINING:
            if not entry.since_ms:
                await self.drain(name)  # an earlier call has not told its servers
            # Polling must not change the view, because every change renews all leases: a claim that is not extended
            # would never expire, and the shard never be empty.
            await self._check_empty(await self._use(name, entry.register), force=force)
        await self._change(closed, name, entry.register)
        shard = await self._use(name, entry.register)
        view = await self._keep_closed(shard)
        try:
            await self._check_empty(shard, force=force)
        except ConfigError:
            await self._rejoin(shard)
            await self._change(drained, name, entry.register)
            raise
        if self._shards.map.homed:  # the tokens of a group in order go on at its queue's next home
            for other in self._shards.map.hashed:
                replicas = (await self._use(other, self._shards.map.shards[other].register)).replicas
                await replicas.ask_for_map(0, after=view.epoch)
        await self._end(shard, view)

    async def _check_empty(self, shard: Shard, *, force: bool) -> None:
        """Raise ``ConfigError`` if something is left in a shard, ``Unavailable``."""
        if left := await self._left_in(shard, force=force):
            raise ConfigError(f"shard {shard.name} cannot be removed yet: {left}")

    async def _keep_closed(self, shard: Shard) -> View:
        """Have a closed shard's servers refuse every push; return the view under which they do: see ``_rejoin``.

        Raises ``Unavailable`` if it is used again.
        """
        while True:
            await self._ask_for_map(shard)
            view, map = shard.view, await self._shards.refresh()
            entry = map.shards.get(shard.name)
            if entry is None or entry.register != shard.register or entry.state is not ShardState.CLOSED:
                raise Unavailable(f"shard {shard.name} is used again, or was removed, by another client")
            if map.number <= view.map_number:
                return view

    async def _is_founded(self, register: str) -> bool:
        """Tell whether there is a view in this register."""
        data = (await self._coordinator.read(register)).data
        try:
            return data is not None and decode(data).epoch > FOUNDING
        except ValueError:
            return False

    async def _check_not_ended(self, name: ShardName, entry: Entry) -> None:
        """Raise ``ConfigError`` if a removal has ended the view of a shard, after which no client can use it."""
        if await self._has_ended(entry.register):
            raise ConfigError(f"shard {name} is being removed, and empty: remove it again, and then add it")

    async def _has_ended(self, register: str) -> bool:
        """Tell whether a call has ended this view."""
        data = (await self._coordinator.read(register)).data
        try:
            decode(data or b"")
        except ValueError as error:
            return isinstance(error, NoView)
        return False

    async def _end(self, shard: Shard, view: View) -> None:
        """End a shard's view, if it is still this one, and take its servers out of it.

        A client that still knows the old view then gets nothing there.  One server is enough for that, because an
        operation needs all of them.  Raises ``Unavailable``.
        """
        if not await shard.membership.end(view):
            raise Unavailable(f"the view of shard {shard.name} has changed meanwhile; call this again")
        for id, who in (await shard.fleet.identify(list(view.receivers))).items():
            if isinstance(who, ServerInfo):
                life = Life(who.run_id, secrets.token_hex(8))
                ask = enrolment(id, who, view.epoch, life, deployment=view.deployment, holding=True)
                await shard.fleet.ask(ask.epoch, ask.lives, ask.call, once=ask.once)

    async def _left_in(self, shard: Shard, *, force: bool) -> str | None:
        """Tell what is left in a shard, None if nothing is."""
        for queue in await shard.replicas.names(calls.Queues(), everywhere=True):
            told = await shard.replicas.ask(calls.Statistics(queue))
            if count := told.ready + told.scheduled + told.claimed + told.dead:
                return f"queue {queue!r} has {count} item(s) there"
            home, _ = await read_home(self._coordinator, queue)
            if home != shard.register or force:
                continue
            if told.tombstones and (count := await _remembered(shard, queue)):
                return (
                    f"it is the home of queue {queue!r}, and remembers {count} id(s) of items that were removed within "
                    "the last ten minutes, or windows of keys"
                )
            if count := await _flows_in(shard, queue):
                return f"it is the home of queue {queue!r}, of which {count} flow(s) have not ended: `zkrq flows`"
        now_ms = clock.now_ms()
        since = (now_ms - (self._shards.entry(shard.name).since_ms or now_ms)) / 1000
        if not force and since < PUT_WINDOW:
            return (
                f"it has been draining for {since:.0f} s, and for {PUT_WINDOW:g} s a client may repeat a push that "
                "went there"
            )
        return None


def _new_register(name: ShardName) -> str:
    return f"views/{name}-{secrets.token_hex(4)}"


async def _flows_in(shard: Shard, queue: str) -> int:
    """Count the flows, and legs of such, about which there is something to do: their members may be elsewhere."""
    names = set[bytes]()
    async for page, is_first in shard.replicas.pages(calls.FlowPage(queue)):
        names = (set[bytes]() if is_first else names) | {row.name for row in page.rows}
    return len(names)


async def _remembered(shard: Shard, queue: str) -> int:
    """Count the ids that a shard knows of a queue and that do not name their shard: pushed again, they go home."""
    count = 0
    async for page, is_first in shard.replicas.pages(calls.Heads(queue, calls.START, HEADS_PAGE, checks=False)):
        ids = [id.decode(errors="replace") for id in page.heads if id >= FIRST_REMEMBERED]
        count = sum(shard_of(id) is None for id in ids) + (0 if is_first else count)
    return count
