"""Parse the words of a command, and format pairs for a reply."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple

from zkrq.testing.redis.keyspace import Bound, NameBound
from zkrq.testing.redis.replies import NOT_AN_INTEGER, SYNTAX, Refusal, number_text, wrong_arity

LONG = 1 << 63
"""Bound of integers, exclusive."""


def integer(text: bytes, refusal: str = NOT_AN_INTEGER) -> int:
    """Parse an integer as Redis writes it.  Raises ``Refusal``."""
    try:
        number = int(text)
    except ValueError:
        raise Refusal(refusal) from None
    if b"%d" % number != text or not -LONG <= number < LONG:
        raise Refusal(refusal)
    return number


def floating(text: bytes, refusal: str = "ERR value is not a valid float") -> float:
    try:
        number = float(text)
    except ValueError:
        raise Refusal(refusal) from None
    if math.isnan(number):
        raise Refusal(refusal)
    return number


def bound(text: bytes) -> Bound:
    exclusive = text.startswith(b"(")
    return Bound(floating(text[exclusive:], "ERR min or max is not a float"), exclusive)


def name_bound(text: bytes) -> NameBound:
    """Parse one end of a range of names: ``-``, ``+``, ``[name`` or ``(name``."""
    if text in (b"-", b"+"):
        return NameBound(b"", exclusive=False, edge=1 if text == b"+" else -1)
    if text[:1] not in (b"[", b"("):
        raise Refusal("ERR min or max not valid string range item")
    return NameBound(text[1:], exclusive=text[:1] == b"(", edge=0)


class Span(NamedTuple):
    """Positions from first to last, both included; negative ones count from the end."""

    first: int
    last: int

    def of(self, length: int) -> slice:
        """Return the slice of these positions in a list of ``length``."""
        first = self.first if self.first >= 0 else max(0, self.first + length)
        last = self.last if self.last >= 0 else max(-1, self.last + length)
        return slice(first, last + 1)


def span(start: bytes, stop: bytes) -> Span:
    return Span(integer(start), integer(stop))


def pairs(name: str, words: tuple[bytes, ...]) -> Iterable[tuple[bytes, bytes]]:
    if len(words) % 2:
        raise Refusal(wrong_arity(name))
    return zip(words[::2], words[1::2], strict=True)


def flat(pairs: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    return list(chain.from_iterable(pairs))


def scored(ranked: Iterable[tuple[float, bytes]], with_scores: bool = True) -> list[bytes]:
    if with_scores:
        return flat((member, number_text(score)) for score, member in ranked)
    return [member for _, member in ranked]


def optional_count(name: str, words: tuple[bytes, ...]) -> int | None:
    if len(words) > 1:
        raise Refusal(wrong_arity(name) if name == "LPOP" else SYNTAX)
    if not words:
        return None
    out_of_range = "ERR value is out of range, must be positive"
    count = integer(words[0], out_of_range)
    if count < 0:
        raise Refusal(out_of_range)
    return count
