"""zkrq broken on purpose, one rule at a time: shows that the simulation would notice.

Each variant takes one rule of the protocol away.  A seed that finds nothing wrong with any of them proves nothing.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple
from unittest.mock import patch

from tests.simulation.ensemble import SimHub
from zkrq.coordination.coordinator import Versioned
from zkrq.replication import scripts
from zkrq.replication.records import State
from zkrq.replication.replicas import Replicas
from zkrq.replication.replies import Answer, Status
from zkrq.replication.scripts import SCRIPTS, Script, Text
from zkrq.replication.view import ServerId, View

_HEAD_AT_STATE = 9
"""Where a packed record holds its state."""


@contextmanager
def _rewritten(old: str, new: str, *names: str) -> Generator[None, None, None]:
    """These scripts (all that have it, if none is named) with one piece of their text replaced."""
    changed: dict[str, Script] = {}
    for name, script in SCRIPTS.items():
        text = script.with_flags.text
        if (not names or name in names) and old in text:
            changed[name] = dataclasses.replace(script, with_flags=_text(text.replace(old, new)))
    if not changed or (names and set(names) != changed.keys()):
        raise LookupError(f"{old!r} is not in {', '.join(names) or 'any script'}")
    assert isinstance(SCRIPTS, dict)
    with patch.dict(SCRIPTS, changed):
        yield


def _text(text: str) -> Text:
    return Text(text, scripts.sha(text))


def apply_installs_anything() -> AbstractContextManager[object]:
    """Rule 1: a record is installed only if its version is greater."""
    return _rewritten("if not held or newer(mine, held) then", "if true then", "apply")


def settling_asks_for_no_token() -> AbstractContextManager[object]:
    """Rule 6: settling shows the claim's token."""
    return _rewritten("r and r.token == token and not newer(named, r)", "r", "settle")


def generation_is_not_compared() -> AbstractContextManager[object]:
    """Rule 3: a server answers only in the life in which the view knows it."""
    return _rewritten("if known[1] ~= generation then return {'NOTINSYNC', known[1] or ''} end",
                      "known[2] = known[2] or 0")  # fmt: skip


def removal_leaves_no_tombstone() -> AbstractContextManager[object]:
    """Rule 8: a removal leaves a tombstone."""
    return _rewritten(
        "write('HDEL', payloads, gone)", "write('HDEL', payloads, gone) write('HDEL', records, gone)"
    )  # fmt: skip


def view_is_written_without_comparing() -> AbstractContextManager[object]:
    """Rule 7: the view changes only by compare-and-set."""

    def swap(self: SimHub, data: bytes, expected: int) -> Versioned | None:
        return compared(self, data, self.register.version)

    compared = SimHub.swap
    return patch.object(SimHub, "swap", swap)


CallAll = Callable[[Replicas, Sequence[ServerId], str, str, View, list[Any]], Awaitable[Mapping[ServerId, Answer]]]


def _with_call_all(make: Callable[[CallAll], CallAll]) -> AbstractContextManager[object]:
    return patch.object(Replicas, "_call_all", make(Replicas._call_all))  # pyright: ignore[reportPrivateUsage]


def claims_are_handed_out_early() -> AbstractContextManager[object]:
    """Rule 2: an item is handed to a consumer only after every server of the view has its claim."""

    def make(call_all: CallAll) -> CallAll:
        async def early(
            self: Replicas, servers: Sequence[ServerId], script: str, queue: str, view: View, arguments: list[Any]
        ) -> Mapping[ServerId, Answer]:
            records = [word for word in arguments if isinstance(word, bytes) and len(word) > 2 * _HEAD_AT_STATE]
            claimed = [record[_HEAD_AT_STATE : _HEAD_AT_STATE + 1] == State.CLAIMED.encode() for record in records]
            if script == "apply" and any(claimed):

                async def later() -> None:
                    await asyncio.sleep(0.5)
                    await call_all(self, servers, script, queue, view, arguments)

                self.left_behind = [*getattr(self, "left_behind", []), asyncio.create_task(later())]  # pyright: ignore
                return {id: Answer(Status.OK, ([], [])) for id in servers}
            return await call_all(self, servers, script, queue, view, arguments)

        return early

    return _with_call_all(make)


def a_push_is_done_on_one_server() -> AbstractContextManager[object]:
    """Rule 4: an operation is complete when the whole view is covered."""

    def make(call_all: CallAll) -> CallAll:
        async def one(
            self: Replicas, servers: Sequence[ServerId], script: str, queue: str, view: View, arguments: list[Any]
        ) -> Mapping[ServerId, Answer]:
            answers = await call_all(self, servers, script, queue, view, arguments)
            done = [answer for answer in answers.values() if answer.status is Status.OK]
            return dict.fromkeys(servers, done[0]) if script == "put" and done else answers

        return one

    return _with_call_all(make)


def acks_stay_on_the_primary() -> AbstractContextManager[object]:
    """What is decided is applied to every server of the view before anybody is told."""

    def make(call_all: CallAll) -> CallAll:
        async def none(
            self: Replicas, servers: Sequence[ServerId], script: str, queue: str, view: View, arguments: list[Any]
        ) -> Mapping[ServerId, Answer]:
            removed = any(
                isinstance(word, bytes) and word[_HEAD_AT_STATE : _HEAD_AT_STATE + 1] == State.GONE.encode()
                for word in arguments
            )
            if script == "apply" and removed:
                return {id: Answer(Status.OK, ([], [])) for id in servers}
            return await call_all(self, servers, script, queue, view, arguments)

        return none

    return _with_call_all(make)


class Variant(NamedTuple):
    """What breaks zkrq, and the faults that bring it to light soonest."""

    make: Callable[[], AbstractContextManager[object]]
    faults: str = "all"


VARIANTS: Mapping[str, Variant] = {
    variant.make.__name__: variant
    for variant in (
        Variant(apply_installs_anything, "pause,cut,slow,restart,hub_expire"),
        Variant(settling_asks_for_no_token, "pause"),
        Variant(generation_is_not_compared),
        Variant(removal_leaves_no_tombstone),
        Variant(view_is_written_without_comparing),
        Variant(claims_are_handed_out_early, "restart,flush,breaks,replica"),
        Variant(a_push_is_done_on_one_server, "full,cut,flush,restart_empty"),
        Variant(acks_stay_on_the_primary),
    )
}


def broken(name: str | None) -> AbstractContextManager[object]:
    """zkrq as this variant has it; None: as it is."""
    return nullcontext() if name is None else VARIANTS[name].make()
