"""What ZooKeeper holds where there are several shards: the map, the homes of queues, and a view for each shard.

A compare-and-set may be lost, repeated, or carried out without an answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from tests.model.awaiting import doze, pause
from tests.model.promises import check_consistent
from tests.model.rules import Rule
from tests.model.server import Server
from tests.model.world import World
from zkrq.base.errors import Unavailable
from zkrq.coordination.coordinator import Versioned
from zkrq.producing.placement import MAP
from zkrq.protocol.clocks import PUT_WINDOW_MS
from zkrq.protocol.shards import FIRST, FIRST_VIEW, Entry, ShardMap, ShardName, ShardState, decode
from zkrq.protocol.shards import encode as encode_map
from zkrq.protocol.view import ServerId, encode, encode_end

FURTHER = ("DEF", "GHI", "JKL")
"""Servers of further shards: those of a shard that was removed are not used again."""

LOST = 0.04
UNANSWERED = 0.04
REPEATED = 0.04
"""The probabilities of what becomes of a compare-and-set."""


class Ensemble:
    """Shared by all clients."""

    def __init__(self, first: World) -> None:
        self.first: Final = first
        self.worlds: Final = {FIRST_VIEW: first}
        """The shards that there are or were, by the registers of their views."""
        self.begins_late = first.chance(0.7)
        """Whether nothing is pushed before there is a second shard."""
        self.now_ms = 1
        self._under_way = set[float]()
        """Pushes without an identity that were under way when the map was changed last."""
        self._registers: dict[str, Versioned] = {}
        self.further: Final = [
            {
                ServerId(id): Server(ServerId(id), first.on, first.ledger.clock, f"{id}1", first.nonce())
                for id in servers
            }
            for servers in FURTHER
        ]
        for servers in self.further:
            for server in servers.values():
                server.held.generation = ""

    def begin_with(self, name: ShardName) -> World:
        """Found a second shard of this name before anybody begins, as one that takes pushes; return it."""
        servers, register = self.further[0], f"view of {name}"
        world = self.worlds[register] = self.first.beside(register, servers)
        for server in servers.values():
            server.held.generation, server.held.epoch = world.nonce(), 1
        members = {id: server.life for id, server in servers.items()}
        world.view = replace(self.first.view, map_number=1, members=members, servers=dict.fromkeys(servers, ""))
        world.version = 0
        self.first.view = replace(self.first.view, map_number=1)
        shards = {FIRST: Entry(ShardState.OPEN, FIRST_VIEW), name: Entry(ShardState.OPEN, register)}
        self._registers[MAP] = Versioned(encode_map(ShardMap(1, shards, world.nonce())), 0)
        return world

    # -- registers ---------------------------------------------------------------------------------------------------

    def read(self, register: str) -> Versioned:
        if world := self.worlds.get(register):
            if world.version < 0:
                return Versioned(None, -1)
            return Versioned(encode_end("") if world.has_ended else encode(world.view), world.view.epoch)
        return self._registers.get(register, Versioned(None, -1))

    def swap(self, register: str, data: bytes, expected: int, given: tuple[str, int] | None = None) -> Versioned | None:
        """What a compare-and-set returns; None if somebody else was faster."""
        rule = Rule.MAP_BY_COMPARE_AND_SET if register == MAP else Rule.HOME_BY_COMPARE_AND_SET
        known = self.read(register)
        is_given = given is None or self.read(given[0]).version == given[1]
        if not is_given and Rule.REGISTERED_UNDER_ITS_MAP in self.first.on:
            return None
        if known.version == expected or rule not in self.first.on:
            self._registers[register] = Versioned(data, known.version + 1)
            self.first.log(register, data)
            if register == MAP:
                if self.first.has_all_rules:
                    check_consistent(decode(data).check_invariants)
                self._under_way = set(self.first.ledger.pushing_plain)
        found = self.read(register)
        return found if found.data == data else None

    # -- shards ------------------------------------------------------------------------------------------------------

    @property
    def map(self) -> ShardMap:
        return decode(self.read(MAP).data)

    @property
    def founded(self) -> Sequence[World]:
        """The shards that clients use, in the order in which they were founded."""
        return [world for world in self.worlds.values() if world.is_founded and not world.has_ended]

    def is_used(self, register: str) -> bool:
        """Whether there is a view in this register."""
        return register in self.worlds and self.worlds[register] in self.founded

    def world_at(self, register: str, servers: Mapping[str, str]) -> World:
        """The shard whose view is in this register, of these servers."""
        if register not in self.worlds:
            own = next(own for own in [self.first.servers, *self.further] if own.keys() == servers.keys())
            world = self.first.beside(register, own)
            if not register:
                return world
            self.worlds[register] = world
        return self.worlds[register]

    def unused(self) -> Mapping[str, str] | None:
        """Servers for the next shard."""
        used = {id for world in self.worlds.values() if world.is_founded for id in world.servers}
        return next(({id: id for id in servers} for servers in self.further if not servers.keys() & used), None)

    def let_time_pass(self) -> None:
        """Minutes pass, unless somebody is busy with a push that may have gone to a shard that drains."""
        ledger = self.first.ledger
        if not ledger.pushing_plain & self._under_way or Rule.REMOVED_LATE not in self.first.on:
            self.now_ms += PUT_WINDOW_MS
        for world in self.founded:
            for server in world.servers.values():
                for record in server.records.values():
                    ledger.age(record.pushed_at_ms)


class Coordinator:
    """A client of it."""

    def __init__(self, ensemble: Ensemble) -> None:
        self._ensemble = ensemble
        self.world = ensemble.first

    async def read(self, register: str) -> Versioned:
        await pause()
        return self._ensemble.read(register)

    async def swap(
        self, register: str, data: bytes, expected: int, *, given: tuple[str, int] | None = None
    ) -> Versioned | None:
        ensemble, world = self._ensemble, self.world
        await pause()
        await doze(world)
        dice = world.random()
        if dice < LOST:
            world.ledger.counts["compare-and-set lost"] += 1
            raise Unavailable("no answer")
        written = ensemble.swap(register, data, expected, given)
        if dice < LOST + UNANSWERED:
            world.ledger.counts["compare-and-set unanswered"] += 1
            raise Unavailable("no answer")
        if dice < LOST + UNANSWERED + REPEATED:
            world.ledger.counts["compare-and-set repeated"] += 1
            await pause()
            written = ensemble.swap(register, data, expected, given)
        return written

    def follow(self, register: str) -> None:
        """Clients hear of changes when they look."""
