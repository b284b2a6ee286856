"""Who claims items and settles them: processes in which the library's core decides what to claim, and for whom."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, TypeVar

from tests.model.altered import AlteredOperations
from tests.model.content import QUEUE, Item, Token, handed, owner_of
from tests.model.membership import PAUSE, Steps
from tests.model.process import Held, Lease, Process
from tests.model.promises import Broken, Promise
from tests.model.runner import Client
from tests.model.server import Request, content_of
from tests.model.world import World
from zkrq.consuming.core import lease as leases
from zkrq.consuming.core.lease import HOLDING
from zkrq.consuming.core.supply import Order
from zkrq.protocol.calls import (
    CLAIMED,
    Claim,
    ClaimReply,
    Redrive,
    Settle,
    Settlement,
    Turn,
    TurnReply,
    read_saved,
    runs,
)
from zkrq.protocol.deciding import Decided
from zkrq.protocol.records import VERSION_BYTES, token_of
from zkrq.protocol.steps import Failure, Fenced, NothingDone, Operation

T = TypeVar("T")

LEASE_MS = 1
"""Leases end when the schedule says so, not after a time."""

GOES_ON = ("extend", "save")
"""Verbs after which the consumer still has the claim."""

Part = list[tuple[Held, str]]
"""Claims, and how each is settled."""

Together = dict[tuple[Item, bytes, Token, str], list[int]]
"""Positions of the items that are settled together: by bundle, version, claim request, verb."""


class Consumer(Client):
    """A process whose consumers claim some items at a time, and settle them in parts, each item in its own way; or it
    dies with them, or is paused beyond its lease.  Where it takes turns, it may claim while it settles."""

    CLAIMS = 6
    """Claim requests."""
    IDLE = 1
    """Turns after a claim of nothing."""
    LOOKS = 0.3
    """How often it looks at the view then."""
    DIES = 0.05
    GIVES_UP = 0.3
    """How often it dies after a request that has failed."""
    VERBS = ("ack",) * 12 + ("nack", "nack", "bury", "release", "extend")
    HEARS = 0.5
    """How often it hears that its session is over, each time; until then it settles what it has nevertheless."""
    SAVES = 0.6
    """How often a consumer saves what it has done, where it does, before it settles the item."""
    REDRIVES = 0.5
    TURNS = 0.9
    HANDLES = 0.5
    """How often the settling of what it has comes before the next claim; nearly always where that can take the claim
    along."""
    WAITS_FOR_WHAT_RETURNS = 0.9
    AT_THE_SAME_TIME = 0.3
    """How often something is settled while a claim is in flight."""
    HAPPENS = 0.3
    """How often something happens in the process while a call is in flight, for each of its steps."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.process = Process(world)
        self.left = self.CLAIMS
        """Claim requests that it will make still."""
        self._beside = AlteredOperations(world.on)
        """For settlements that are sent while a claim is in flight."""

    def work(self) -> Steps[None]:
        while self.left > 0 or self.process.taken:
            self.process.happen(come=self.left > 0)
            yield from self.go_on()
        if self.process.is_open:  # nobody will ever ask for what that request may have claimed
            yield from self.give_up()
        self.process.close()
        yield from self.hand_back()
        yield from self.end_sessions()

    def go_on(self) -> Steps[None]:
        """Do one thing."""
        process, chance = self.process, self.world.chance
        if any(map(process.is_over, self.tokens)) and chance(self.HEARS):
            yield from self.end_sessions()
        if process.returning and chance(self.WAITS_FOR_WHAT_RETURNS):
            yield from self.hand_back()
        elif process.taken and chance(self.TURNS if self.world.turns else self.HANDLES):
            yield from self.handle()
        elif self.left > 0 and process.is_due:
            if order := process.order():
                yield from self.claim(order)
        else:
            yield PAUSE

    # -- sessions ----------------------------------------------------------------------------------------------------

    def end_sessions(self) -> Steps[None]:
        """Hear that sessions are over, and fence their owners."""
        self.process.lose()
        over = [token for token in self.tokens if self.process.is_over(token)]
        self.tokens = [token for token in self.tokens if token not in over]
        for token in {owner_of(token): token for token in over}.values():
            yield from self.fence(token)

    def give_up(self) -> Steps[None]:
        """Die, and begin anew as another process."""
        for token in self.tokens:
            self.world.ledger.lapse(token)
        self.process = Process(self.world)
        yield from self.end_sessions()

    # -- claiming ----------------------------------------------------------------------------------------------------

    def claim(self, order: Order) -> Steps[None]:
        """Make the claim request of an order; now and then something is settled meanwhile."""
        process, chance = self.process, self.world.chance
        if process.returning and chance(self.WAITS_FOR_WHAT_RETURNS):
            yield from self.hand_back()
        claiming = self._claim(order)
        if process.taken and chance(self.AT_THE_SAME_TIME):
            yield from at_the_same_time(claiming, self.settle(self.part(), self._beside))
        else:
            yield from claiming

    def _claim(self, order: Order) -> Steps[None]:
        token = self.next_token()
        try:
            decided = yield from self._meanwhile(self.operations.decide(self.request(order, token)))
        except Failure as failure:
            yield from self.not_answered(token, failure)
        else:
            yield from self.answered(order, token, decided)

    def next_token(self) -> Token:
        self.left -= 1
        self.world.ledger.counts["requests made again"] += self.process.is_open
        token = self.process.next_token()
        if token not in self.tokens:
            self.tokens.append(token)
        return token

    def request(self, order: Order, token: Token) -> Claim:
        owner, _, seq = token.rpartition("/")
        return Claim(QUEUE, owner, int(seq), order.wanted, LEASE_MS, "", 0, "X", 0, 0)

    def answered(self, order: Order, token: Token, decided: Decided[ClaimReply] | Decided[TurnReply]) -> Steps[None]:
        claims = self.handed(decided, token)
        if self.process.is_over(token):
            self.process.refuse()
            return
        self.process.answer(claims, is_short=len(list(handed(decided.reply))) < order.wanted)
        if not decided.records:
            for _ in range(self.IDLE):
                yield PAUSE
            if self.world.chance(self.LOOKS):
                yield from self.look()

    def not_answered(self, token: Token, failure: Failure) -> Steps[None]:
        """Go on after a request that was refused, or has failed."""
        if isinstance(failure, Fenced):
            self.world.ledger.lapse(token)
            self.process.refuse()
            return
        self.process.fail(failure)
        if self.world.chance(self.GIVES_UP):
            yield from self.give_up()
        else:
            yield from self.look()

    def look(self) -> Steps[None]:
        """Read the view, unless the shard was removed."""
        with suppress(NothingDone):
            yield from self._alone(self.refresh())

    def handed(self, decided: Decided[ClaimReply] | Decided[TurnReply], token: Token) -> list[Held]:
        """The claims that the process is given."""
        held: list[Held] = []
        records = dict(decided.records)
        saved = {id: read_saved(notes) for id, _, notes in decided.records.with_notes() if notes}
        for item, id, position, payload in handed(decided.reply):
            if position in decided.superseded.get(id, ()):
                self.world.ledger.withheld(item, token)
                continue
            if payload != content_of(item):
                raise Broken(Promise.LOST, f"{item!r} is handed out as {payload!r}")
            lease, record = Lease(self.process, token), records[id]
            held.append(Held(lease, item, id, position, record[VERSION_BYTES], token_of(record)))
            held[-1].saved = saved.get(id, {}).get(position, b"")
        return held

    # -- settling ----------------------------------------------------------------------------------------------------

    def handle(self) -> Steps[None]:
        """Settle some of what consumers have, in a turn if the core has a request for it; or die with it."""
        process, world = self.process, self.world
        for _ in range(world.below(5)):
            yield PAUSE
        if world.chance(self.DIES):
            world.log("dies", [claim.item for claim in process.taken])
            yield from self.give_up()
            return
        part = self.part()
        may_turn = world.turns and self.left > 0 and all(verb not in GOES_ON for _, verb in part)
        if may_turn and world.chance(self.TURNS) and (order := process.join(len(part))):
            yield from self.take_turn(part, order)
        else:
            yield from self.settle(part, self.operations)

    def part(self) -> Part:
        """Take some of what consumers have, to settle it."""
        world, taken = self.world, self.process.taken
        claims = [taken.pop(world.below(len(taken))) for _ in range(1 + world.below(len(taken)))]
        saves = self.SAVES if world.ledger.saves else 0.0
        return [
            (claim, "save" if saves and world.chance(saves) else self.VERBS[world.below(len(self.VERBS))])
            for claim in claims
        ]

    def hand_back(self) -> Steps[None]:
        """Release what no consumer has seen."""
        claims, self.process.returning = self.process.returning, []
        if part := [(claim, "release") for claim in claims if claim.state in HOLDING]:
            self.world.ledger.counts["handed back"] += len(part)
            yield from self.settle(part, self.operations)

    def settle(self, part: Part, operations: AlteredOperations) -> Steps[None]:
        together = self.settling(part)
        call = Settle(QUEUE, 0, 0, settlements(together, keeps_results=self.world.ledger.keeps_results))
        try:
            decided = yield from self._meanwhile(operations.settle(call))
        except Failure as failure:
            self.failed(part, failure)
        else:
            self.settled(part, together, decided.reply.lost)
            yield from self.redrive([claim.item for claim, verb in part if verb == "bury"], operations)

    def take_turn(self, part: Part, order: Order) -> Steps[None]:
        """Settle, and claim in the same decision: each part has a verdict of its own."""
        token, together = self.next_token(), self.settling(part)
        named = settlements(together, keeps_results=self.world.ledger.keeps_results)
        try:
            decided = yield from self._meanwhile(self.operations.decide(Turn.of(self.request(order, token), named)))
        except Failure as failure:
            self.process.take_over()
            self.failed(part, failure)
            yield from self.not_answered(token, failure)
            return
        self.process.take_over()
        reply = decided.reply
        self.world.ledger.counts["turns"] += 1
        self.settled(part, together, reply.lost, {item for item, *_ in handed(reply)})
        if reply.verdict == CLAIMED:
            yield from self.answered(order, token, decided)
        else:
            yield from self.not_answered(token, Fenced())

    def settling(self, part: Part) -> Together:
        """Let go of what is settled, and put together what one settlement names."""
        ledger = self.world.ledger
        together: Together = {}
        for claim, verb in part:
            if verb == "save":
                claim.saves += 1
                claim.state_sent = b" ".join((claim.saved, self.world.nonce().encode())).strip()
            if verb not in GOES_ON:
                claim.tell(leases.SETTLE)
                ledger.let_go(claim.item, claim.token)
            ledger.settling(claim.item, claim.token, verb)
            named = (claim.bundle, claim.version, claim.token, _named(claim, verb))
            together.setdefault(named, []).append(claim.position)
        return together

    def failed(self, part: Part, failure: Failure) -> None:
        """Note that a settlement has failed: it may have happened, unless the failure says that nothing has."""
        self.world.log([(verb, claim.item, claim.token) for claim, verb in part], str(failure))
        for claim, verb in part:
            if isinstance(failure, NothingDone | Fenced):
                self.world.ledger.not_settled(claim.item, claim.token)
            if verb in GOES_ON:
                self.process.taken.append(claim)
            else:
                claim.tell(leases.FAIL)

    def settled(self, part: Part, together: Together, lost: Sequence[bytes], given: Collection[Item] = ()) -> None:
        """Note the answer to a settlement, item by item.  ``given``: items that the same answer hands out."""
        world, ledger = self.world, self.world.ledger
        lost_of = dict(zip(together, lost, strict=True))
        for claim, verb in part:
            refused = claim.position in lost_of[claim.bundle, claim.version, claim.token, _named(claim, verb)]
            world.log(verb, claim.item, claim.token, "refused" if refused else "done")
            if refused:
                ledger.refused(claim.item, claim.token, verb, is_handed=claim.item in given)
            else:
                ledger.settled_by(claim.item, claim.token, verb)
            if verb == "save" and not refused:
                claim.saved = claim.state_sent
                ledger.save_returned(claim.item, claim.token, claim.saved)
            if verb not in GOES_ON:
                claim.tell(leases.REFUSE if refused else leases.ANSWER)
            elif not refused:
                self.process.taken.append(claim)

    def redrive(self, dead: list[Item], operations: AlteredOperations) -> Steps[None]:
        if not dead or not self.world.chance(self.REDRIVES):
            return
        self.world.ledger.redriven.update(dead)
        call = Redrive(QUEUE, 0, 0, self.world.nonce(), [item.decode() for item in dead])
        with suppress(Failure):
            yield from self.run(operations.decide(call))

    def _meanwhile(self, operation: Operation[T]) -> Steps[T]:
        """Carry an operation out; between its steps something may happen in the process.  Raises a ``Failure``."""
        steps = self.run(operation)
        answers: Any = None
        while True:
            try:
                requests = steps.send(answers)
            except StopIteration as stop:
                return stop.value
            answers = yield requests
            if self.world.chance(self.HAPPENS):
                self.process.happen(come=self.left > 0)


def at_the_same_time(*each: Steps[None]) -> Steps[None]:
    """Carry these out side by side: their requests are on their way together, and each goes on with its answers."""
    running: dict[Steps[None], Any] = dict.fromkeys(each)
    while running:
        asked: dict[Steps[None], Sequence[Request]] = {}
        for steps, answers in running.items():
            with suppress(StopIteration):
                asked[steps] = steps.send(answers)
        if not asked:
            return
        answers = iter((yield [request for requests in asked.values() for request in requests]) or ())
        running = {steps: list(islice(answers, len(requests))) or None for steps, requests in asked.items()}


def _named(claim: Held, verb: str) -> str:
    """Return what tells the verb from others: of a save also its number and the state."""
    return verb if verb != "save" else f"save 0 {claim.saves} 0 {claim.state_sent.decode()}"


def settlements(together: Together, *, keeps_results: bool) -> list[Settlement]:
    """Name settlements as calls do.  ``keeps_results``: an ack leaves the token."""
    return [
        (id.decode(), runs(positions), version, token, _how(verb, token, keeps_results=keeps_results))
        for (id, version, token, verb), positions in together.items()
    ]


def _how(verb: str, token: Token, *, keeps_results: bool) -> str | bytes:
    if verb == "ack":
        return b"ack 1000 %b" % token.encode() if keeps_results else "ack"
    if verb.startswith("save"):
        return verb.encode()
    return f"{verb} 0 "
