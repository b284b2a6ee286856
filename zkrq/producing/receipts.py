"""Hold the receipts of many pushes in a few bytes each."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import overload

from zkrq.base.errors import Receipt, Receipts, ZkrqError
from zkrq.protocol.calls import item_id
from zkrq.protocol.records import BUNDLE_MAX
from zkrq.replication.replicas import Done, Duplicate, Pushed

Results = Sequence[Pushed | ZkrqError]


class BundleIds(Sequence[str]):
    """The ids of the items of a bundle, stored as the bundle's and their number."""

    __slots__ = ("_bundle", "_size")

    def __init__(self, bundle: str, size: int) -> None:
        self._bundle = bundle
        self._size = size

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
                is_error = isinstance(result, ZkrqError)
                self._others[self._length + at] = result if is_error else receipt(ids[at], result, is_named=False)
        self._length += len(results)


def receipt(id: str, result: Pushed, *, is_named: bool) -> Receipt:
    """Make the receipt of one push.  ``is_named``: the caller gave the id; another id is known only from this push."""
    if isinstance(result, int):
        return Receipt(id, result)
    if isinstance(result, Duplicate):
        return Receipt(result.first, result.replicas, duplicate=True, new=False)
    is_new = (None if result.in_doubt else False) if is_named else True
    return Receipt(id, result.replicas, done=isinstance(result, Done), new=is_new)
