"""What flows promise, checked on what their workers have recorded (``flows_process.py``).

An item is recorded as ``flow/what/id``, and each state of a flow that an observer has read as an event of its name.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tests.chaos.flows_process import ORDER
from tests.chaos.record import Entry, Kind
from tests.chaos.turns_checker import Findings

THEN, FAILURE, ALWAYS, MEMBER, MAKE = "then", "failure", "always", "member", "make"
HELD = (THEN, FAILURE, ALWAYS)

FOLLOWS: Mapping[str, frozenset[str]] = {
    "done": frozenset({THEN, ALWAYS}),
    "failed": frozenset({FAILURE, ALWAYS}),
    "cancelled": frozenset(),
}
"""What is delivered after each outcome, if it was held."""


@dataclass(slots=True)
class Life:
    """What was recorded of one item."""

    delivered: list[Entry] = field(default_factory=list[Entry])
    settling: list[Entry] = field(default_factory=list[Entry])
    settled: list[Entry] = field(default_factory=list[Entry])
    read: list[Entry] = field(default_factory=list[Entry])
    """Of a member what others have read of it, of what follows how many results it has read."""

    def ended_before(self, moment: float) -> bool:
        """Whether it was being acked by then; whether the ack was decided is not always known."""
        return any(entry.detail == "ack" and entry.at < moment for entry in self.settling)

    @property
    def was_acked(self) -> bool:
        return any(entry.detail == "ack" for entry in self.settling)

    @property
    def first(self) -> float:
        return min((entry.at for entry in self.delivered), default=math.inf)


@dataclass(slots=True)
class Story:
    """What was recorded of one flow."""

    pushed: set[str] = field(default_factory=set[str])
    """Ids of members whose push has returned."""
    lives: dict[str, dict[str, Life]] = field(
        default_factory=lambda: defaultdict[str, dict[str, Life]](lambda: defaultdict(Life))
    )
    """By what an item is, and by its id."""
    states: list[Entry] = field(default_factory=list[Entry])

    def began(self, what: str) -> float:
        """When something that is held was delivered first."""
        return min((life.first for life in self.lives[what].values()), default=math.inf)

    @property
    def outcomes(self) -> list[str]:
        """Outcomes that were told, in order, each change once."""
        told = [entry.detail for entry in sorted(self.states) if entry.detail in FOLLOWS]
        return [each for number, each in enumerate(told) if number == 0 or told[number - 1] != each]


def stories(entries: Iterable[Entry]) -> dict[str, Story]:
    """Sort what was recorded by flows."""
    found = defaultdict[str, Story](Story)
    for entry in sorted(entries):
        if entry.kind is Kind.EVENT:
            found[entry.id].states.append(entry)
            continue
        if entry.kind not in (Kind.PUSHED, Kind.DELIVERED, Kind.SETTLING, Kind.SETTLED, Kind.READ):
            continue
        flow, what, id = entry.id.split("/", 2)
        story = found[flow]
        if entry.kind is Kind.PUSHED:
            story.pushed.add(id)
            continue
        life = story.lives[what][id]
        kinds = {Kind.DELIVERED: life.delivered, Kind.SETTLING: life.settling, Kind.SETTLED: life.settled}
        kinds.get(entry.kind, life.read).append(entry)
    return found


def check(entries: Iterable[Entry], held: Mapping[str, Iterable[str]], finished: Iterable[str]) -> Findings:
    """Check every flow.  ``held``: what is held for each; ``finished``: flows that an operator has ended as done."""
    found, told, over = Findings(), stories(entries), set(finished)
    for flow, holds in held.items():
        story = told.get(flow, Story())
        found.counts.update(flows=1, members=len(story.pushed))
        found.broken += [f"{flow}: {sentence}" for sentence in _wrong(story, set(holds), flow in over)]
        found.counts.update(story.outcomes[-1:])
        found.counts.update(results=sum(len(life.read) for lives in story.lives.values() for life in lives.values()))
    return found


def _wrong(story: Story, holds: set[str], finished: bool) -> Iterable[str]:
    outcomes = story.outcomes
    if not outcomes:
        yield f"never: it has not ended, the last state told was {[entry.detail for entry in story.states[-1:]]}"
    if len(outcomes) > 1:
        yield f"its outcome changed: {', '.join(outcomes)}"
    yield from _twice(story)
    for outcome in outcomes[-1:]:
        yield from _followed(story, holds, outcome)
    yield from _waited(story)
    yield from _results(story)
    began = min(story.began(what) for what in HELD)
    yield from _late_members(story, began)
    if story.began(THEN) < math.inf and not finished:
        missing = [id for id in story.pushed if not story.lives[MEMBER][id].ended_before(began)]
        if missing:
            yield f"early: {len(missing)} members had not ended when `then` began, {missing[:3]}"


def _waited(story: Story) -> Iterable[str]:
    """Check that no member was handed out before those had ended for which it waits."""
    for id, life in list(story.lives[MEMBER].items()):
        flow, _, name = id.rpartition(".")
        for awaited in ORDER.get(name, ()):
            if life.first < math.inf and not story.lives[MEMBER][f"{flow}.{awaited}"].ended_before(life.first):
                yield f"early: {id} was delivered before {awaited} had ended"


def _results(story: Story) -> Iterable[str]:
    """Check what was read of results: each member returns its id."""
    for id, life in story.lives[MEMBER].items():
        if wrong := [entry.detail for entry in life.read if entry.detail != id]:
            yield f"result of {id}: {wrong[0]} was read"
    lives, began = story.lives[MEMBER].values(), min(story.began(what) for what in HELD)
    for read in [entry for what in HELD for life in story.lives[what].values() for entry in life.read]:
        count, wrong = map(int, read.detail.split())
        acked = [min((one.at for one in life.settled if one.detail == "ack"), default=math.inf) for life in lives]
        least = sum(at < began for at in acked)
        most = sum(life.ended_before(read.at) for life in lives)
        if wrong or not least <= count <= most:
            yield f"results: {count} were read, {wrong} of them wrong, of {least} to {most} that there were"


def _twice(story: Story) -> Iterable[str]:
    for what in HELD:
        if len(story.lives[what]) > 1:
            yield f"twice: {len(story.lives[what])} items of `{what}`"
        for id, life in story.lives[what].items():
            acked = min((entry.at for entry in life.settled if entry.detail == "ack"), default=math.inf)
            if any(entry.at > acked for entry in life.delivered):
                yield f"twice: {id} came back after its ack had returned"


def _followed(story: Story, holds: set[str], outcome: str) -> Iterable[str]:
    """Check that what was held for the outcome came, and nothing else."""
    for what in HELD:
        came, wanted = bool(story.lives[what]), what in holds and what in FOLLOWS[outcome]
        if came and not wanted:
            yield f"`{what}` was delivered, and the flow is {outcome}"
        if wanted and not any(life.was_acked for life in story.lives[what].values()):
            yield f"never: `{what}` was not delivered, and the flow is {outcome}"


def _late_members(story: Story, began: float) -> Iterable[str]:
    """Check that no member is handed out, or successfully settled, after what continues has begun."""
    late = [id for id, life in story.lives[MEMBER].items() if any(entry.at > began for entry in life.delivered)]
    if late:
        yield f"early: {len(late)} members were delivered after what continues, {late[:3]}"
    running = [
        id
        for id, life in story.lives[MEMBER].items()
        if any(entry.at > began and entry.detail == "ack" for entry in life.settled)
        and not any(entry.at < began and entry.detail == "ack" for entry in life.settling)
    ]
    if running:
        yield f"early: {len(running)} members ran when what continues began, {running[:3]}"
