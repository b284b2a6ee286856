"""The library's own operations, in which each rule that is theirs can be switched off by one small piece.

With all rules in force every piece below is the library's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from typing import Any, Final, TypeVar

from tests.model.content import QUEUE
from tests.model.deciding import SettleAlone
from tests.model.rules import Rule, Rules
from tests.model.world import World
from zkrq.protocol.calls import (
    Apply,
    Call,
    Claim,
    Copied,
    Decision,
    Put,
    Records,
    Seal,
    Settle,
    SettleReply,
    Steer,
    SteerReply,
    Turn,
)
from zkrq.protocol.catchup import CatchUp
from zkrq.protocol.copying import Moments, QueueCopy
from zkrq.protocol.deciding import Decided, Deciding, SoFar
from zkrq.protocol.eviction import Evicting
from zkrq.protocol.flows import Asked, Kind, Look, Opened, Stage, Tending, home_of
from zkrq.protocol.operations import Operations
from zkrq.protocol.pushing import Pushes
from zkrq.protocol.records import Bundle, unpack
from zkrq.protocol.recovery import Recovery
from zkrq.protocol.replies import Answer, Status
from zkrq.protocol.scrubbing import Finding, Scrub
from zkrq.protocol.server_info import ServerInfo
from zkrq.protocol.steps import Answers, Ask, CheckTime, Effort, Failure, Identify, Operation, Place, Unknown
from zkrq.protocol.view import Judgement, Life, ServerId, View, ViewChange, accused, dismiss
from zkrq.protocol.witness import Witness

R = TypeVar("R")


NOW = 0.0
"""Seconds that a client's monotonic clock always shows: what a grace allows is said by the world."""


class AlteredEvicting(Evicting):
    """Eviction and accusation."""

    def __init__(self, witness: AlteredWitness) -> None:
        self._on = witness.world.on
        super().__init__(witness, patience=math.inf if Rule.CONTRADICTED_RETRIES in self._on else 0.0)

    def probe(self, view: View, unasked: Set[ServerId]) -> Operation[Answers]:
        if Rule.SURVIVORS_ANSWER not in self._on:
            return {}
        return (yield from super().probe(view, unasked))

    def find_askew(
        self, view: View, failed: Answers, found: Mapping[ServerId, ServerInfo | Answer]
    ) -> Operation[Answers]:
        if Rule.WRONG_CLOCK_LEAVES not in self._on:
            return {}
        return (yield from super().find_askew(view, failed, found))


class AlteredWitness(Witness):
    """Every grace is over when the world says so.  Where all links are whole, silence is a server's own."""

    def __init__(self, client: str, world: World) -> None:
        super().__init__(client)
        self.world: Final = world
        self.let_in_others = set[ServerId]()
        """Servers that kept out only this client when it decided to evict them."""
        self.failed_last = set[ServerId]()
        """Servers that failed this client together at the last eviction that it thought of."""

    def judge(self, view: View, server: ServerId, now: float, *, kept_out: bool, crowded: bool) -> Judgement:
        on, links = self.world.on, self.world.links
        if not links or (Rule.SILENCE_NEEDS_STANDING not in on and not kept_out):
            return Judgement.EVICT
        if kept_out and Rule.DENIAL_IS_ACCUSED not in on:
            return Judgement.CONTRADICTED
        if kept_out and Rule.DENIAL_NEEDS_OTHERS not in on:
            self.let_in_others |= {server} if self.world.is_reached(server) else set()
            return Judgement.EVICT
        heard = self.world.is_reached(server) and Rule.ACCUSATION_IS_REFUTED in on
        over = (server in accused(view) and not heard) or links.is_closed(server)
        return super().judge(view, server, math.inf if over else now, kept_out=kept_out, crowded=crowded)

    def note_failed(self, servers: Iterable[ServerId], now: float) -> float:
        self.failed_last = set(servers)
        # Without some of the rules a client fails servers that its view does not have.
        if known := self.failed_last & self.lives.keys():
            super().note_failed(known, now)
        return -math.inf

    def note_evicted(self, lives: Mapping[ServerId, Life], now: float) -> None:
        if Rule.EVICTING_COSTS_STANDING in self.world.on:
            super().note_evicted(lives, now)
        for id, life in lives.items():
            self.world.note_evicted(self.client, id, life, let_in_others=id in self.let_in_others)


class Altered(Deciding):
    """What pushes, decisions and scrubs have in common.  Carries out one operation at a time."""

    def __init__(self, on: Rules) -> None:
        self.on = on
        self._decided: Answer | None = None
        self._records = Records()

    def receivers(self, view: View) -> Mapping[ServerId, Life]:
        return super().receivers(view) if Rule.LEARNERS_GET_EVERY_WRITE in self.on else view.members

    def is_placed(self, view: View, map_number: int) -> bool:
        return Rule.PUSH_NAMES_ITS_MAP not in self.on or super().is_placed(view, map_number)

    def place_again(self, view: View, map_number: int, effort: Effort, *, may_leave: bool = True) -> Operation[int]:
        if Rule.TOUCHED_STAYS not in self.on:
            effort.touched = False
        if effort.touched and Rule.STAYS_BY_THE_NEWER_MAP not in self.on:
            return view.map_number
        return (yield from super().place_again(view, map_number, effort, may_leave=may_leave))

    def find_askew(self, view: View) -> Operation[Answers]:
        if Rule.WRONG_CLOCK_LEAVES not in self.on:
            return {}
        return (yield from super().find_askew(view))

    def check_writable(self, view: View) -> None:
        if Rule.PUSH_NEEDS_MIN_REPLICAS in self.on:
            super().check_writable(view)

    def decide(
        self, call: Decision[R], *, map_number: int = 0, may_leave: bool = True, effort: Effort | None = None
    ) -> Operation[Decided[R]]:
        self._decided = None
        return super().decide(call, map_number=map_number, may_leave=may_leave, effort=effort)

    def have_decided(self, view: View, call: Decision[R], so_far: SoFar) -> Operation[Answers]:
        if self._decided and Rule.DECIDED_AGAIN not in self.on:
            return {view.primary(call.queue): self._decided}
        answers = yield from super().have_decided(view, call, so_far)
        return answers

    def spread(
        self, view: View, call: Decision[R], records: Records, so_far: SoFar, answers: Answers
    ) -> Operation[tuple[Answers, Mapping[bytes, frozenset[int]]]]:
        if call.script == Claim.script and Rule.CLAIM_IS_EVERYWHERE not in self.on:
            return answers, {}
        if call.script == Turn.script and Rule.CLAIM_IS_EVERYWHERE not in self.on:
            records = of_bundles({id.encode() for id, *_ in call.items}, records)
        primary = view.primary(call.queue)
        if self._decided is None:
            self._decided, self._records = answers[primary], records
        elif Rule.DECIDED_AGAIN not in self.on:
            records = self._records
            told = Apply(call.queue, records, fenced=call.fenced)
            answers = yield Ask(view.epoch, {primary: view.members[primary]}, told)
        return (yield from super().spread(view, call, records, so_far, answers))


def of_bundles(settled: Collection[bytes], records: Records) -> Records:
    """Keep a turn's records about the bundles of which it settles something, without those of mere claims."""
    rows = iter(records.flat)
    each = zip(rows, rows, rows, rows, strict=True)
    return Records([word for row in each if row[0] in settled for word in row])


class AlteredOperations(Altered, Operations):
    """Pushes and decisions."""

    def __init__(self, on: Rules) -> None:
        super().__init__(on)
        self._began_with: Mapping[ServerId, Life] = {}
        self._stamp: int | None = None
        self._is_failing = False

    def push_plain(
        self, queue: str, puts: Sequence[Put], *, map_number: int = 0, patient: bool = True
    ) -> Operation[Pushes]:
        self._began_with = {}
        return super().push_plain(queue, puts, map_number=map_number, patient=patient)

    def missing(self, view: View, covered: Set[tuple[ServerId, Life]]) -> Mapping[ServerId, Life]:
        missing = super().missing(view, covered)
        self._began_with = self._began_with or missing
        if Rule.LAST_VIEW_IS_COVERED in self.on:
            return missing
        return {id: life for id, life in missing.items() if self._began_with.get(id) == life}

    def settle(self, call: Settle) -> Operation[Decided[SettleReply]]:
        """Settle claims, by the primary's decision or without one."""
        return self.decide(call) if Rule.PRIMARY_DECIDES in self.on else self._settle_everywhere(call)

    def returning(self, view: View) -> Answers:
        return super().returning(view) if Rule.RETURNING_ARE_WAITED_FOR in self.on else {}

    def tell_all(self, call: Call[None]) -> Operation[None]:
        if isinstance(call, Seal) and Rule.MAP_RAISES_THE_EPOCH not in self.on:
            return
        yield from super().tell_all(call)

    # -- flows -------------------------------------------------------------------------------------------------------

    def end_flow(self, flow: str, *, stop: bool = False, above: Sequence[str] = ()) -> Tending[Look]:
        self._stamp = None
        return super().end_flow(flow, stop=stop, above=above)

    def steer(self, queue: str, flow: str, verb: str, *, stamp: int = 0, **given: Any) -> Operation[SteerReply]:
        is_leg = queue != home_of(flow)
        if self._is_left_out(verb, is_leg=is_leg):
            verb = "look"
        if verb in ("seal", "look") and Rule.SEAL_IS_EVERYWHERE not in self.on:
            seen = yield from self.ask_primary(Steer(QUEUE, flow, verb))
        else:
            stamp = stamp if self._stamp is None else self._stamp
            seen = yield from super().steer(QUEUE, flow, verb, stamp=stamp, **given)
        if Rule.MISSED_IS_NOT_DONE not in self.on:
            seen = seen._replace(kinds=seen.kinds.translate(None, b"DM"))
        return seen

    def _is_left_out(self, verb: str, *, is_leg: bool) -> bool:
        left_out = {
            "join": Rule.HOME_NAMES_ITS_LEGS,
            "live": Rule.LEG_RAISES_HOMES_STAMP,
            "seal": Rule.LEGS_ARE_SEALED if is_leg else None,
        }
        rule = left_out.get(verb)
        return rule is not None and rule not in self.on

    def ask_legs(self, flow: str, look: Look, *, above: Sequence[str] = ()) -> Tending[tuple[Sequence[Asked], bool]]:
        self._is_failing = look.stage is Stage.FAILING
        return (yield from super().ask_legs(flow, look, above=above))

    def ask_servers(self, queue: str, flow: str) -> Operation[Asked]:
        if Rule.FLOW_ASKS_ALL not in self.on:
            return Asked(frozenset(), frozenset(), ())
        asked = yield from super().ask_servers(QUEUE, flow)
        if Rule.STAMP_IS_READ_FIRST not in self.on and queue == home_of(flow):
            self._stamp = (yield from super().steer(QUEUE, flow, "look")).stamp
        if Rule.MISSED_IS_NOT_DONE not in self.on:
            asked = asked._replace(kinds=asked.kinds - {Kind.DEAD, Kind.MISSED}, agreed=frozenset(), differing=())
        if Rule.FAILING_WAITS not in self.on and self._is_failing:
            asked = asked._replace(kinds=asked.kinds - {Kind.LIVING}, differing=())
        return asked

    def affirm(self, queue: str, bundles: Sequence[bytes]) -> Operation[Decided[Records]]:
        return super().affirm(QUEUE, bundles)

    def open_held(
        self, queue: str, flow: str, *, outcome: str = "", life: int = 0, stop: bool = False
    ) -> Operation[Opened]:
        return super().open_held(QUEUE, flow, outcome=outcome, life=life, stop=stop)

    def is_settled(self, view: View) -> bool:
        return Rule.FLOW_WAITS_FOR_OTHERS not in self.on or super().is_settled(view)

    def _settle_everywhere(self, call: Settle) -> Operation[Decided[SettleReply]]:
        lost: list[Sequence[bytes]] = []

        def attempt(view: View) -> Operation[Answers]:
            yield CheckTime()
            alone = SettleAlone(call.queue, 0, 0, call.items)
            answers: Answers = yield Ask(view.epoch, self.receivers(view), alone)
            lost[:] = [alone.read(answer.body).lost for answer in answers.values() if answer.status is Status.OK]
            return answers

        try:
            yield from self.tell(call.queue, attempt)
        except Failure as failure:
            raise Unknown(str(failure)) from failure
        reply = SettleReply(0, [b"".join(each) for each in zip(*lost, strict=True)], Records())
        return Decided(reply, Records(), {}, {}, 0, 0, repeated=False, again=False, gone=())


class AlteredScrub(Altered, Scrub):
    """``age`` maps the moment of a push to the time at which the scrub judges it."""

    def __init__(self, on: Rules, age: Callable[[float], float]) -> None:
        super().__init__(on)
        self._age = age

    def judge(self, record: Bundle, has_payload: bool, *, now_ms: float, floor_ms: float) -> Finding:
        if Rule.SCRUB_ROLLS_FORWARD not in self.on:
            return Finding.WAIT
        if record.is_alive:
            now_ms = self._age(record.pushed_at_ms)
        return super().judge(record, has_payload, now_ms=now_ms, floor_ms=floor_ms)


class AlteredCatchUp(CatchUp):
    def __init__(self, server: ServerId, on: Rules, *, repairer: str) -> None:
        super().__init__(server, repairer=repairer)
        self._on = on

    def reach_members(self, view: View) -> Operation[None]:
        if Rule.CATCH_UP_NEEDS_ALL_MEMBERS in self._on:
            yield from super().reach_members(view)

    def kept_generation(self, view: View, who: ServerInfo) -> str | None:
        return super().kept_generation(view, who) if Rule.ELIGIBLE_IS_KEPT in self._on else None

    def copy_of(self, queue: str) -> QueueCopy:
        return super().copy_of(queue) if Rule.CATCH_UP_COPIES_TOMBSTONES in self._on else _CopyOfTheLiving(queue)

    def promotion(self, life: Life) -> ViewChange:
        promotion = super().promotion(life)
        if Rule.ELIGIBLE_UNTIL_ANSWERED in self._on:
            return promotion

        def promote(view: View, /, *, by: str) -> View:
            promoted = promotion(view, by=by)
            return dismiss(promoted) if promoted.writable else promoted

        return promote


class _CopyOfTheLiving(QueueCopy):
    def install(self, target: Place, items: Sequence[Copied], moments: Moments) -> Operation[None]:
        return super().install(target, [item for item in items if unpack(item.record).is_alive], moments)


class AlteredRecovery(Recovery):
    def __init__(self, on: Rules, *, repairer: str) -> None:
        super().__init__(repairer=repairer)
        self._on = on

    def wanted(self, view: View) -> Mapping[ServerId, Life]:
        return super().wanted(view) if Rule.ELIGIBLE_TAKE_PART in self._on else view.members

    def meet(self, servers: Iterable[ServerId]) -> Operation[dict[ServerId, ServerInfo]]:
        if Rule.RECOVERY_WAITS_FOR_ALL in self._on:
            return (yield from super().meet(servers))
        identities = yield from Identify(list(servers))
        return {id: who for id, who in identities.items() if isinstance(who, ServerInfo)}

    def has_live_member(self, view: View, identities: Mapping[ServerId, ServerInfo | Answer]) -> bool:
        return Rule.RECOVERY_ONLY_OF_THE_DEAD in self._on and super().has_live_member(view, identities)

    def takes_part(self, view: View, known: Life, who: ServerInfo) -> bool:
        anyone = Rule.RECOVERY_BY_GENERATION not in self._on and bool(who.generation)
        return anyone or super().takes_part(view, known, who)

    def renewed(self, view: View, known: Life) -> str:
        if Rule.RENEWED_ARE_RECOGNISED in self._on:
            return super().renewed(view, known)
        return super().renewed(view, Life(known.run_id, f"{known.generation}/{view.epoch}"))

    def merge(self, view: View, met: Mapping[ServerId, ServerInfo]) -> Operation[None]:
        if Rule.RECOVERY_MERGES in self._on:
            yield from super().merge(view, met)
            return
        first, *others = self.places(view, met)
        for other in others:
            yield from self.copy_all(met, first, other)

    def renew(self, view: View, id: ServerId, who: ServerInfo) -> Operation[Life]:
        if Rule.RECOVERY_RENEWS_GENERATIONS not in self._on:
            return Life(who.run_id, who.generation)
        return (yield from super().renew(view, id, who))
