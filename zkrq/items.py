"""Describe an item to callers that only look at it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Generic, Literal, TypeVar

from zkrq import clock
from zkrq.codecs import Codec
from zkrq.protocol.calls import Copied
from zkrq.protocol.records import Record, State, unpack
from zkrq.reasons import split

T = TypeVar("T")

ItemState = Literal["ready", "scheduled", "claimed", "dead"]


@dataclass(frozen=True, slots=True)
class Item(Generic[T]):
    """One item of a queue as it was when it was read.

    ``item`` is the content, None if it cannot be decoded; ``payload`` has its bytes then.  ``seconds_left``: until the
    item is due or its claim ends, None for ready items and dead letters.  ``expires_in``: seconds until its ``ttl``
    ends, None without one.  ``owner``: the owner id of its holder.  ``reason``: why it is dead or failed last;
    ``traceback``: a summary of the calls, innermost first; ``died_at``: when it became a dead letter.  Each is None if
    there is none. ``attempts`` counts deliveries that were not released, ``failures`` those that failed.
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


def item_of(copied: Copied, codec: Codec[T]) -> Item[T] | None:
    """Describe the item that was read; return None if it was removed, or if its push has not arrived yet."""
    record = unpack(copied.record)
    if record.state in (State.GONE, State.PAUSED) or copied.payload is None:
        return None
    left, *expires_in = (float(ms) / 1000 for ms in copied.left_ms.split())
    state = _state(record, left)
    reason, traceback = split(record.note)
    return Item(
        id=copied.id.decode(),
        item=_decoded(copied.payload, codec),
        payload=copied.payload,
        state=state,
        priority=record.priority,
        attempts=record.attempts,
        failures=record.failures,
        pushed_at=datetime.fromtimestamp(record.pushed_at_ms / 1000, UTC),
        seconds_left=left if state in ("scheduled", "claimed") else None,
        owner=record.token.rpartition("/")[0] or None if record.state is State.CLAIMED else None,
        reason=reason,
        key=record.key or None,
        traceback=traceback,
        died_at=clock.now() + timedelta(seconds=left) if state == "dead" else None,
        expires_in=expires_in[0] if expires_in else None,
    )


def _decoded(payload: bytes, codec: Codec[T]) -> T | None:
    try:
        return codec.decode(payload)
    except Exception:  # of any codec; the bytes are shown instead
        return None


def _state(record: Record, left: float) -> ItemState:
    match record.state:
        case State.CLAIMED:
            return "claimed"
        case State.DEAD:
            return "dead"
        case _:
            return "scheduled" if left > 0 else "ready"
