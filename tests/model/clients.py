"""Who uses the queue: producers, consumers, and a reaper of those that died."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from tests.model.membership import PAUSE, Steps
from tests.model.rules import Rule
from tests.model.runner import Client
from tests.model.scripts import QUEUE, Item, Token, owner_of
from tests.model.world import World
from zkrq.protocol.calls import Claim, ClaimReply, Put, Settle
from zkrq.protocol.deciding import Decided
from zkrq.protocol.putting import Done
from zkrq.protocol.records import VERSION_BYTES, fresh
from zkrq.protocol.steps import Failure, NothingDone
from zkrq.protocol.view import accused

LEASE_MS = 1
"""Leases end when the schedule says so, not after a time."""


class Producer(Client):
    """Pushes items one by one; a push that does not return is retried under the same id."""

    PUSHES = 3

    def __init__(self, world: World, items: Iterable[Item]) -> None:
        super().__init__(world)
        self.items = items

    def work(self) -> Steps[None]:
        ledger = self.world.ledger
        for item in self.items:
            ledger.pushing.add(item)
            try:
                if (yield from self.push(item)):
                    ledger.pushed.add(item)
                    self.world.log("pushed", item)
            finally:
                ledger.pushing.discard(item)

    def push(self, item: Item) -> Steps[bool]:
        """Whether the push has returned."""
        put = Put(item.decode(), fresh(0, int(item)), 0, b"payload")
        for _ in range(self.PUSHES):
            try:
                pushes = yield from self.run(self.operations.put(QUEUE, [put]))
            except Failure:
                yield from self.refresh()
                continue
            if isinstance(pushes.exceptional.get(0), Done | None):
                return True
        return False


class Cut(Producer):
    """A producer that does not always reach one of the servers."""

    ROUNDS = 8
    DOWN = 0.8
    PATIENCE = 200
    """Turns for which it waits until the server is in the view again."""

    def work(self) -> Steps[None]:
        world = self.world
        links = world.links
        assert links
        for item in items(7, 6 + self.ROUNDS):
            for _ in range(self.PATIENCE):
                yield PAUSE
                self.view = world.view
                if links.server in self.view.members:
                    break
            links.down = world.chance(self.DOWN)
            self.items = [item]
            yield from super().work()


class Watcher(Client):
    """Answers accusations, as every client does besides its work."""

    def work(self) -> Steps[None]:
        world = self.world
        assert world.links
        while not world.links.is_over():
            yield from self.refresh()
            if accused(self.view) and Rule.ACCUSATION_IS_REFUTED in self.on:
                with suppress(Failure):
                    yield from self.run(self.evicting.attend())


class Consumer(Client):
    """Claims an item at a time, and acks it, nacks it, dies with it, or is paused beyond its lease."""

    CLAIMS = 5
    DIES = 0.12
    ACKS = 0.75
    LATE = 0.3
    """Whoever was paused beyond its lease settles nevertheless."""

    def work(self) -> Steps[None]:
        chance, ledger = self.world.chance, self.world.ledger
        for _ in range(self.CLAIMS):
            token = self.world.token()
            self.tokens.append(token)
            try:
                decided = yield from self.run(self.operations.decide(self.request(token)))
            except Failure:
                yield from self.give_up(token)
                continue
            handed = self.handed(decided)
            if not decided.records:
                yield PAUSE
                if chance(0.3):
                    self.view = self.world.view
            elif decided.superseded or token in ledger.lapsed:
                yield from self.give_up(token)
            else:
                for item, record in handed.items():
                    if token not in ledger.lapsed:
                        yield from self.handle(item, record, token)

    def request(self, token: Token) -> Claim:
        """Every claim request is that of an owner of its own."""
        return Claim(QUEUE, owner_of(token), 1, 1, LEASE_MS, "", 0, "X", 0, 0)

    def handed(self, decided: Decided[ClaimReply]) -> dict[Item, bytes]:
        """The records of the items that the consumer is given."""
        told = zip(decided.records, decided.reply.payloads, strict=True)
        return {id: record for (id, record, _), payload in told if payload is not None}

    def handle(self, item: Item, record: bytes, token: Token) -> Steps[None]:
        world, ledger = self.world, self.world.ledger
        world.log("holds", item, token)
        ledger.hold(item, token)
        for _ in range(world.below(5)):
            yield PAUSE
        if token in ledger.lapsed:
            if not world.chance(self.LATE):
                return
        elif world.chance(self.DIES):
            world.log("dies", item, token)
            yield from self.give_up(token)
            return
        ledger.let_go(item, token)
        yield from self.settle(item, record, token, "ack" if world.chance(self.ACKS) else "nack")

    def settle(self, item: Item, record: bytes, token: Token, verb: str) -> Steps[None]:
        world, ledger = self.world, self.world.ledger
        ledger.settling(item, token, verb)
        how = verb if verb == "ack" else f"{verb} 0 "
        call = Settle(QUEUE, 0, 0, [(item.decode(), record[VERSION_BYTES], token, how)])
        try:
            decided = yield from self.run(self.operations.settle(call))
        except Failure as failure:
            world.log(verb, item, token, str(failure))
            if isinstance(failure, NothingDone):
                ledger.not_settled(item, token)
            return
        (outcome,) = decided.reply.outcomes
        world.log(verb, item, token, "done" if outcome else "refused")
        if outcome:
            ledger.settled_by(item, token, verb)
        else:
            ledger.refused(item, token, verb)

    def give_up(self, token: Token) -> Steps[None]:
        self.world.ledger.lapse(token)
        yield from self.fence(token)


class Reaper(Client):
    """Finds leases that are over, and fences their tokens."""

    FENCES = 4

    def work(self) -> Steps[None]:
        world, ledger = self.world, self.world.ledger
        for _ in range(self.FENCES):
            for _ in range(world.below(40)):
                yield PAUSE
            live = [token for token in ledger.tokens if token not in ledger.lapsed]
            if not live:
                continue
            token = live[world.below(len(live))]
            world.log("lease is over", token)
            ledger.lapse(token)
            for _ in range(world.below(5)):
                yield PAUSE
            self.view = world.view
            yield from self.fence(token)


def items(first: int, last: int) -> list[Item]:
    return [b"%02d" % number for number in range(first, last + 1)]
