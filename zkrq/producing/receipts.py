"""Make receipts of what the protocol says of a push, and hold those of many in a few bytes each."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import overload

from zkrq.base.errors import ConfigError, FlowEnded, OutcomeUnknown, QueueFull, Receipt, Receipts, ZkrqError
from zkrq.producing.options import out_of_order
from zkrq.protocol.calls import item_id
from zkrq.protocol.clocks import PUT_WINDOW
from zkrq.protocol.pushing import (
    Done,
    Duplicate,
    Exceptional,
    FlowOver,
    Full,
    InDoubt,
    Known,
    NotPushed,
    OutOfOrder,
    Pushes,
    Replaced,
)
from zkrq.protocol.records import BUNDLE_MAX
from zkrq.replication.causes import UNKNOWN, Causes
from zkrq.replication.runner import translate

Results = Sequence[int | Receipt | ZkrqError]
"""What became of items: a number is that of the servers that hold a new item."""


class BundleIds(Sequence[str]):
    """The ids of the items of a bundle, stored as the bundle's and their number."""

    __slots__ = ("_bundle", "_size")

    def __init__(self, bundle: str, size: int) -> None:
        self._bundle = bundle
        self._size = size

    @property
    def bundle(self) -> str:
        """The id of the bundle."""
        return self._bundle

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        positions = range(self._size)[index]
        return [self._id(at) for at in positions] if isinstance(positions, range) else self._id(positions)

    def __iter__(self) -> Iterator[str]:
        bundle = self._bundle
        return iter([bundle + ending for ending in _ENDINGS[: self._size]])

    def _id(self, position: int) -> str:
        return self._bundle + _ENDINGS[position]


_ENDINGS = [item_id("", position) for position in range(BUNDLE_MAX)]


class PackedReceipts(Receipts):
    """Collect the results of a ``push_many``, bundle by bundle.

    The ids of a bundle are kept as its own and their number, its results as one byte each (the number of servers that
    hold the item); only what is not as usual takes an object each: duplicates, errors.
    """

    def __init__(self) -> None:
        self._ids: list[Sequence[str]] = []
        self._starts: list[int] = []
        self._results: list[bytes] = []
        self._others: dict[int, Receipt | ZkrqError] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def outcome(self, index: int) -> Receipt | ZkrqError:
        at = index + self._length if index < 0 else index
        if not 0 <= at < self._length:
            raise IndexError(index)
        if at in self._others:
            return self._others[at]
        part = bisect_right(self._starts, at) - 1
        within = at - self._starts[part]
        return Receipt(self._ids[part][within], self._results[part][within])

    @property
    def errors(self) -> list[ZkrqError]:
        return [outcome for outcome in self._others.values() if isinstance(outcome, ZkrqError)]

    def add(self, ids: Sequence[str], results: Results) -> None:
        """Append the results of one call, in the order of its ids."""
        self._ids.append(ids)
        self._starts.append(self._length)
        self._results.append(bytes(result if isinstance(result, int) else 0 for result in results))
        for at, result in enumerate(results):
            if not isinstance(result, int):
                self._others[self._length + at] = result
        self._length += len(results)


def results_of(pushes: Pushes, at: int, ids: Sequence[str], causes: Causes, *, are_named: bool) -> Results:
    """Return the result of each item of one put.  ``are_named``: the caller gave the ids."""
    copies, exceptional, _ = pushes
    if not exceptional:
        return [copies] * len(ids)
    found = [exceptional.get((at, position)) for position in range(len(ids))]
    return [
        copies if told is None else outcome(id, told, is_named=are_named, causes=causes)
        for id, told in zip(ids, found, strict=True)
    ]


def outcome(id: str, told: Exceptional, *, is_named: bool, causes: Causes = UNKNOWN) -> Receipt | ZkrqError:
    """Return the receipt of a push that was not as usual, or the error to raise.

    ``is_named``: the caller gave the id.  An id that the library made is known only from an earlier try of this very
    push, so the item is new.  ``causes``: what errors say about servers that are not in sync.
    """
    match told:
        case Duplicate(first, copies, is_gone):
            return Receipt(first, copies, duplicate=True, done=is_gone, new=False)
        case Replaced(ids, copies):
            return Receipt(id, copies, replaced=ids)
        case Known(copies, in_doubt, replaced) | Done(copies, in_doubt, replaced):
            is_new = (None if in_doubt else False) if is_named else True
            return Receipt(id, copies, done=isinstance(told, Done), new=is_new, replaced=replaced)
        case Full():
            return QueueFull()
        case FlowOver():
            return FlowEnded()
        case OutOfOrder():
            return out_of_order("a delay or a priority")
        case InDoubt(reason, cause):
            why = f" ({reason})" if reason else ""
            text = causes.add_to(f"the push of {id} may have happened{why}; push again with the same id", cause)
            error = OutcomeUnknown(text, ids=(id,))
            error.__cause__ = translate(cause, causes) if cause else None
            return error
        case NotPushed(cause):
            return translate(cause, causes)
        case _:
            return ConfigError(
                f"the push of {id} was refused, nothing was written: its id is older than {PUT_WINDOW:g} s, or the "
                f"clock here differs from the servers' by more than that"
            )
