"""One server of the model: its life, its disk, and the door of its scripts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.model.rules import Rule, Rules
from tests.model.scripts import Clock, Content, Item, Scripts, ok, unpack
from zkrq.protocol import calls
from zkrq.protocol.records import GONE_BYTE, STATE_AT, Record
from zkrq.protocol.replies import Answer, Status
from zkrq.protocol.view import Life, ServerId

TIMED_OUT = Answer(Status.TIMEOUT, reason="no answer")
OTHER_LIFE = Answer(Status.GONE, reason="another life")
NOT_IN_SYNC = Answer(Status.NOTINSYNC, reason="not in sync")
STALE = Answer(Status.STALE, reason="a later epoch")

_READING = (calls.Queues, calls.Metadata, calls.Page)
"""What a catch-up reads of its source."""


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
    def records(self) -> Mapping[Item, Record]:
        return {id: unpack(packed) for id, packed in self.held.records.items()}

    def has(self, id: Item) -> bool:
        """Whether the item lives here, with its payload."""
        packed = self.held.records.get(id)
        return packed is not None and packed[STATE_AT] != GONE_BYTE and id in self.held.payloads

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
        for id in [id for id, packed in self.held.records.items() if packed[STATE_AT] == GONE_BYTE]:
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
