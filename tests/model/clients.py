"""Who uses the queue: producers, consumers, and a reaper of those that died."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from tests.levels import LATER
from tests.model.altered import NOW
from tests.model.content import QUEUE, Item, group_of, place_of
from tests.model.membership import PAUSE, Steps
from tests.model.promises import Broken, Promise
from tests.model.rules import Rule
from tests.model.runner import Client
from tests.model.server import content_of
from tests.model.world import Trouble, World
from zkrq.protocol.calls import (
    Declare,
    PushDecided,
    Put,
    Results,
    Seal,
    item_id,
)
from zkrq.protocol.payloads import join
from zkrq.protocol.pushing import Done, InDoubt, Pushes
from zkrq.protocol.records import fresh, in_order, is_alone
from zkrq.protocol.steps import (
    Answers,
    Ask,
    DecisionNeeded,
    Denied,
    Failure,
    NothingDone,
    Operation,
    StepFailed,
    Unknown,
)
from zkrq.protocol.view import ServerId, View, ViewChange, accused, raise_level

BUNDLE_MOST = 4
"""Items in one bundle."""

LEASE_MS = 1
"""Leases end when the schedule says so, not after a time."""


class Producer(Client):
    """Pushes bundles one by one; what may not have been pushed is pushed again: an item alone as before, one of a
    bundle by itself, under its id."""

    PUSHES = 4
    WAITS = 12
    """Steps before each push, at most, where an order is declared meanwhile."""
    UNSENT = 0.2
    """The push of a bundle never leaves the client."""

    def __init__(self, world: World, numbers: Iterable[int]) -> None:
        super().__init__(world)
        self.numbers = numbers
        self.knows_order = False

    def work(self) -> Steps[None]:
        world, ledger = self.world, self.world.ledger
        for number in self.numbers:
            ledger.pushing.add(number)
            put = bundle(number, world.below(BUNDLE_MOST + 1))
            if ledger.clock.ordered:
                put = in_group(number) if ledger.clock.declared else ordered(number)
                for _ in range(world.below(self.WAITS) if ledger.clock.declared else 0):
                    yield PAUSE
                if ledger.is_declared:
                    ledger.push_begins(put.id.encode())
            pushed = yield from self.push(put)
            ledger.pushed |= pushed
            for item in pushed:
                ledger.push_returns(item)
            world.log("pushed", sorted(pushed))
            ledger.pushing.discard(number)

    def push(self, put: Put) -> Steps[set[Item]]:
        """The items of which the push has returned."""
        done = set[Item]()
        # Its form is chosen once: what may have been stored in one is not pushed again in another.
        if self.world.levels and self.view.level >= LATER:
            self.world.ledger.later.add(put.id.encode())
        if self.world.ledger.clock.ordered:
            self.knows_order = not self.world.ledger.clock.declared
            for _ in range(self.PUSHES):
                if not done:
                    push = self.operations.push_plain if not self.knows_order else self.decided
                    done |= yield from self.attempt([put], push)
            return done
        if is_alone(put.record) or not self.world.chance(self.UNSENT):
            done |= yield from self.attempt([put], self.operations.push_plain)
        for _ in range(self.PUSHES - 1):
            missing = [position for position in range(put.size) if put.item_id(position).encode() not in done]
            if not missing:
                break
            if is_alone(put.record):
                done |= yield from self.attempt([put], self.operations.push_plain)
                continue
            some = missing[: 1 + self.world.below(len(missing))]
            done |= yield from self.attempt([put.single(position) for position in some], self.decided)
        return done

    def decided(self, queue: str, puts: Sequence[Put]) -> Operation[Pushes]:
        """Push by a decision of the primary."""
        return self.operations.push_decided(PushDecided(queue, puts, in_order=self.knows_order))

    def attempt(self, puts: list[Put], push: Callable[..., Operation[Pushes]]) -> Steps[set[Item]]:
        try:
            pushes = yield from self.run(push(queue=QUEUE, puts=puts))
        except Failure as failure:
            self.failed(failure)
            yield from self.refresh()
            return set()
        self.check_clocks(pushes)
        return {
            put.item_id(position).encode()
            for at, put in enumerate(puts)
            for position in range(put.size)
            if isinstance(pushes.exceptional.get((at, position)), Done | None)
        }

    def failed(self, failure: Failure) -> None:
        """A try of a push has failed."""
        if isinstance(failure, DecisionNeeded):
            self.knows_order = True
            self.world.ledger.counts["refused for the order"] += 1

    def check_clocks(self, pushes: Pushes) -> None:
        """Servers contradict each other, and the others alone would do: then the one with the wrong clock has to have
        left."""
        links, view = self.world.links, self.view
        contradicted = any(isinstance(each, InDoubt) and not each.cause for each in pushes.exceptional.values())
        self.world.ledger.counts["pushes in doubt"] += contradicted
        if not contradicted or not links or not links.is_askew(links.server):
            return
        if links.server in view.members and len(view.members) > view.min_replicas:
            raise Broken(Promise.IN_DOUBT, f"{pushes.exceptional} in {view}")


class Declarer(Client):
    """Declares that the queue keeps an order, at some moment."""

    WAITS = 6

    def work(self) -> Steps[None]:
        for _ in range(self.world.below(self.WAITS)):
            yield PAUSE
        while not self.world.ledger.is_declared:
            try:
                yield from self.run(
                    self.operations.decide(Declare(QUEUE, "groups", "ordered=1", "", False, "declared"))
                )
            except Failure:
                yield from self.refresh()
            else:
                self.world.ledger.is_declared = True
                self.world.log("declared", "an order")


class Upgrader(Client):
    """Raises the level, at some moment."""

    WAITS = 60

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.speaks = LATER

    def work(self) -> Steps[None]:
        for _ in range(self.world.below(self.WAITS)):
            yield PAUSE
        raised = partial(raise_level, level=LATER, release="later")
        if Rule.LEVEL_RAISES_THE_EPOCH not in self.on:
            raised = partial(_in_this_epoch, raised)
        while (yield from self.refresh()).level < LATER:
            yield from self.change(self.view, raised)
        try:
            yield from self.run(self.operations.tell_all(Seal()))
        except Failure:
            return
        self.world.log("level", LATER)


def _in_this_epoch(change: ViewChange, view: View, /, *, by: str) -> View:
    return replace(change(view, by=by), epoch=view.epoch)


class Cut(Producer):
    """A producer that cannot always use one of the servers."""

    ROUNDS = 8
    DOWN = 0.8
    HANGS = 0.2
    PATIENCE = 200
    """Turns for which it waits until the server is in the view again."""

    def work(self) -> Steps[None]:
        world = self.world
        links = world.links
        assert links
        for number in range(7, 7 + self.ROUNDS):
            for _ in range(self.PATIENCE):
                yield PAUSE
                self.view = world.view
                if links.server in self.view.members:
                    break
            links.down = world.chance(self.DOWN)
            self.numbers = [number]
            yield from super().work()
            if links.trouble in (Trouble.CLOSED, Trouble.ASKEW):
                links.down = False  # else it never comes back, and nobody else can do anything about it

    def ask(self, step: Ask) -> Steps[Answers]:
        """A server that does not answer may answer the next try."""
        answers = yield from super().ask(step)
        links = self.world.links
        assert links
        if links.down and links.trouble is Trouble.SILENT and links.server in step.lives:
            links.down = not self.world.chance(self.HANGS)
        return answers

    def failed(self, failure: Failure) -> None:
        """Every client is kept out, and the others alone would do: then this one has to have evicted the server.  A
        server was silent for a moment: then the next try would have reached it."""
        links = self.world.links
        assert links
        why = failure.__cause__ if isinstance(failure, Unknown) else failure
        error = why.error if isinstance(why, StepFailed) else None
        denied = isinstance(error, Denied)
        if denied and links.is_closed(links.server) and self._could_do_without(links.server):
            raise Broken(Promise.HALTED, f"{failure} in {self.view}")
        if isinstance(error, NothingDone) and not links.down:
            raise Broken(Promise.FAILED_EARLY, f"{failure} in {self.view}")

    def _could_do_without(self, server: ServerId) -> bool:
        witness, view = self.witness, self.view
        others = [id for id in view.members if id != server]
        return (
            view is self.world.view
            and witness.failed_last == {server}
            and server in view.members
            and witness.has_standing(server, NOW)
            and len(others) >= view.min_replicas
        )


class Watcher(Client):
    """Answers accusations and compares clocks, as every client does besides its work."""

    INSPECTS = 0.02

    def work(self) -> Steps[None]:
        world = self.world
        assert world.links
        while not world.links.is_over():
            yield from self.refresh()
            if accused(self.view) and Rule.ACCUSATION_IS_REFUTED in self.on:
                with suppress(Failure):
                    yield from self.run(self.evicting.attend())
            if world.links.trouble is Trouble.ASKEW and world.chance(self.INSPECTS):
                with suppress(Failure):
                    yield from self.run(self.evicting.inspect())


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


class Caller(Client):
    """Asks what became of items, several at a time, and again."""

    ASKS = 8
    MOST = 3
    """Items in one question."""

    def work(self) -> Steps[None]:
        world, ledger = self.world, self.world.ledger
        for _ in range(self.ASKS):
            for _ in range(world.below(40)):
                yield PAUSE
            items = sorted(ledger.pushed)
            if not items:
                continue
            asked = list(dict.fromkeys(items[world.below(len(items))] for _ in range(1 + world.below(self.MOST))))
            yield from self.inquire(asked)

    def inquire(self, asked: list[Item]) -> Steps[None]:
        ledger = self.world.ledger
        pardons, told_before = ledger.pardons, frozenset(ledger.told)
        call = Results(QUEUE, "", [item.decode() for item in asked])
        superseded: Mapping[bytes, Collection[int]] = {}
        try:
            if Rule.RESULT_IS_EVERYWHERE in self.on:
                decided = yield from self.run(self.operations.decide(call))
                reply, superseded = decided.reply, decided.superseded
            else:
                reply = yield from self.run(self.operations.ask_primary(call))
        except Failure:
            self.view = self.world.view
            return
        for item, told in zip(asked, reply.told, strict=True):
            bundle, position = place_of(item)
            self.world.log("told", item, told.letter, told.text)
            if position not in superseded.get(bundle, ()) and pardons == ledger.pardons:
                ledger.tell(item, told.letter, told.text, is_later=item in told_before)


def bundle(number: int, size: int, id: str = "") -> Put:
    """A push of a bundle of ``size`` items; 0: of one item without a bundle."""
    if size == 0:
        id = id or f"{number:02}"
        return Put(id, fresh(0, number), join([content_of(id.encode())]))
    id = id or f"zkrq-{number:02}-0-0"
    contents = [content_of(item_id(id, position).encode()) for position in range(size)]
    return Put(id, fresh(0, number, size=size), join(contents))


def in_group(number: int) -> Put:
    """A push of one item into a group."""
    id = f"{number:02}"
    record = fresh(0, number, group=f"{group_of(id.encode())}")
    return Put(id, record, join([content_of(id.encode())]))


def ordered(number: int) -> Put:
    """A push of one item into an ordered group."""
    put = in_group(number)
    return put._replace(record=in_order(put.record))
