"""One server of the model: its life, its disk, and the door of its scripts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.model.bundle import ALIVE, taken_apart, unpack
from tests.model.content import Clock, Content, Item, ok, place_of
from tests.model.rules import Rule, Rules
from tests.model.scripts import Scripts
from zkrq.protocol import calls
from zkrq.protocol.payloads import with_headers
from zkrq.protocol.records import Bundle
from zkrq.protocol.replies import Answer, Status
from zkrq.protocol.view import Life, ServerId

TIMED_OUT = Answer(Status.TIMEOUT, reason="no answer")
DENIED = Answer(Status.DENIED, reason="WRONGPASS")
OTHER_LIFE = Answer(Status.GONE, reason="another life")
NOT_IN_SYNC = Answer(Status.NOTINSYNC, reason="not in sync")
STALE = Answer(Status.STALE, reason="a later epoch")

_READING = (calls.Queues, calls.Metadata, calls.Aside, calls.Page)
"""What a catch-up reads of its source."""


def items_of(bundle: Item, record: Bundle) -> list[Item]:
    """The ids of the items of a bundle."""
    if record.is_alone:
        return [bundle]
    return [calls.item_id(bundle.decode(), position).encode() for position in range(len(record.states))]


def content_of(id: Item) -> bytes:
    """The payload with which an item is pushed."""
    return with_headers(id, {})


class Request(NamedTuple):
    """A call on its way to a server, in the life in which the sender knows it.  ``once``: it is never sent again."""

    server: ServerId
    life: Life
    epoch: int
    call: calls.Call[Any]
    once: bool = False


class Server:
    """``intact`` is for the observer: whether the server still has what it had as a member."""

    def __init__(self, id: ServerId, on: Rules, clock: Clock, run_id: str, generation: str) -> None:
        self.id = id
        self.on = on
        self.run_id = run_id
        self.scripts = Scripts(on, clock, Content(1, generation))
        self.dump: Content | None = None
        self.paused = False
        self.intact = True

    @property
    def held(self) -> Content:
        return self.scripts.held

    @property
    def life(self) -> Life:
        return Life(self.run_id, self.held.generation)

    @property
    def records(self) -> Mapping[Item, Bundle]:
        return {id: unpack(packed) for id, packed in self.held.records.items()}

    def has(self, id: Item) -> bool:
        """Whether the item lives here, with its payload."""
        bundle, position = place_of(id)
        whole = self.held.payloads.get(bundle)
        return self.lives(id) and whole is not None and content_of(id) in taken_apart(whole)[position : position + 1]

    def lives(self, id: Item) -> bool:
        """Whether the item is known here and not gone."""
        bundle, position = place_of(id)
        packed = self.held.records.get(bundle)
        return packed is not None and unpack(packed).states[position : position + 1] in tuple(ALIVE)

    @property
    def alive(self) -> list[Item]:
        """The items that are known here and not gone."""
        return [id for bundle, held in self.records.items() for id in items_of(bundle, held) if self.lives(id)]

    # -- what happens to a server ------------------------------------------------------------------------------------

    def save(self) -> None:
        self.dump = self.held.copy()

    def restart(self, run_id: str) -> None:
        """With everything that it had."""
        self.run_id = run_id

    def restore(self, dump: Content | None) -> None:
        """Have what was on the disk once, or nothing."""
        self.scripts.held = dump.copy() if dump else Content()
        self.intact = False

    def forget_tombstones(self) -> None:
        """Drop all of them, with the payloads that were left."""
        for id in [id for id, packed in self.held.records.items() if not unpack(packed).is_alive]:
            del self.held.records[id]
            self.held.payloads.pop(id, None)

    # -- calls -------------------------------------------------------------------------------------------------------

    def ask(self, call: calls.Call[Any]) -> Answer:
        """The answer to a call that is meant for what the server is now."""
        return self.receive(Request(self.id, self.life, self.held.epoch, call))

    def receive(self, request: Request) -> Answer:
        """The answer to a request."""
        call, on = request.call, self.on
        if self.run_id != request.life.run_id and Rule.RUN_ID_IS_COMPARED in on:
            return OTHER_LIFE
        if isinstance(call, calls.Enrol):
            return self._enrol(request.epoch, request.life.generation, call)
        ungated = isinstance(call, calls.Reserve) or (
            isinstance(call, calls.Wipe) and Rule.WIPING_IS_COMPARE_AND_SET not in on
        )
        if not ungated and (refused := self._gate(request.epoch, request.life.generation, call)):
            return refused
        if isinstance(call, calls.Wipe):
            self.intact = False
        return self.scripts.run(request.epoch, call)

    def _gate(self, epoch: int, generation: str, call: calls.Call[Any]) -> Answer | None:
        """The door of every script: None lets it in."""
        held, on = self.held, self.on
        if not held.generation:
            if Rule.MISSING_IS_NOT_CREATED in on:
                return NOT_IN_SYNC
            held.generation = generation
        if held.generation != generation and Rule.GENERATION_IS_COMPARED in on:
            return NOT_IN_SYNC
        if isinstance(call, _READING) and Rule.SOURCE_ADOPTS_BEFORE_READING not in on:
            return None
        if epoch < held.epoch and Rule.OLD_EPOCH_IS_STALE in on:
            return STALE
        held.epoch = max(epoch, held.epoch)
        return None

    def _enrol(self, epoch: int, generation: str, call: calls.Enrol) -> Answer:
        held = self.held
        if held.generation == generation:
            return ok()
        if held.generation != call.expected and Rule.WIPING_IS_COMPARE_AND_SET in self.on:
            return Answer(Status.MISMATCH)
        if epoch < held.epoch:
            return STALE
        if held.known and not call.holding:
            return Answer(Status.HOLDSDATA)
        held.epoch, held.generation = epoch, generation
        return ok()
