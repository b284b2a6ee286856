"""Who makes flows, pushes members into them, and ends them.

There is one flow.  Two clients make it, as a handler does that is delivered twice: each begins it, pushes what follows
and members of its own, and seals it while the other one may push still.  Members come from others, too, at any moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from tests.model.bundle import DEAD, Draft, unpack
from tests.model.consumers import Consumer
from tests.model.content import QUEUE, Item, place_of
from tests.model.membership import PAUSE, Steps
from tests.model.process import Process
from tests.model.promises import Broken, Promise
from tests.model.repair import Repairer
from tests.model.rules import Rule
from tests.model.runner import Client
from tests.model.server import content_of
from tests.model.world import World
from zkrq.protocol.calls import Apply, Call, Cancel, PushDecided, Put, Settle, Steer, SteerReply, item_id
from zkrq.protocol.flows import DONE, FAILED, Kind, Look, Opened, Stage, Tending
from zkrq.protocol.payloads import join
from zkrq.protocol.pushing import Done, FlowOver, Known, Pushes
from zkrq.protocol.records import HELD, MEMBER, Bundle, Opens, State, fresh, held_for, with_fields
from zkrq.protocol.shards import FIRST_VIEW
from zkrq.protocol.steps import Answers, Ask, DecisionNeeded, Failure

HOME, LEG = QUEUE, "leg"
"""The queue on which the flow is begun, and, where there are two, the other one, on servers of its own."""

FLOW = f"{HOME}/f"

INNER = f"{HOME}/g"
"""A flow that is a member of it, and has its members, where flows are nested."""

STANDING = "g"
"""The item that stands for that."""

FOLLOWING = "then"
"""The item that follows the flow."""

UNDOING = "undo"
"""The one that follows it if it has failed, where there are two queues."""

SIZES = (0, 1, 2)
"""Items of a bundle of members; 0: one that is alone."""


def member(number: int, size: int, flow: str = FLOW) -> Put:
    """A push of members."""
    id = f"zkrq-{number:02}-0-0" if size else f"{number:02}"
    contents = [content_of(item_id(id, at).encode()) for at in range(size)] or [content_of(id.encode())]
    return Put(id, with_fields(fresh(0, number, size=size or None), {MEMBER: flow.encode()}), join(contents))


def following(id: str, number: int) -> Put:
    """A push of what follows."""
    field = held_for(FLOW.encode(), Opens.FAILURE if id == UNDOING else Opens.THEN)
    return Put(id, with_fields(fresh(0, number), {HELD: field}), join([content_of(id.encode())]))


def standing(number: int) -> Put:
    """A push of what stands for the inner flow."""
    fields = {MEMBER: FLOW.encode(), HELD: held_for(INNER.encode(), Opens.NESTED)}
    return Put(STANDING, with_fields(fresh(0, number), fields), join([content_of(STANDING.encode())]))


T = TypeVar("T")


class Flowing(Client):
    """A client of the flow."""

    TRIES = 3

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.hands: dict[str, Client] = {HOME: self}
        if world.leg:
            self.hands[LEG] = Hand(world.leg, self)
        self._has_joined = False

    def pause(self, most: int) -> Steps[None]:
        for _ in range(self.world.below(most)):
            yield PAUSE

    def doze(self, step: Ask) -> Steps[None]:
        """Take its time before something is asked in one of the queues."""
        yield from ()

    def ask(self, step: Ask) -> Steps[Answers]:
        yield from self.doze(step)
        return (yield from super().ask(step))

    def tend(self, tending: Tending[T]) -> Steps[T]:
        """Carry out what is about several queues.  Raises ``Failure``."""
        result: Any = None
        try:
            while True:
                queue, operation, flow = tending.send(result)
                result = yield from self.hands[queue].run(operation)
                if isinstance(result, Opened):
                    self.world.ledger.flow.counts["opened"] += result.items
                elif isinstance(result, SteerReply) and flow == FLOW:
                    self.told(Stage(result.now.decode()), result.outcome)
        except StopIteration as stop:
            return stop.value
        finally:
            tending.close()

    def steer(self, verb: str, flow: str = FLOW) -> Steps[Stage]:
        """How far a flow is then; unknown where that cannot be said."""
        outer = FLOW if flow == INNER else ""
        for _ in range(self.TRIES):
            try:
                reply = yield from self.run(self.operations.steer(HOME, flow, verb, keep_ms=1000, outer=outer))
            except Failure:
                yield from self.refresh()
            else:
                stage = Stage(reply.now.decode())
                return self.told(stage, reply.outcome) if flow == FLOW else stage
        return Stage.UNKNOWN

    def join(self) -> Steps[bool]:
        """Make the other queue a leg; whether it is one."""
        for _ in range(0 if self._has_joined else self.TRIES):
            try:
                look = yield from self.tend(self.operations.join_leg(LEG, FLOW))
            except Failure:
                yield from self._refresh_all()
            else:
                self.told(look.stage, look.outcome)
                self._has_joined = look.stage.takes_members
                break
        return self._has_joined

    def _refresh_all(self) -> Steps[None]:
        for hand in self.hands.values():
            yield from hand.refresh()

    def told(self, stage: Stage, outcome: bytes) -> Stage:
        if stage is Stage.ENDED:
            self.world.ledger.flow.tell(outcome)
            self.check_nothing_is_left()
        return stage

    def check_nothing_is_left(self) -> None:
        """Raise ``Broken`` if a server in sync knows of a member that was not acked, of a flow that is done."""
        flow = self.world.ledger.flow
        if flow.outcome not in (DONE, FAILED) or not flow.is_judged:
            return
        # A redrive after a failure says so, and is delivered.
        redriven = {place_of(item)[0] for item in self.world.ledger.redriven if flow.outcome == FAILED}
        worlds = [hand.world for hand in self.hands.values()]
        for server in [each.servers[id] for each in worlds for id in each.view.members if each.in_sync(id)]:
            id, records = server.id, server.records
            living = [each for each, record in records.items() if is_living(record) and flow.counts_for(each)]
            if living := [each for each in living if each not in redriven]:
                raise Broken(Promise.FLOW_EARLY, f"{living} on {id} after the end")
            missed = [each for each, record in records.items() if is_missed(each, record) and flow.counts_for(each)]
            if flow.outcome == DONE and missed:
                raise Broken(Promise.FLOW_TOLD_OTHERWISE, f"done, though {missed} on {id} ended otherwise")

    def push(self, put: Put, *, decided: bool, queue: str = HOME) -> Steps[bool]:
        """Push until that returns; whether it has."""
        flow, number, hand = self.world.ledger.flow, unpack(put.record).pushed_at_ms, self.hands[queue]
        if queue == LEG and not (yield from self.join()):
            return False
        self.world.ledger.pushing.add(number)
        try:
            for _ in range(self.TRIES):
                try:
                    pushes = yield from hand.run(
                        self.operations.push_decided(PushDecided(QUEUE, self._singles(put), in_order=True))
                        if decided
                        else self.operations.push_plain(QUEUE, [put])
                    )
                except DecisionNeeded:
                    flow.counts["members decided"] += 1
                    decided = True
                    continue
                except Failure:
                    yield from hand.refresh()
                    decided = decided or not self._is_alone(put)
                    continue
                if queue == LEG and decided and not (yield from self._confirm(put)):
                    return False
                if self._note(put, pushes, decided=decided, register=hand.world.register):
                    return True
                decided = True
            return False
        finally:
            self.world.ledger.pushing.discard(number)

    def member(self, number: int) -> Put:
        """A push of members: of the inner flow, where flows are nested."""
        return member(number, SIZES[self.world.below(len(SIZES))], INNER if self.world.is_nested else FLOW)

    def place(self) -> str:
        """Where a member is pushed."""
        return LEG if self.world.leg and self.world.chance(0.5) else HOME

    def _is_alone(self, put: Put) -> bool:
        return unpack(put.record).is_alone

    def _singles(self, put: Put) -> list[Put]:
        return [put] if self._is_alone(put) else [put.single(at) for at in range(put.size)]

    def _confirm(self, put: Put) -> Steps[bool]:
        """Have home know that members have come to life in the leg; whether the flow runs.  Otherwise they go."""
        stage = yield from self.steer("live")
        if stage.takes_members:
            return True
        if stage is not Stage.UNKNOWN:
            ids = [put.item_id(at) for at in range(put.size)]
            for id in ids:
                self.world.ledger.may_be_removed(id.encode())
            queued = State.QUEUED.value
            with suppress(Failure):
                yield from self.hands[LEG].run(
                    self.operations.decide(Cancel(QUEUE, queued, 0, self.world.nonce(), ids))
                )
        return False

    def _note(self, put: Put, pushes: Pushes, *, decided: bool, register: str) -> bool:
        """Note which members are pushed; whether nothing is left to do."""
        ledger = self.world.ledger
        is_over = True
        for at in range(put.size):
            one = pushes.exceptional.get((at, 0) if decided and not self._is_alone(put) else (0, at))
            if isinstance(one, FlowOver):
                ledger.counts["flow is over"] += 1
            elif isinstance(one, Done | Known | None):
                item = put.item_id(at).encode()
                if put.id == STANDING:
                    ledger.flow.stands = True
                    continue
                ledger.push_returned(item, register)
                if unpack(put.record).fields.get(MEMBER):
                    ledger.flow.returned.add(item)
                is_either = ledger.flow.is_undone and item in (FOLLOWING.encode(), UNDOING.encode())
                if is_either or ledger.flow.is_cut_short:
                    ledger.may_be_removed(item)
            else:
                is_over = False
        return is_over


def half_done(steps: Steps[Any], kind: type[Call[Any]]) -> Steps[bool]:
    """Go on until a call of this kind was answered, for the first time, and no further; whether one was."""
    answers: Any = None
    with suppress(StopIteration):
        while True:
            requests = steps.send(answers)
            answers = yield requests
            if any(isinstance(request.call, kind) for request in requests):
                steps.close()
                return True
    return False


class Hand(Client):
    """What a client of the flow does in the other queue."""

    def __init__(self, world: World, owner: Flowing) -> None:
        super().__init__(world)
        self.operations = owner.operations
        self._owner = owner

    def ask(self, step: Ask) -> Steps[Answers]:
        yield from self._owner.doze(step)
        return (yield from super().ask(step))


class Maker(Flowing):
    """Begins the flow, pushes what follows and members, and seals it."""

    BEGINS = 10
    SEALS = 4
    DIES_IN_THE_SEAL = 0.3
    CANCELS_INNER = 0.15

    def __init__(self, world: World, numbers: Iterable[int]) -> None:
        super().__init__(world)
        self.numbers = list(numbers)

    def work(self) -> Steps[None]:
        world, ledger = self.world, self.world.ledger
        yield from self.pause(self.BEGINS)
        if (yield from self.steer("begin")) not in (Stage.OPEN, Stage.SEALED):
            return
        following_number, *numbers = self.numbers
        ledger.flow.follows = ledger.flow.follows or Rule.OPENING_MOVES_THE_STATE not in self.on
        if Rule.OPENING_MOVES_THE_STATE in self.on:
            # Both makers push it: to one place.
            queue = LEG if world.leg and ledger.flow.is_followed_in_leg else HOME
            yield from self.push(following(FOLLOWING, following_number), decided=True, queue=queue)
            if ledger.flow.is_undone:
                yield from self.push(following(UNDOING, following_number), decided=True, queue=HOME)
            ledger.flow.follows = FOLLOWING.encode() in ledger.pushed
        if not world.is_nested:
            yield from self.push_members(numbers)
        elif (yield from self.steer("begin", INNER)).takes_members:
            yield from self.nest(numbers)
        if world.chance(self.DIES_IN_THE_SEAL):
            yield from half_done(self.steer("seal"), Steer)
            ledger.flow.counts["sealed"] += 1
        elif (yield from self.steer("seal")) is Stage.SEALED:
            ledger.flow.counts["sealed"] += 1

    def push_members(self, numbers: Iterable[int]) -> Steps[None]:
        for number in numbers:
            put = self.member(number)
            yield from self.push(put, decided=False, queue=self.place())
            yield from self.pause(self.SEALS)

    def cancel_inner(self) -> Steps[None]:
        """Its claimed members run on beside what follows the outer flow, as those of any flow that is cancelled."""
        self.world.ledger.flow.is_cut_short, self.world.ledger.flow.is_judged = True, False
        for item in self.world.ledger.flow.returned:
            self.world.ledger.may_be_removed(item)
        yield from self.steer("cancel", INNER)

    def nest(self, numbers: Iterable[int]) -> Steps[None]:
        """Push what stands for the inner flow, then its members; and seal it."""
        if self.world.chance(self.CANCELS_INNER):  # while the other one makes it
            yield from self.pause(self.BEGINS)
            yield from self.cancel_inner()
            return
        put = standing(self.numbers[0])
        is_first = Rule.NESTED_IS_FIRST in self.on
        if is_first:
            yield from self.push(put, decided=True)
        if is_first and not self.world.ledger.flow.stands:
            yield from self.cancel_inner()
            return
        yield from self.push_members(numbers)
        if not is_first:
            yield from self.push(put, decided=True)
        if not self.world.chance(self.DIES_IN_THE_SEAL):
            yield from self.steer("seal", INNER)
            self.world.ledger.flow.counts["sealed inner flow"] += 1


class Adder(Flowing):
    """Pushes members at any moment, mostly while somebody is about to end the flow."""

    WAITS = 1_000

    def __init__(self, world: World, numbers: Iterable[int]) -> None:
        super().__init__(world)
        self.numbers = list(numbers)

    def work(self) -> Steps[None]:
        flow = self.world.ledger.flow
        for number in self.numbers:
            for _ in range(self.world.below(self.WAITS)):
                yield PAUSE
                if flow.is_ending:
                    break
            if self.world.is_nested and Rule.NESTED_IS_FIRST in self.on and not flow.stands:
                continue  # it pushes what members do: there are none
            decided = self.world.chance(0.5)
            put = self.member(number)
            yield from self.push(put, decided=decided, queue=self.place())


class Working(Consumer):
    """A consumer that comes again and again, and mostly acks."""

    CLAIMS = 2
    COMES = 5
    """How often it comes once the flow has ended, and at most."""
    COMES_MOST = 14
    RESTS = 30
    VERBS = ("ack",) * 30 + ("nack", "bury", "release", "extend")

    DIES_IN_AN_ACK = 0.25

    def handle(self) -> Steps[None]:
        """Settle; or die when the primary has answered, before the other servers are told."""
        if not self.world.chance(self.DIES_IN_AN_ACK):
            yield from super().handle()
            return
        if (yield from half_done(self.settle(self.part(), self.operations), Settle)):
            for token in self.tokens:  # until somebody finds out, nobody fences it
                self.world.ledger.lapse(token)
            self.tokens.clear()
            self.process = Process(self.world)

    def work(self) -> Steps[None]:
        left = self.COMES
        for _ in range(self.COMES_MOST):
            left -= bool(self.world.ledger.flow.outcome)
            if left < 0:
                return
            self.process, self.left = Process(self.world), self.CLAIMS
            yield from super().work()
            for _ in range(self.world.below(self.RESTS)):
                yield PAUSE


class Slow(Repairer):
    """Brings servers back, and takes its time between reading a page and writing it."""

    DOZES = 0.3
    DOZE = 150

    def ask(self, step: Ask) -> Steps[Answers]:
        if isinstance(step.call, Apply) and self.world.chance(self.DOZES):
            for _ in range(self.world.below(self.DOZE)):
                yield PAUSE
        return (yield from super().ask(step))


class FlowCanceller(Flowing):
    """Cancels the flow, or removes a member, now and then."""

    WAITS = 200
    CANCELS_ALL = 0.15
    WATCHES = 400
    """Turns for which it waits until somebody is about to end the flow."""
    CANCELS = 0.3

    def work(self) -> Steps[None]:
        world, flow = self.world, self.world.ledger.flow
        yield from self.pause(self.WAITS)
        if world.chance(self.CANCELS_ALL):
            for _ in range(self.WATCHES):
                if flow.is_ending:
                    break
                yield PAUSE
            for item in (FOLLOWING.encode(), UNDOING.encode(), *flow.returned):
                world.ledger.may_be_removed(item)
            flow.is_cut_short = True
            yield from self.steer("fail" if (world.leg or world.is_nested) and world.chance(0.5) else "cancel")
            return
        items = sorted(item for item in flow.returned if world.ledger.placed.get(item, FIRST_VIEW) == FIRST_VIEW)
        if items and world.chance(self.CANCELS):
            item = items[world.below(len(items))]
            world.ledger.may_be_removed(item)
            with suppress(Failure):
                yield from self.run(
                    self.operations.decide(Cancel(QUEUE, State.QUEUED.value, 0, world.nonce(), [item.decode()]))
                )
                flow.counts["cancelled"] += 1


class Ender(Flowing):
    """Looks whether the flow is due, ends it, and opens what is held."""

    LOOKS = 40
    MORE = 4
    """Looks once it has ended."""
    WAITS = 16
    DOZES: Mapping[str, float] = {"look": 0.2, "end": 0.5}
    DOZE = 120

    def work(self) -> Steps[None]:
        more = self.MORE
        for _ in range(self.LOOKS if Rule.LOOKS_END_WHAT_IS_DUE in self.on else 0):
            more -= bool(self.world.ledger.flow.outcome)
            if more < 0:
                return
            yield from self.pause(self.WAITS)
            for hand in self.hands.values():
                hand.view = hand.world.view
            with suppress(Failure):
                yield from self.end()

    def end(self) -> Steps[Look]:
        """Raises ``Failure``."""
        found = self.place() if Rule.ENDED_STAYS_DUE in self.on else HOME
        if self.world.is_nested:
            yield from self.tend(self.operations.tend_flow(HOME, INNER))
        look = yield from self.tend(self.operations.tend_flow(found, FLOW))
        self.told(look.stage, look.outcome)
        if look.stage is Stage.ENDED and look.outcome == DONE and Rule.OPENING_MOVES_THE_STATE not in self.on:
            number = 90 + self.world.below(9)
            yield from self.push(_plain(f"{FOLLOWING}{self.name}", number), decided=True)
        return look

    def doze(self, step: Ask) -> Steps[None]:
        """Take its time before it looks, or has the end decided: then others push and claim."""
        flow = self.world.ledger.flow
        flow.is_ending = False
        if isinstance(step.call, Steer) and self.world.chance(self.DOZES.get(step.call.verb, 0)):
            flow.is_ending = True
            yield from self.pause(self.DOZE)


def _plain(id: str, number: int) -> Put:
    return Put(id, fresh(0, number), join([content_of(id.encode())]))


class LastEnder(Ender):
    """Ends the flow when nothing fails any more: everything is claimed and acked first."""

    DOZES: Mapping[str, float] = {}

    ROUNDS = 4

    def place(self) -> str:
        return HOME

    def work(self) -> Steps[None]:
        if Rule.LOOKS_END_WHAT_IS_DUE not in self.on:
            return
        if self.world.is_nested:
            yield from self.steer("seal", INNER)
        look = yield from self.end()
        if look.stage is Stage.OPEN:
            yield from self.steer("seal")
            look = yield from self.end()
        while look.released:
            look = yield from self.end()
        if self.world.leg and Rule.ENDED_STAYS_DUE in self.on:
            yield from self.tend(self.operations.tend_flow(LEG, FLOW))
        if self.world.is_nested:
            inner = yield from self._read_inner()
            if inner.stage is Stage.SEALED and Kind.LIVING not in inner.kinds:
                self.world.ledger.flow.is_judged = False
                yield from self.steer("finish", INNER)
                look = yield from self.end()
        if look.stage is Stage.SEALED and Kind.LIVING not in look.kinds:
            self.world.ledger.flow.is_judged = False  # an operator says that it is done
            for item in self.world.ledger.flow.waits:
                self.world.ledger.may_be_removed(item)
            yield from self.steer("finish")
            yield from self.end()

    def _read_inner(self) -> Steps[Look]:
        return (yield from self.tend(self.operations.tend_flow(HOME, INNER)))


def is_living(record: Bundle) -> bool:
    """Tell whether members of the flow are queued or claimed."""
    return bool(record.fields.get(MEMBER)) and any(state in "QRC" for state in record.states)


def is_missed(id: Item, record: Bundle) -> bool:
    """Tell whether members of the flow are dead letters, or were removed otherwise than by an ack."""
    draft = Draft(id, record)
    return bool(draft.flow) and (DEAD in draft.states or any(map(draft.is_missed, range(draft.size))))
