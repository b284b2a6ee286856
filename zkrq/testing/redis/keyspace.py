"""Define the values that a key may have, and their common rules: a key keeps its kind, and no value is empty.

Sets and hashes keep the order of insertion, so that nothing depends on the hash seed of the Python process.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from operator import itemgetter
from typing import NamedTuple, TypeVar

from zkrq.testing.redis.replies import WRONG_TYPE, Refusal


class String(bytes):
    """Made by SET."""


class Hash(dict[bytes, bytes]):
    """Field -> value."""


class Members(dict[bytes, None]):
    """A set."""


class List(list[bytes]):
    """First to last."""


class Bound(NamedTuple):
    """One end of a range of scores."""

    score: float
    exclusive: bool


class NameBound(NamedTuple):
    """One end of a range of names; ``edge``: -1 before all of them, 1 after all of them."""

    name: bytes
    exclusive: bool
    edge: int


_score, _name = itemgetter(0), itemgetter(1)


class SortedSet:
    """Member -> score, and the order by (score, member), which is computed on demand."""

    __slots__ = ("_order", "scores")

    def __init__(self, other: SortedSet | None = None) -> None:
        self.scores: dict[bytes, float] = dict(other.scores) if other else {}
        self._order: list[tuple[float, bytes]] | None = None

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def ordered(self) -> list[tuple[float, bytes]]:
        """The members with their scores, lowest score first; do not modify it."""
        if self._order is None:
            self._order = sorted((score, member) for member, score in self.scores.items())
        return self._order

    def put(self, member: bytes, score: float) -> bool:
        """Set a member's score; return whether the member is new."""
        old = self.scores.get(member)
        if old == score:
            return False
        self.scores[member] = score
        if self._order is not None:
            if old is not None:
                del self._order[bisect_left(self._order, (old, member))]
            insort(self._order, (score, member))
        return old is None

    def remove(self, member: bytes) -> bool:
        """Remove a member; return whether it existed."""
        score = self.scores.pop(member, None)
        if score is None:
            return False
        if self._order is not None:
            del self._order[bisect_left(self._order, (score, member))]
        return True

    def rank(self, member: bytes) -> int | None:
        """Return how many members come before it, None if it is not a member."""
        score = self.scores.get(member)
        return None if score is None else bisect_left(self.ordered, (score, member))

    def remove_ranks(self, ranks: slice) -> int:
        """Remove members by rank; return how many."""
        leaving = self.ordered[ranks]
        del self.ordered[ranks]
        for _, member in leaving:
            del self.scores[member]
        return len(leaving)

    def ranks(self, low: Bound, high: Bound) -> slice:
        """Return the ranks of the members with scores between these bounds."""
        order = self.ordered
        start = (bisect_right if low.exclusive else bisect_left)(order, low.score, key=_score)
        stop = (bisect_left if high.exclusive else bisect_right)(order, high.score, key=_score)
        return slice(start, max(start, stop))

    def ranks_of_names(self, low: NameBound, high: NameBound) -> slice:
        """Return the ranks of the members with names between these bounds, if all have one score."""
        edges = {-1: 0, 1: len(self.ordered)}
        start = (bisect_right if low.exclusive else bisect_left)(self.ordered, low.name, key=_name)
        stop = (bisect_left if high.exclusive else bisect_right)(self.ordered, high.name, key=_name)
        start, stop = edges.get(low.edge, start), edges.get(high.edge, stop)
        return slice(start, max(start, stop))


Value = String | Hash | Members | List | SortedSet
V = TypeVar("V", Hash, Members, List, SortedSet)

KIND_NAMES = {String: b"string", Hash: b"hash", Members: b"set", List: b"list", SortedSet: b"zset"}
"""Replies of TYPE."""


class Keyspace(dict[bytes, Value]):
    """All keys of a server, with their values."""

    def read(self, key: bytes, kind: type[V]) -> V:
        """Return the value, or for a missing key an empty one, which is not stored.  Raises ``Refusal`` for another
        kind."""
        value = self.get(key)
        if value is None:
            return kind()
        if not isinstance(value, kind):
            raise Refusal(WRONG_TYPE)
        return value

    def edit(self, key: bytes, kind: type[V]) -> V:
        """Return the value, made if missing: for a command that will certainly put something into it."""
        value = self.read(key, kind)
        self[key] = value
        return value

    def tidy(self, key: bytes, value: Hash | Members | List | SortedSet) -> None:
        """Delete a value that became empty by a removal."""
        if not value:
            self.pop(key, None)

    def copy(self) -> Keyspace:
        """Return a deep copy, in the same order."""
        return Keyspace((key, type(value)(value)) for key, value in self.items())  # pyright: ignore[reportArgumentType, reportCallIssue]

    def become(self, other: Iterable[tuple[bytes, Value]]) -> None:
        """Replace the content by the other's; this object stays, because commands are bound to it."""
        self.clear()
        self.update(other)
