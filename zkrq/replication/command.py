"""Combine calls into commands: what leaves in one turn of the event loop for several queues is one call of each script.

So many queues share what a call costs whatever it does: the server reads one command, asks the gate and reads its clock
once (``protocol/scripts.py`` says how a call for several queues is built).  Each queue has a reply of its own, and an
error in one is that queue's alone.  Calls for the same queue keep their order, and each has a command of its own: the
script reads the clock once, and moments order the items of a queue.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, cast

from zkrq.replication.exchange import PENDING, Complaint, Exchange
from zkrq.replication.stream import ErrorReply
from zkrq.replication.wire import Packed, pack_words

COMBINED_CALLS = 32
"""Calls in one command; also bounds how many commands a call may overtake."""

COMBINED_WEIGHT = 500
"""Items that the calls of one command may take: as many as one call alone."""

COMBINED_BYTES = 1 << 15
"""Bytes of the arguments in one command; a larger call is sent alone."""


class Opening(NamedTuple):
    """The beginning of a call: command and script, the queue's keys, and the gate (epoch, generation).

    ``alone``: all of it, for a call that is sent alone.
    """

    script: Packed
    queue: str
    keys: Packed
    gate: Packed
    alone: Packed


def opening(command: str, script: str, queue: str, keys: Sequence[str], epoch: int, generation: str) -> Opening:
    """Encode the beginning of a call.  ``queue``: empty if the call is about the server itself."""
    begin, names, gate = pack_words((command, script)), pack_words(keys), pack_words((epoch, generation))
    number = pack_words((len(keys),))
    alone = Packed(3 + names.words + gate.words, begin.body + number.body + names.body + gate.body)
    return Opening(begin, queue, names, gate, alone)


class ScriptCall(NamedTuple):
    """One call of a script; ``weight``: how many items it takes at most, None if it is always sent alone."""

    opening: Opening
    arguments: Packed
    weight: int | None


class Command:
    """A command on its way: what is sent, and the exchanges that wait for its reply."""

    __slots__ = ("_bytes", "_calls", "_exchanges", "_packed", "_queues", "_weight", "due")

    def __init__(self, content: bytes | ScriptCall, exchange: Exchange, due: float) -> None:
        """``content``: a script's call, which others may join, or a whole command."""
        self._exchanges = [exchange]
        self.due = due
        """When it times out, by ``loop.time()``."""
        if isinstance(content, bytes):
            self._packed, self._calls, self._queues = content, list[ScriptCall](), {""}
        else:
            self._packed, self._calls, self._queues = b"", [content], {content.opening.queue}
            self._weight, self._bytes = content.weight or COMBINED_WEIGHT, len(content.arguments.body)

    def takes(self, call: ScriptCall) -> bool:
        """Tell whether this is the same script in the same life of the server, for other queues, with room for the
        call."""
        if call.weight is None or len(self._calls) == COMBINED_CALLS or self.must_precede(call):
            return False
        mine, other = self._calls[0].opening, call.opening
        return (
            mine.script == other.script
            and mine.gate == other.gate
            and self._weight + call.weight <= COMBINED_WEIGHT
            and self._bytes + len(call.arguments.body) <= COMBINED_BYTES
        )

    def add(self, call: ScriptCall, exchange: Exchange) -> None:
        """Combine with another call that this takes."""
        self._calls.append(call)
        self._exchanges.append(exchange)
        self._queues.add(call.opening.queue)
        self._weight += call.weight or 0
        self._bytes += len(call.arguments.body)

    @property
    def is_combined(self) -> bool:
        """Whether it is several calls."""
        return len(self._calls) > 1

    def must_precede(self, call: ScriptCall) -> bool:
        """Tell whether the call may not overtake this: both are for one queue, or this is about the server."""
        return "" in self._queues or call.opening.queue in self._queues

    def packed(self) -> bytes:
        """Encode it, when nothing joins it any more."""
        if not self._calls:
            return self._packed
        first, arguments, _ = self._calls[0]
        if len(self._calls) == 1:
            return b"*%d\r\n%b%b" % (first.alone.words + arguments.words, first.alone.body, arguments.body)
        keys = [opening.keys for opening, _, _ in self._calls]
        rest = [part for _, each, _ in self._calls for part in (_number(each.words), each)]
        parts = (first.script, _number(sum([each.words for each in keys])), *keys, first.gate, *rest)
        return b"*%d\r\n%b" % (sum([part.words for part in parts]), b"".join([part.body for part in parts]))

    def answer(self, reply: object) -> None:
        """Give each call its part of the reply."""
        if isinstance(reply, ErrorReply):
            self.land(Complaint(reply.text))
        elif len(self._exchanges) == 1:
            self._exchanges[0].land(reply)
        elif parts := _parts(reply, len(self._exchanges)):
            for exchange, part in zip(self._exchanges, parts, strict=True):
                exchange.land(Complaint(part.text) if isinstance(part, ErrorReply) else part)
        else:
            self.land(reply)

    def land(self, outcome: object) -> None:
        """End all calls with the same outcome."""
        for exchange in self._exchanges:
            exchange.land(outcome)

    def forget(self) -> None:
        """Wait no longer, except for the reply, which is dropped."""
        self._exchanges, self.due = [], math.inf

    def check_invariants(self) -> None:
        """Assert what holds until its reply arrives.

        - Each of its calls waits for an outcome, and counts in its round: a round that has counted to the end would
          leave its caller waiting, or has told it that all was there.
        - Each has a call and a queue of its own, since the parts of the reply are told apart by their place alone.
        - It is within the bounds of a command, unless it is a single call, which is sent whatever it is.
        """
        for exchange in self._exchanges:
            assert exchange.outcome is PENDING, f"in flight, with an outcome: {exchange.outcome!r:.200}"
            assert exchange.round.left > 0, "in flight, and its round counts to the end without it"
        if self._exchanges and self._calls:
            calls = len(self._calls)
            assert len(self._exchanges) == calls <= COMBINED_CALLS, f"{calls} calls, {len(self._exchanges)} exchanges"
            assert len(self._queues) == calls, f"{calls} calls in one command for the queues {self._queues}"
            fits = self._weight <= COMBINED_WEIGHT and self._bytes <= COMBINED_BYTES
            assert calls == 1 or fits, f"too much in one command: {self._weight} items, {self._bytes} bytes"


@lru_cache(1024)
def _number(value: int) -> Packed:
    return pack_words((value,))


def _parts(reply: object, count: int) -> Sequence[object]:
    """Divide the reply to combined calls; none if it is one for all, as a refusal is."""
    parts = cast("list[object]", reply) if isinstance(reply, list) else []
    return parts if len(parts) == count and not isinstance(parts[0], bytes) else ()
