"""Who uses the queue: producers, consumers, and a reaper of those that died."""

from __future__ import annotations

from collections.abc import Iterable

from tests.model.operations import PAUSE, TRIES, Client, Outcome, Steps
from tests.model.rules import Rule
from tests.model.server import By, Item, Server, Status, Token
from tests.model.world import World
from zkrq.protocol.view import accused, refute


class Producer(Client):
    def __init__(self, world: World, items: Iterable[Item]) -> None:
        super().__init__(world)
        self.items = items

    def work(self) -> Steps[None]:
        ledger = self.world.ledger
        for item in self.items:
            ledger.pushing.add(item)
            try:
                if (yield from self.put(item)):
                    ledger.pushed.add(item)
                    self.world.log("pushed", item)
            finally:
                ledger.pushing.discard(item)


class Cut(Producer):
    """A producer that does not always reach one of the servers."""

    ROUNDS = 8
    DOWN = 0.8
    PATIENCE = 60
    """Turns for which it waits until the server is in the view again."""

    def work(self) -> Steps[None]:
        world = self.world
        links = world.links
        assert links
        for item in range(6, 6 + self.ROUNDS):
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
            yield PAUSE
            if Rule.ACCUSATION_IS_REFUTED not in self.on:
                continue
            for id in sorted(accused(world.view)):
                self.view = view = world.view
                if id in accused(view):
                    (answer,) = yield [self.request(id, Server.seal)]
                    if answer.status is Status.OK:
                        world.ledger.counts["refutations"] += 1
                        yield from self.swap(view, refute(view, [id], client=self.name))


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
            outcome = yield from self.decide(Server.claim, token)
            if outcome is Outcome.NOTHING:
                yield PAUSE
                if chance(0.3):
                    self.view = self.world.view
            elif outcome is not Outcome.DONE or token in ledger.lapsed:
                yield from self.give_up(token)
            else:
                mine = By("claim", token)
                for item in [item for item, record in self.decided.items() if record.by == mine]:
                    if token not in ledger.lapsed:
                        yield from self.handle(item, token)

    def handle(self, item: Item, token: Token) -> Steps[None]:
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
        verb = "ack" if world.chance(self.ACKS) else "nack"
        ledger.settling(item, token, verb)
        if Rule.PRIMARY_DECIDES in self.on:
            outcome = yield from self.decide(Server.settle, item, token, verb)
        else:
            outcome = yield from self.settle_everywhere(item, token, verb)
        world.log(verb, item, token, outcome)
        if outcome is Outcome.DONE:
            ledger.settled_by(item, token, verb)
        elif outcome is Outcome.REFUSED:
            ledger.refused(item, token, verb)

    def settle_everywhere(self, item: Item, token: Token, verb: str) -> Steps[Outcome]:
        """What a settlement would be if there were no primary."""
        for _ in range(TRIES):
            servers = list(self.receivers)
            answers = yield [self.request(id, Server.settle_alone, item, token, verb) for id in servers]
            if (yield from self.all_well(servers, answers)):
                lost = any(answer.status is Status.LOST for answer in answers)
                return Outcome.REFUSED if lost else Outcome.DONE
        return Outcome.UNKNOWN

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
