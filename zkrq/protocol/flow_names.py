"""Hold members of a flow until others have been acked, which they know by name.

Such a member is held as what follows a flow is, and its record names the bundles for which it waits, each with its
queue.  Any client may let it go, once **every server in sync knows that all of these were acked**: the primary alone
may know an ack whose client has died; the member is handed out; the primary dies, and the next one delivers the other
again.  Nor while a server may come back with what it has.  A name that was given stays known as long as the flow runs,
so it does not matter which of them is pushed, or acked, first.

Letting a member go **raises the stamp**, as any decision does by which a member comes to life; and it is refused once
the flow is failing, so a flow fails before it ends as failed while members wait: what waits is removed, and nothing is
handed out beside what follows the failure.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from zkrq.protocol.calls import START, Affirm, NamedStates, Release, WaitingPage, WaitingRows
from zkrq.protocol.replies import Status
from zkrq.protocol.steps import Answers, Ask, CheckTime, Operation

if TYPE_CHECKING:
    from zkrq.protocol.view import View

T = TypeVar("T")

AT_ONCE = 100
"""Bundles that one call asks about, and members that one call lets go."""

ACKED, MISSED, UNKNOWN = b"A", b"M", b"U"
"""States of a bundle (``lua/flow_named.lua``)."""

UNSETTLED = b""
"""Among them: other servers may know otherwise."""

Waiting = Mapping[str, Sequence[str]]
"""For what members wait, by their ids: ``named``."""


class At(NamedTuple):
    """Have an operation run on the shard that is the home of this queue; its result is sent back.

    ``flow``: the flow that it may end, which is at home there; empty: none.
    """

    queue: str
    operation: Operation[Any]
    flow: str = ""


Tending = Generator[At, Any, T]
"""An operation over several queues.  Its failures are those of the operations that it asks for."""


def home_of(flow: str) -> str:
    """Return the queue on which a flow was begun."""
    return flow.partition("/")[0]


def named(queue: str, id: str) -> str:
    """Return what a record has of a bundle that its item waits for."""
    return f"{queue}/{id}"


class Core(Protocol):
    """What is needed of the operations of a shard; see ``deciding.py`` and ``flows.py``."""

    def decide(self, call: Any, /) -> Operation[Any]: ...

    def tell(self, queue: str, attempt: Callable[[View], Operation[Answers]], /) -> Operation[Any]: ...

    def is_settled(self, view: View, /) -> bool: ...


def read_waiting(core: Core, queue: str, flow: str, kind: str = "N") -> Operation[Waiting]:
    """Return which members of a flow wait in a queue, as its primary knows.  ``kind``: as of ``WaitingPage``.  Raises
    ``NothingDone``."""
    found: dict[str, Sequence[str]] = {}
    call = WaitingPage(queue, flow, kind)
    while True:
        pages: list[WaitingRows] = []

        def attempt(view: View, call: WaitingPage = call, pages: list[WaitingRows] = pages) -> Operation[Answers]:
            yield CheckTime()
            pages.clear()
            primary = view.primary(queue)
            answers: Answers = yield Ask(view.epoch, {primary: view.members[primary]}, call)
            pages.extend(call.read(each.body) for each in answers.values() if each.status is Status.OK)
            return answers

        yield from core.tell(queue, attempt)
        found.update((row.id.decode(), row.names.decode().split()) for row in pages[0].rows)
        if pages[0].cursor == START:
            return found
        call = call.at(pages[0].cursor)


def ask_named(core: Core, queue: str, ids: Sequence[str]) -> Operation[Mapping[str, frozenset[bytes]]]:
    """Ask every server in sync of a queue what has become of bundles; return their states.  Where servers differ,
    they know next time what the primary knows.

    ``UNSETTLED`` is among these while other servers may know of the bundles.  Raises as ``decide`` does.
    """
    found: dict[str, frozenset[bytes]] = {}
    for start in range(0, len(ids), AT_ONCE):
        some = ids[start : start + AT_ONCE]
        call, states = NamedStates(queue, some), dict.fromkeys(some, frozenset[bytes]())

        def attempt(
            view: View, call: NamedStates = call, states: dict[str, frozenset[bytes]] = states
        ) -> Operation[Answers]:
            yield CheckTime()
            states.update(dict.fromkeys(states, frozenset(() if core.is_settled(view) else (UNSETTLED,))))
            answers: Answers = yield Ask(view.epoch, view.members, call)
            for answer in answers.values():
                if answer.status is Status.OK:
                    for id, state in zip(call.items, call.read(answer.body), strict=True):
                        states[id] |= {state}
            return answers

        yield from core.tell(queue, attempt)
        if differing := [id.encode() for id, each in states.items() if len(each - {UNSETTLED}) > 1]:
            yield from core.decide(Affirm(queue, differing))
        found.update(states)
    return found


def release(core: Core, queue: str, flow: str, ids: Sequence[str]) -> Operation[int]:
    """Let members go; return how many that were.  Raises as ``decide`` does."""
    decided = yield from core.decide(Release(queue, flow, ids))
    return decided.reply.opened


def release_named(core: Core, flow: str, legs: Iterable[str], *, ignores_missed: bool) -> Tending[int]:
    """Let members of a flow go that wait for others, all of which have been acked; return how many that were.

    ``ignores_missed``: what was removed otherwise than by an ack counts as acked.
    """
    over, queues = {ACKED, MISSED} if ignores_missed else {ACKED}, (home_of(flow), *legs)
    waiting: dict[str, Waiting] = {}
    awaited: dict[str, dict[str, None]] = {}
    for queue in queues:
        waiting[queue] = yield At(queue, read_waiting(core, queue, flow))
        for name in [name for names in waiting[queue].values() for name in names]:
            of, _, id = name.partition("/")
            awaited.setdefault(of, {})[id] = None
    acked: set[str] = set()
    for queue, ids in awaited.items():
        states: Mapping[str, frozenset[bytes]] = yield At(queue, ask_named(core, queue, list(ids)))
        acked.update(named(queue, id) for id, each in states.items() if each and each <= over)
    count = 0
    for queue in queues:
        ready = [id for id, names in waiting[queue].items() if acked.issuperset(names)]
        for start in range(0, len(ready), AT_ONCE):
            opened: int = yield At(queue, release(core, queue, flow, ready[start : start + AT_ONCE]))
            count += opened
    return count
