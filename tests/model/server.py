"""One server: what it stores, and the scripts that change it.  A script runs alone and to its end."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.rules import Rule, Rules
from zkrq.protocol.view import Life, ServerId

Item = int
Token = int


class State(enum.Enum):
    READY = "ready"
    CLAIMED = "claimed"
    GONE = "gone"


class Version(NamedTuple):
    epoch: int
    n: int


class By(NamedTuple):
    """Which verb, of which claim, made a record what it is."""

    verb: str
    token: Token


class Record(NamedTuple):
    version: Version
    state: State
    by: By | None


Records = Mapping[Item, Record]

PUSHED = Record(Version(0, 1), State.READY, None)
"""What a push applies everywhere at once: every decision is greater."""

SETTLED = {"ack": State.GONE, "nack": State.READY}


class Status(enum.Enum):
    OK = "ok"
    SUPERSEDED = "superseded"
    LOST = "lost"  # the token holds no claim
    STALE = "stale"
    NOT_IN_SYNC = "not in sync"
    OTHER_LIFE = "other life"
    TIMED_OUT = "timed out"


EVICTING = (Status.NOT_IN_SYNC, Status.OTHER_LIFE, Status.TIMED_OUT)
"""Answers of a server that is not, or not any more, what the view says."""


NO_RECORDS: Records = {}


class Answer(NamedTuple):
    status: Status
    records: Records = NO_RECORDS


OK = Answer(Status.OK)
SUPERSEDED = Answer(Status.SUPERSEDED)
LOST = Answer(Status.LOST)
STALE = Answer(Status.STALE)
NOT_IN_SYNC = Answer(Status.NOT_IN_SYNC)
OTHER_LIFE = Answer(Status.OTHER_LIFE)
TIMED_OUT = Answer(Status.TIMED_OUT)


class Request(NamedTuple):
    """A script on its way to a server, in the life in which the sender knows it."""

    server: ServerId
    life: Life
    epoch: int
    script: Callable[..., Answer]
    arguments: tuple[object, ...] = ()


class Dump(NamedTuple):
    """What a server has on its disk."""

    epoch: int
    generation: str
    records: Records
    fenced: Collection[Token]


@dataclass(slots=True, eq=False)
class Server:
    """``lapsed`` are the tokens whose lease is over; it stands for the server's clock.  ``intact`` is for the observer:
    whether the server still has what it had as a member."""

    id: ServerId
    on: Rules
    lapsed: Collection[Token]
    run_id: str
    generation: str
    epoch: int
    records: dict[Item, Record]
    fenced: set[Token]
    dump: Dump | None = None
    paused: bool = False
    intact: bool = True

    @property
    def life(self) -> Life:
        return Life(self.run_id, self.generation)

    def receive(self, request: Request) -> Answer:
        if self.run_id != request.life.run_id and Rule.RUN_ID_IS_COMPARED in self.on:
            return OTHER_LIFE
        return request.script(self, request.epoch, request.life.generation, *request.arguments)

    def _gate(self, epoch: int, generation: str) -> Answer | None:
        """The door of every script: None lets it in."""
        if not self.generation:
            if Rule.MISSING_IS_NOT_CREATED in self.on:
                return NOT_IN_SYNC
            self.generation = generation
        if self.generation != generation and Rule.GENERATION_IS_COMPARED in self.on:
            return NOT_IN_SYNC
        if epoch < self.epoch and Rule.OLD_EPOCH_IS_STALE in self.on:
            return STALE
        self.epoch = max(epoch, self.epoch)
        return None

    # -- what happens to a server ------------------------------------------------------------------------------------

    def save(self) -> None:
        self.dump = Dump(self.epoch, self.generation, dict(self.records), frozenset(self.fenced))

    def flush(self) -> None:
        self.epoch, self.generation, self.records, self.fenced = 0, "", {}, set()
        self.intact = False

    def restart(self, run_id: str) -> None:
        """With everything that it had."""
        self.run_id = run_id

    def restore(self, dump: Dump | None) -> None:
        """Have what was on the disk once, or nothing."""
        self.flush()
        if dump:
            self.epoch, self.generation = dump.epoch, dump.generation
            self.records, self.fenced = dict(dump.records), set(dump.fenced)

    # -- scripts -----------------------------------------------------------------------------------------------------

    def seal(self, epoch: int, generation: str) -> Answer:
        """Adopt the epoch."""
        return self._gate(epoch, generation) or OK

    def apply(self, epoch: int, generation: str, decided: Records, fenced: Token | None = None) -> Answer:
        """Install what was decided elsewhere, and refuse the fenced token from now on."""
        if refused := self._gate(epoch, generation):
            return refused
        if fenced is not None:
            self.fenced.add(fenced)
        superseded = False
        for item, record in decided.items():
            held = self.records.get(item)
            if held is None:
                if record.state is not State.GONE or Rule.TOMBSTONE_OF_THE_UNKNOWN in self.on:
                    self._keep(item, record)
            elif record.version > held.version or (Rule.GREATER_VERSION_WINS not in self.on and record != PUSHED):
                self._keep(item, record)
            elif record != held:
                superseded = True
        return SUPERSEDED if superseded and Rule.SUPERSEDED_IS_TOLD in self.on else OK

    def claim(self, epoch: int, generation: str, token: Token) -> Answer:
        """Decide which item the token gets; no records when there is none."""
        if refused := self._gate(epoch, generation):
            return refused
        if token in self.fenced and Rule.FENCED_TOKEN_IS_REFUSED in self.on:
            return LOST
        claim = By("claim", token)
        if Rule.REPEATED_CLAIM_GETS_THE_SAME in self.on:
            mine = self._made_by(claim)
            if mine:
                return Answer(Status.OK, self._stamped(epoch, mine))
        requeued = self._requeue_lapsed(epoch) if Rule.CLAIMS_HAVE_A_DEADLINE in self.on else {}
        ready = [item for item, record in self.records.items() if record.state is State.READY]
        if not ready:
            return Answer(Status.OK, requeued)
        first = min(ready)
        return Answer(Status.OK, {**requeued, first: self._decide(epoch, first, State.CLAIMED, claim)})

    def settle(self, epoch: int, generation: str, item: Item, token: Token, verb: str) -> Answer:
        """Decide that the claim ends; LOST, with what the item is now, when the token does not hold it."""
        if refused := self._gate(epoch, generation):
            return refused
        held = self.records.get(item)
        if held is None:
            return LOST
        if held.by == (verb, token):
            return Answer(Status.OK, self._stamped(epoch, {item: held}))
        mine = held.by == ("claim", token) or Rule.SETTLING_CHECKS_THE_TOKEN not in self.on
        if held.state is not State.CLAIMED or not mine:
            return Answer(Status.LOST, self._stamped(epoch, {item: held}))
        return Answer(Status.OK, {item: self._decide(epoch, item, SETTLED[verb], By(verb, token))})

    def settle_alone(self, epoch: int, generation: str, item: Item, token: Token, verb: str) -> Answer:
        """What every server would run if there were no primary: the judgement of ``settle`` on its own records."""
        if refused := self._gate(epoch, generation):
            return refused
        held = self.records.get(item)
        if held is None:
            if verb == "ack":
                self._keep(item, Record(Version(epoch, 99), State.GONE, By(verb, token)))
        elif held.by == ("claim", token):
            self._decide(epoch, item, SETTLED[verb], By(verb, token))
        elif held.by != (verb, token):
            return LOST
        return OK

    def fence(self, epoch: int, generation: str, token: Token) -> Answer:
        """Decide that the token is worth nothing any more: its claims are ready again."""
        if refused := self._gate(epoch, generation):
            return refused
        self.fenced.add(token)
        fence = By("fence", token)
        decided = {item: self._decide(epoch, item, State.READY, fence) for item in self._made_by(By("claim", token))}
        return Answer(Status.OK, {**decided, **self._stamped(epoch, self._made_by(fence))})

    def affirm(self, epoch: int, generation: str, items: Iterable[Item]) -> Answer:
        """Decide that items are what they are here, whatever other servers may know of them."""
        if refused := self._gate(epoch, generation):
            return refused
        known = {item: self.records[item] for item in items if item in self.records}
        if Rule.SCRUB_DECIDES not in self.on:
            return Answer(Status.OK, known)
        return Answer(
            Status.OK,
            {item: self._decide(epoch, item, record.state, record.by) for item, record in known.items()},
        )

    def read(self, epoch: int, generation: str) -> Answer:
        """Everything there is, for a catch-up."""
        if Rule.SOURCE_ADOPTS_BEFORE_READING in self.on:
            refused = self._gate(epoch, generation)
        else:
            refused = None if self.generation == generation else NOT_IN_SYNC
        return refused or Answer(Status.OK, dict(self.records))

    def enrol(self, epoch: int, generation: str, expected: str) -> Answer:
        """Wipe the server and give it a new generation."""
        if Rule.WIPING_IS_COMPARE_AND_SET in self.on:
            if self.generation == generation:
                return OK
            if self.generation != expected:
                return NOT_IN_SYNC
        self.flush()
        self.epoch, self.generation = epoch, generation
        return OK

    def renew(self, epoch: int, generation: str, expected: str) -> Answer:
        """Give the server a new generation for what it holds."""
        if self.generation not in (generation, expected):
            return NOT_IN_SYNC
        if epoch < self.epoch:
            return STALE
        self.epoch, self.generation = epoch, generation
        return OK

    # ----------------------------------------------------------------------------------------------------------------

    def _made_by(self, by: By) -> dict[Item, Record]:
        return {item: record for item, record in self.records.items() if record.by == by}

    def _decide(self, epoch: int, item: Item, state: State, by: By | None) -> Record:
        record = Record(Version(epoch, self.records[item].version.n + 1), state, by)
        self._keep(item, record)
        return record

    def _requeue_lapsed(self, epoch: int) -> dict[Item, Record]:
        return {
            item: self._decide(epoch, item, State.READY, By("expire", record.by.token))
            for item, record in list(self.records.items())
            if record.state is State.CLAIMED and record.by and record.by.token in self.lapsed
        }

    def _stamped(self, epoch: int, decided: Records) -> Records:
        """The same decisions, as decisions of this epoch."""
        if Rule.STAMPED_ANEW not in self.on:
            return decided
        return {
            item: record if record.version.epoch >= epoch else self._decide(epoch, item, record.state, record.by)
            for item, record in decided.items()
        }

    def _keep(self, item: Item, record: Record) -> None:
        if record.state is State.GONE and Rule.TOMBSTONE_STAYS not in self.on:
            self.records.pop(item, None)
        else:
            self.records[item] = record
