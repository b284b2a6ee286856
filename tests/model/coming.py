"""Items that come home: a limit or an order is declared while items are on two shards, and claimed there.

What brings them, places pushes, and names the queue in the map is the library's: its coroutines await nothing but what
a client of the model does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from tests.model.awaiting import Awaited, pause, steps_of
from tests.model.bundle import Draft
from tests.model.content import QUEUE, Item, Token, group_of, handed, owner_of, place_of
from tests.model.membership import PAUSE, Steps
from tests.model.promises import Broken, Ledger, Promise, redrive_all, same
from tests.model.rules import Rule
from tests.model.server import Server, content_of
from tests.model.shards import KnownShards
from tests.model.spreading import Patient, Spreader, Spreading
from tests.model.world import LIMIT, World
from zkrq.base import clock
from zkrq.base.errors import ZkrqError
from zkrq.base.ids import MARK
from zkrq.client.homing import Bringing
from zkrq.client.shard import Shard
from zkrq.consuming.core.supply import Order
from zkrq.producing.sending import Named
from zkrq.protocol.calls import Adopted, Cancel, CancelReply, Claim, Declare, Fence, Movable, Put
from zkrq.protocol.deciding import Decided
from zkrq.protocol.homing import MOVED
from zkrq.protocol.payloads import join
from zkrq.protocol.records import State, fresh
from zkrq.protocol.shards import FIRST, shard_of
from zkrq.replication.runner import PrimaryDecides

DECLARATIONS = {False: ("limits", f"concurrency={LIMIT}"), True: ("groups", "ordered=1")}
"""Section and settings, by whether it is an order that is declared."""


class AlteredBringing(Bringing):
    """Bring items home few at a time, and rest in between now and then."""

    page = 3
    RESTS = 0.4
    RESTS_FOR = 150
    """How often it rests before a step, and for how many turns at most."""

    def __init__(self, shards: KnownShards, world: World) -> None:
        super().__init__(shards, QUEUE)
        self._world = world
        self._later: tuple[int, Sequence[Adopted]] | None = None

    async def _rest(self) -> None:
        for _ in range(self._world.below(self.RESTS_FOR) if self._world.chance(self.RESTS) else 0):
            await pause()

    async def adopt(self, home: Shard, as_of_ms: int, items: Sequence[Adopted]) -> Sequence[str]:
        await self._rest()
        self._world.ledger.coming.update(same(item.id.encode()) for item in items)
        if Rule.HOME_FIRST not in self._world.on:
            self._later = as_of_ms, items
            return [item.id for item in items]
        return await super().adopt(home, as_of_ms, items)

    async def adopted_on(self, home: Shard) -> Sequence[str]:
        if Rule.ADOPTED_EVERYWHERE in self._world.on:
            return await super().adopted_on(home)
        return [id.decode() for id in (await home.replicas.ask(Movable(QUEUE, 0))).adopted]

    async def leave(self, shard: Shard, ids: Sequence[str]) -> Mapping[str, bool]:
        await self._rest()
        return await super().leave(shard, ids)

    def judge(self, ids: Sequence[str], decided: Decided[CancelReply]) -> Mapping[str, bool]:
        has_come = super().judge(ids, decided)
        if Rule.ENDED_FOR_GOOD in self._world.on:
            return has_come
        return {
            **{id: False for id, state in zip(ids, decided.reply.states, strict=True) if state in b"CD"},
            **has_come,
        }

    async def admit(self, home: Shard, has_come: Mapping[str, bool]) -> None:
        await self._rest()
        if self._later:
            await super().adopt(home, *self._later)
            self._later = None
        self._world.ledger.counts["came home"] += sum(has_come.values())
        self._world.ledger.counts["ended before they came home"] += len(has_come) - sum(has_come.values())
        await super().admit(home, has_come)


class Mover(Spreading):
    """Brings items home, again and again, and may die anywhere: then the next one goes on."""

    ROUNDS = 10
    LINGERS = 40
    DIES = 0.5
    LIVES = 150
    """Steps of one that dies, at most."""

    async def main(self) -> None:
        world = self.world
        for _ in range(self.ROUNDS):
            await self.linger(self.LINGERS)
            await self.shards.open_missing()
            if QUEUE not in self.shards.map.homed:
                continue
            bringing = AlteredBringing(self.shards, world)
            lives = world.below(self.LIVES) if world.chance(self.DIES) else -1
            try:
                await Awaited(self._live(steps_of(bringing.bring_all()), lives))
            except ZkrqError as error:
                world.log("mover", str(error))

    def _live(self, steps: Steps[int], lives: int) -> Steps[None]:
        """Go on for so many steps; -1: to the end."""
        with suppress(StopIteration):
            requests = next(steps)
            while lives:
                requests = steps.send((yield requests))
                lives -= 1
            self.world.ledger.counts["mover died"] += 1
            steps.close()


class Announcer(Spreading):
    """Declares a limit or an order, in the steps of ``declaring.py``."""

    WAITS = 60
    NAMED = 300
    """Turns between the steps, at most, in which the map names the queue and its limits are declared."""

    async def main(self) -> None:
        await self.linger(self.WAITS)
        while not self.world.ledger.is_declared:
            await self.shards.open_missing()
            with suppress(ZkrqError):
                await self.declare()
            await pause()

    async def declare(self) -> None:
        """Raises ``ZkrqError``."""
        shards, ledger = self.shards, self.world.ledger
        section, settings = DECLARATIONS[ledger.clock.ordered]
        await shards.keep_at_home([QUEUE])
        await self.linger(self.NAMED)  # others bring items home before the limits are known where they are
        home = await shards.home(QUEUE)
        others = [shard for shard in await shards.all_used() if shard is not home]
        for shard in (home, *others):
            await shard.replicas.decide(Declare(QUEUE, section, settings, "", shard is not home, "declared"))
        await home.replicas.ask_for_map(0, after=max(shard.view.epoch for shard in others))
        ledger.home, ledger.is_declared = home.register, True
        self.world.log("declared", section, settings)


class Hasty(Spreader):
    """Pushes most of its items before anything is declared."""

    LINGERS = 25


class Grouper(Hasty):
    """Pushes single items into groups, wherever they go; once it has heard of the order, by decisions at home."""

    async def push(self, number: int, size: int) -> None:
        for _ in range(self.PUSHES):
            await self.look()
            try:
                put, (result,) = await self._pushing.spread(lambda ending: self._put(number, ending), 1)
            except PrimaryDecides:
                await self._decide(number)
                return
            except ZkrqError:
                continue  # nothing happened
            if isinstance(result, ZkrqError):
                await self._push_again(put)
            return

    async def _push_again(self, put: Put) -> None:
        for _ in range(self.PUSHES):
            await self.linger(8)
            (result,) = await self._pushing.at_home([Named(put, by_caller=True)], decided=False)
            if not isinstance(result, ZkrqError):
                return

    def _put(self, number: int, ending: str) -> Put:
        id = f"{MARK}{number:011x}-{self.world.number():08x}-0{ending}"
        record = fresh(0, number, group=f"{group_of(same(id.encode()))}")
        return Put(id, record, join([content_of(id.encode())]))

    async def _decide(self, number: int) -> None:
        placement, ledger = self.shards.placement, self.world.ledger
        put: Put | None = None  # it may have been pushed by a try that has failed
        for _ in range(self.PUSHES):
            with suppress(ZkrqError):
                put = put or self._put(number, placement.ending(await placement.home(QUEUE)))
                if ledger.is_declared:
                    ledger.push_begins(put.id.encode())
                (result,) = await self._pushing.at_home([Named(put, by_caller=True)], decided=True)
                if not isinstance(result, ZkrqError):
                    ledger.push_returns(put.id.encode())
                    return
            await self.look()


class Homed(Patient):
    """A consumer of one of two shards, which does not always know where the queue is at home."""

    CLAIMS = 12
    BEGINS = 250
    """Turns before the first claim, at most."""
    VERBS = ("ack",) * 5 + ("nack", "nack", "release", "release", "bury", "extend")
    KNOWS = 0.7
    """How often a request is made by one that knows."""

    def __init__(self, world: World, home: str) -> None:
        super().__init__(world)
        self._is_home = world.register == home

    def work(self) -> Steps[None]:
        for _ in range(self.world.below(self.BEGINS)):
            yield PAUSE
        yield from super().work()

    def request(self, order: Order, token: Token) -> Claim:
        self.world.ledger.asked_at[token] = self.world.register
        knows = self.world.chance(self.KNOWS)
        return replace(super().request(order, token), elsewhere=not (knows and self._is_home))


class Canceller(Spreading):
    """Removes queued items, as an operator does: where their id says, and then at home."""

    CANCELS = 3
    LINGERS = 150

    async def main(self) -> None:
        for _ in range(self.CANCELS):
            await self.linger(self.LINGERS)
            await self.shards.open_missing()
            if items := sorted(self.world.ledger.pushed):
                with suppress(ZkrqError):
                    await self.cancel(items[self.world.below(len(items))])

    async def cancel(self, item: Item) -> None:
        """Raises ``ZkrqError``."""
        shards, ledger, id = self.shards, self.world.ledger, item.decode()
        pardons, (bundle, position) = ledger.pardons, place_of(item)
        named, home = shards.open.get(shard_of(id) or FIRST), await shards.home(QUEUE)
        ledger.may_be_removed(item)
        for shard in (named, home) if named is not home else (home,):
            if shard is None:
                return
            call = Cancel(QUEUE, State.QUEUED.value, 0, self.world.nonce(), [id])
            decided = await shard.replicas.decide(call)
            (state,) = decided.reply.states
            self.world.log("cancel", item, shard.name, state)
            if state == b"Q" and position not in decided.superseded.get(bundle, ()) and pardons == ledger.pardons:
                ledger.counts["cancelled"] += 1
                ledger.acked.add(same(item))
            if state not in (MOVED.encode(), b""):
                return


class Finisher(Announcer):
    """Declares what was not declared, and brings home what is left, when nothing fails any more."""

    TRIES = 20

    async def main(self) -> None:
        # A push may have been made at the present moment, and be old by now; what is adopted now is not late.
        self.world.ledger.clock.old.discard(clock.now_ms())
        for _ in range(self.TRIES):
            await self.shards.open_missing()
            try:
                await self.declare()
                await AlteredBringing(self.shards, self.world).bring_all()
            except ZkrqError as error:
                self.world.log("finisher", str(error))
            else:
                return


def check_items(ledger: Ledger, shards: Mapping[str, Collection[Server]]) -> None:
    """What is owed is on all servers of a shard, and nothing that is gone can be claimed.  ``shards``: servers in sync,
    by register."""
    for item in sorted(ledger.owed):
        if not any(all(server.has(item) for server in servers) for servers in shards.values()):
            held = {server.id: server.records.get(place_of(item)[0]) for each in shards.values() for server in each}
            raise Broken(Promise.LOST, f"item {item}: {held}")
    for server in [server for servers in shards.values() for server in servers]:
        for item in sorted(server.alive):
            bundle, position = place_of(item)
            is_done = same(item) in ledger.acked - ledger.may_come_again
            if is_done and not Draft(bundle, server.records[bundle]).is_adopted(position):
                raise Broken(Promise.REDELIVERED, f"item {item} on {server.id}, which has {server.records[bundle]}")


def end_claims(ledger: Ledger, primaries: Collection[Server]) -> None:
    """Time passes, the dead are fenced, dead letters are redriven, and nothing is limited any more."""
    ledger.lapsed.update(ledger.tokens)
    ledger.clock.limit, ledger.clock.ordered = 0, False
    for primary in primaries:
        for token in sorted(ledger.tokens):
            primary.ask(Fence(QUEUE, owner_of(token)))
        redrive_all(primary)


def check_all_is_home(ledger: Ledger, home: Server, there: Server) -> None:
    """Everything that is owed can be claimed at home, nothing that is gone, and nothing is left on the other shard."""
    if left := [item for item in sorted(there.alive) if there.has(item)]:  # others were never pushed
        raise Broken(Promise.STRANDED, f"items {left} on {there.id}")
    everything = Claim(QUEUE, "the last", 1, len(home.alive), 1, "", 0, "X", 0, 0)
    delivered = {id for id, *_ in handed(everything.read(home.ask(everything).body))}
    if missing := ledger.owed - delivered:
        raise Broken(Promise.STRANDED, f"items {sorted(missing)} on {home.id}")
    if gone := {item for item in delivered if same(item) in ledger.acked}:
        raise Broken(Promise.REDELIVERED, f"items {sorted(gone)} on {home.id}")
