"""Who uses several shards at once: producers, and operators who add, drain and remove a second one.

Each knows the shards as they were when it looked last.  Consumers have a claim on one shard, so they are as usual.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from tests.levels import LATER
from tests.model.awaiting import pause, steps_of
from tests.model.clients import BUNDLE_MOST, bundle
from tests.model.consumers import Consumer
from tests.model.content import Token
from tests.model.ensemble import Coordinator, Ensemble
from tests.model.membership import PAUSE, Steps
from tests.model.repair import Repairer
from tests.model.server import content_of
from tests.model.shards import AlteredResharding, KnownShards, Pushing
from zkrq.base.errors import ZkrqError
from zkrq.base.ids import MARK
from zkrq.coordination.coordinator import Versioned
from zkrq.protocol.calls import Put
from zkrq.protocol.shards import ShardName, ShardState

SECONDS = ("d", "d", "d", "b")
"""What the second shard may be called.  The name says whether it is the queue's home, if it is open in time."""

LOOKS = 0.6
"""How often a producer opens shards that it has heard of, and leaves others, before a push."""

WAITS = 0.95
PATIENCE = 300
"""How many producers that begin late wait for the second shard, and turns for which they do."""


class Spreading:
    """A client of all shards."""

    def __init__(self, ensemble: Ensemble) -> None:
        self.ensemble: Final = ensemble
        self.world: Final = ensemble.first
        self.tokens: Final = list[Token]()
        self.speaks = LATER
        self.shards = KnownShards(ensemble)

    def work(self) -> Steps[None]:
        yield from steps_of(self.main())  # begun with the first turn: a client may die before it

    async def main(self) -> None:
        raise NotImplementedError

    async def begin(self) -> None:
        """In some schedules nothing was pushed before there is a second shard."""
        waits = self.ensemble.begins_late and self.world.chance(WAITS)
        for _ in range(PATIENCE if waits else 0):
            if len(self.ensemble.map.open) > 1:
                break
            await pause()
            if self.world.chance(0.05):
                await self.look()

    async def look(self) -> None:
        if self.world.chance(LOOKS):
            await self.shards.open_missing()

    async def linger(self, most: int) -> None:
        for _ in range(self.world.below(most)):
            await pause()


class Spreader(Spreading):
    """Pushes bundles to any shard; those of which it is not known whether they were pushed, again under their ids."""

    PUSHES = 4
    LINGERS = 60

    def __init__(self, ensemble: Ensemble, numbers: Iterable[int]) -> None:
        super().__init__(ensemble)
        self._numbers = numbers
        self._pushing = Pushing(self.shards)

    async def main(self) -> None:
        ledger = self.world.ledger
        await self.begin()
        for number in self._numbers:
            await self.linger(self.LINGERS)
            ledger.pushing.add(number)
            ledger.pushing_plain.add(number)
            try:
                await self.push(number, self.world.below(BUNDLE_MOST + 1))
            finally:
                ledger.pushing.discard(number)
                ledger.pushing_plain.discard(number)

    async def push(self, number: int, size: int) -> None:
        def make(ending: str) -> Put:
            return bundle(number, size, f"{MARK}{number:011x}-{self.world.number():08x}-0{ending}")

        for _ in range(self.PUSHES):
            await self.look()
            try:
                put, results = await self._pushing.spread(make, max(1, size))
            except ZkrqError:
                continue  # nothing happened
            missing = [put.item_id(at) for at, result in enumerate(results) if isinstance(result, ZkrqError)]
            for id in missing:
                await self.repeat(id, number)
            return

    async def repeat(self, id: str, number: int) -> None:
        for _ in range(self.PUSHES):
            await self.linger(8)
            if not isinstance(await self._pushing.name(id, number, content_of(id.encode())), ZkrqError):
                return


class Namer(Spreading):
    """Pushes items under ids, some of which another one pushes, too."""

    PUSHES = 4

    def __init__(self, ensemble: Ensemble, numbers: Iterable[int], busy: dict[int, int], lingers: int) -> None:
        """``busy``: how many clients will push each number.  ``lingers``: turns before each, at most."""
        super().__init__(ensemble)
        self._lingers = lingers
        self._pushing = Pushing(self.shards)
        self._left = list(numbers)
        self._busy = busy
        for number in self._left:
            busy[number] = busy.get(number, 0) + 1
            self.world.ledger.pushing.add(number)

    async def main(self) -> None:
        try:
            await self.begin()
            while self._left:
                await self.linger(self._lingers)
                if self.world.chance(0.5):
                    await self.look()
                await self.push(self._left[0])
                self._end(self._left.pop(0))
        finally:
            for number in self._left:
                self._end(number)

    async def push(self, number: int) -> None:
        id = f"{number:02}"
        for _ in range(self.PUSHES):
            if not isinstance(await self._pushing.name(id, number, content_of(id.encode())), ZkrqError):
                return
            await self.look()

    def _end(self, number: int) -> None:
        self._busy[number] -= 1
        if not self._busy[number]:
            self.world.ledger.pushing.discard(number)


class Patient(Consumer):
    """A consumer of one of several shards, which waits until something was pushed, because a claim makes the queue."""

    CLAIMS = 10
    IDLE = 20
    VERBS = ("ack",) * 12 + ("nack", "release", "extend")

    def work(self) -> Steps[None]:
        for _ in range(PATIENCE):
            if self.world.ledger.pushed:
                break
            yield PAUSE
        yield from super().work()


class Steady(Repairer):
    """A repairer of one of several shards, where there is more going on."""

    REPAIRS = 1
    LINGERS = 20


class Died(Exception):
    """The operator's client has died."""


class Mortal(Coordinator):
    """What a client may do last."""

    DIES = 0.03

    async def read(self, register: str) -> Versioned:
        found = await super().read(register)
        if self.world.chance(self.DIES):
            raise Died
        return found

    async def swap(
        self, register: str, data: bytes, expected: int, *, given: tuple[str, int] | None = None
    ) -> Versioned | None:
        written = await super().swap(register, data, expected, given=given)
        if self.world.chance(self.DIES):
            raise Died
        return written


class Operator(Spreading):
    """Gives one command after another, each to a new client: the one before may have died in the middle."""

    COMMANDS = 8
    LINGERS = 30
    USES = 250
    """Turns between two commands at most, and while the shard is open."""
    STRAIGHT = 0.75
    """How often it goes on to what usually follows."""

    def __init__(self, ensemble: Ensemble, name: ShardName) -> None:
        super().__init__(ensemble)
        self._name = name

    async def main(self) -> None:
        world = self.world
        for _ in range(self.COMMANDS):
            is_used = self._name in self.ensemble.map.open
            await self.linger(self.USES if is_used else self.LINGERS)
            self.shards = KnownShards(self.ensemble, Mortal(self.ensemble))
            command = self._next()
            world.log("operator", command, self._name)
            try:
                await self.give(command)
            except Died:
                world.ledger.counts["operator died"] += 1
            except ZkrqError as error:
                world.log("operator", command, str(error))
            else:
                world.ledger.counts[f"{command} returned"] += 1

    def _next(self) -> str:
        entry = self.ensemble.map.shards.get(self._name)
        usual = {None: "add", ShardState.JOINING: "add", ShardState.OPEN: "drain"}.get(entry and entry.state, "remove")
        if self.world.chance(self.STRAIGHT):
            return usual
        return ("add", "drain", "remove")[self.world.below(3)]

    async def give(self, command: str) -> None:
        """Raises ``ZkrqError``, ``Died``."""
        resharding, name = AlteredResharding(self.shards, self.world.on), self._name
        await self.shards.open_missing()
        match command:
            case "add":
                servers = self._servers()
                if servers:
                    await resharding.add(name, servers, 2)
            case "drain":
                await resharding.drain(name)
            case _:
                self.ensemble.let_time_pass()
                await resharding.remove(name, force=False)

    def _servers(self) -> Mapping[str, str] | None:
        """Those of the shard, if there is one."""
        entry = self.ensemble.map.shards.get(self._name)
        if entry and (world := self.ensemble.worlds.get(entry.register)) and world.is_founded:
            return {id: id for id in world.servers}
        return self.ensemble.unused()
