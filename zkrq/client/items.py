"""Describe an item to callers that only look at it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

from zkrq.base import clock, saved
from zkrq.base.checks import task_of, without_task
from zkrq.base.codecs import codec_of_item
from zkrq.base.errors import CodecError
from zkrq.base.errors import split as split_reason
from zkrq.base.saved import Saved
from zkrq.protocol.calls import Copied, EndedRow, item_id, read_notes, read_saved
from zkrq.protocol.failures import FailureNote, last_reason, read_failures
from zkrq.protocol.payloads import split, split_saved
from zkrq.protocol.records import NEVER_US, ItemRecord, State, nested_in, unpack

if TYPE_CHECKING:
    from zkrq.base.codecs import Codec
    from zkrq.base.progress import WorkProgress

T = TypeVar("T")

ItemState = Literal["ready", "scheduled", "claimed", "dead"]


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed attempt on an item.

    ``at``: when it failed, by the clock of the server that recorded it.  ``where``: how its consumer describes itself,
    by default ``host:pid``.  ``took``: seconds since the claim began.  ``reason``: why it failed; ``traceback``: a
    summary of the calls, innermost first.  Each is None if it is not known: no consumer reports that an item has been
    delivered too often, or has outlived its ``ttl``, and 0.2.0 kept the reason alone.
    """

    at: datetime | None
    where: str | None
    took: float | None
    reason: str | None
    traceback: str | None


@dataclass(frozen=True, slots=True)
class Edited:
    """The last change of an item's content: when, and by whom, as the caller of ``Queue.edit`` has said it."""

    at: datetime
    by: str


@dataclass(frozen=True, slots=True)
class Item(Generic[T]):
    """One item of a queue as it was when it was read.

    ``item`` is the content, None if it cannot be decoded; ``payload`` has its bytes then.  ``seconds_left``: until the
    item is due or its claim ends, None for ready items and dead letters.  ``expires_in``: seconds until its ``ttl``
    ends, None without one.  ``owner``: the owner id of its holder.  ``reason``: why it is dead or failed last;
    ``traceback``: a summary of the calls, innermost first; ``died_at``: when it became a dead letter.  Each is None if
    there is none.  ``headers``: texts that were pushed with it; ``group``: the one that it was pushed into, None: none.
    ``attempts`` counts deliveries that were not released, ``failures`` those that failed.  ``progress``: what the
    holder of a claimed item has reported, of ``get`` and ``peek`` only; None: nothing.  ``held_for``: seconds since the
    claim of a claimed item began, however often it was extended; None for others.  ``order``: its place among the items
    of its group, greater for a later one; None unless the group keeps the order of its pushes.
    ``saved``: what handlers have saved of it, as ``Claim.saved``, and ``steps``: the values of the steps that are done,
    by name; each None if it cannot be decoded.  ``saved_bytes``: all of that as servers keep it, None: nothing.
    ``task``: the name of the task that it was pushed for, None: none.
    ``last_failures``: its last five failures, the latest first, also of before it was redriven.
    ``nested``: the inner flow for which it stands, as ``queue/name``: such a dead letter has no content, and a redrive
    leaves it; None: it is an item like others.
    ``edited``: when its content was changed since its push, and by whom; None: it was not.
    """

    id: str
    item: T | None
    payload: bytes
    state: ItemState
    priority: int
    attempts: int
    failures: int
    pushed_at: datetime
    seconds_left: float | None
    owner: str | None
    reason: str | None
    key: str | None
    traceback: str | None
    died_at: datetime | None
    expires_in: float | None
    headers: Mapping[str, str]
    group: str | None = None
    progress: WorkProgress | None = None
    held_for: float | None = None
    order: float | None = None
    saved: Any = None
    steps: Mapping[str, Any] = field(default_factory=dict[str, Any])
    saved_bytes: bytes | None = None
    task: str | None = None
    last_failures: Sequence[Failure] = ()
    nested: str | None = None
    edited: Edited | None = None


EndState = Literal["done", "dead", "cancelled", "expired"]

_ENDS: Mapping[bytes, EndState] = {b"A": "done", b"D": "dead", b"X": "cancelled", b"E": "expired"}
"""The end that each letter of a server's reply stands for (``lua/history.lua``)."""


@dataclass(frozen=True, slots=True)
class EndedItem:
    """An item that has ended, and how.

    ``state``: done, dead, cancelled or expired.  ``took``: seconds from the beginning of its last claim until its end,
    and ``owner``: the owner id of that consumer; None if no consumer ended it.  ``attempts``: deliveries that were not
    released.  ``reason``: of a dead letter.  ``key``, ``group``: None if it had none.  Its payload is gone, unless it
    is a dead letter; its result is kept for the ``ttl`` of ``Results``.
    """

    id: str
    state: EndState
    ended_at: datetime
    took: float | None
    owner: str | None
    attempts: int
    key: str | None
    group: str | None
    reason: str | None


class FoundPage(NamedTuple, Generic[T]):
    """Some items that a search found.

    ``next``: give it as ``after`` to go on, None: these were the last ones.  ``restarted``: items that were found
    before may come again, because ``after`` came from another primary, or from another search.
    """

    items: Sequence[Item[T]]
    next: str | None
    restarted: bool


class Codecs(NamedTuple, Generic[T]):
    """What encodes the items of a queue, and what is saved of them."""

    items: Codec[T]
    saved: Codec[Any]


def items_of(copied: Copied, codecs: Codecs[T], positions: Sequence[int] | None = None) -> Iterator[Item[T]]:
    """Describe items of a bundle that was read (``positions`` None: all), except those that were removed, or whose push
    has not arrived yet, or that cannot be read."""
    if copied.payload is None:
        return
    try:
        bundle, payloads = unpack(copied.record), split(copied.payload)
    except ValueError:  # it is damaged, which is told where it is mended or set aside
        return
    if bundle.states == State.PAUSED.value:
        return
    nested = nested_in(bundle) or None
    notes, states, since = read_notes(copied.notes), read_saved(copied.notes), float(copied.since)
    for position in range(len(bundle.states)) if positions is None else positions:
        payload = payloads[position] if position < len(payloads) else None
        if position >= len(bundle.states):
            continue
        record = bundle.item(position)
        if record.due_us + since > NEVER_US:
            continue  # it is shown where it comes from
        if payload is not None and record.state is not State.GONE:
            id = copied.id.decode() if bundle.is_alone else item_id(copied.id.decode(), position)
            claimed_us = bundle.claimed_us(position) if record.state is State.CLAIMED else None
            item = _item(id, record, notes.get(position, b""), states.get(position), since, payload, codecs)
            if claimed_us is not None:
                item = replace(item, held_for=max(0.0, -(claimed_us + since) / 1_000_000))
            yield replace(item, nested=nested) if nested else item


def _item(
    id: str, record: ItemRecord, note: bytes, state_bytes: bytes | None, since: float, payload: bytes, codecs: Codecs[T]
) -> Item[T]:
    content, headers, begun = _split(payload)
    saved_bytes = saved.joined(state_bytes, begun)
    known = Saved() if saved_bytes is None else _saved(saved_bytes)
    if edit := saved.edit_in(saved_bytes or b""):
        content, known = edit.content, known._replace(edit=None)
        saved_bytes = known.encode() if known != Saved() else None
    saved_codec = codec_of_item(codecs.saved, id)
    moment_us = record.deadline_us if record.state is State.CLAIMED else record.due_us
    left = (moment_us + since) / 1_000_000
    state = _state(record, left)
    failures = tuple(map(_failure, read_failures(note)))
    last = failures[0] if failures else _NO_FAILURE
    return Item(
        id=id,
        item=_decoded(content, codec_of_item(codecs.items, id)),
        payload=content,
        state=state,
        priority=record.priority,
        attempts=record.attempts,
        failures=record.failures,
        pushed_at=clock.at_ms(record.pushed_at_ms),
        seconds_left=left if state in ("scheduled", "claimed") else None,
        owner=record.token.rpartition("/")[0] or None if record.state is State.CLAIMED else None,
        reason=last.reason,
        key=record.key or None,
        traceback=last.traceback,
        died_at=clock.after(left) if state == "dead" else None,
        expires_in=(record.expires_us + since) / 1_000_000 if record.expires_us and state != "dead" else None,
        headers=without_task(headers),
        group=record.group or None,
        order=record.order or None,
        saved=None if known.state is None else _decoded(known.state, saved_codec),
        steps={name: _decoded(value, saved_codec) for name, value in known.steps.items()},
        saved_bytes=saved_bytes,
        task=task_of(headers),
        last_failures=failures,
        edited=Edited(clock.at_ms(edit.at_ms), edit.by) if edit else None,
    )


_NO_FAILURE = Failure(None, None, None, None, None)


def _failure(note: FailureNote) -> Failure:
    at = None if note.at_us is None else clock.at_ms(note.at_us / 1000)
    took = None if note.took_ms is None else note.took_ms / 1000
    return Failure(at, note.where or None, took, *split_reason(note.reason))


def _split(payload: bytes) -> tuple[bytes, Mapping[str, str], bytes | None]:
    try:
        return split_saved(payload)
    except ValueError:
        return payload, {}, None


def _saved(text: bytes) -> Saved:
    try:
        return saved.decode(text)
    except CodecError:  # its bytes are shown instead
        return Saved()


def _decoded(payload: bytes, codec: Codec[T]) -> T | None:
    try:
        return codec.decode(payload)
    except KeyboardInterrupt:
        raise
    except BaseException:  # of any codec; the bytes are shown instead
        return None


def _state(record: ItemRecord, left: float) -> ItemState:
    match record.state:
        case State.CLAIMED:
            return "claimed"
        case State.DEAD:
            return "dead"
        case _:
            return "scheduled" if left > 0 else "ready"


def ended_item(row: EndedRow) -> EndedItem:
    """Describe an item that has ended, as a server has just told it."""
    took_us, (reason, _) = int(row.took_us), split_reason(last_reason(row.text))
    return EndedItem(
        row.id.decode(errors="replace"),
        _ENDS[row.state],
        clock.after(-int(row.age_us) / 1_000_000),
        None if took_us < 0 else took_us / 1_000_000,
        row.owner.decode(errors="replace") or None,
        row.attempts,
        row.key.decode(errors="replace") or None,
        row.group.decode(errors="replace") or None,
        reason,
    )
