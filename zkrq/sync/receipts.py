"""Join the receipts of the parts of one ``push_many``."""

from __future__ import annotations

from bisect import bisect_right
from itertools import chain

from zkrq.base.errors import OutcomeUnknown, Receipt, Receipts, ZkrqError


class JoinedReceipts(Receipts):
    """The receipts of several calls, as if they were one."""

    def __init__(self) -> None:
        self._parts: list[Receipts] = []
        self._starts: list[int] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, part: Receipts) -> None:
        """Append the receipts of one call."""
        self._parts.append(part)
        self._starts.append(self._length)
        self._length += len(part)

    def outcome(self, index: int) -> Receipt | ZkrqError:
        at = index + self._length if index < 0 else index
        if not 0 <= at < self._length:
            raise IndexError(index)
        part = bisect_right(self._starts, at) - 1
        return self._parts[part].outcome(at - self._starts[part])

    @property
    def errors(self) -> list[ZkrqError]:
        return list(chain.from_iterable(part.errors for part in self._parts))


def join_errors(errors: list[ZkrqError]) -> ZkrqError:
    """Choose the error to raise for all parts: unknown outcomes come first, and name all their items."""
    unknown = [error for error in errors if isinstance(error, OutcomeUnknown)]
    if not unknown:
        return errors[0]
    unknown[0].ids = tuple(chain.from_iterable(error.ids for error in unknown))
    return unknown[0]
