"""User code that raises anything: exceptions of every class, with odd texts, alone and in groups."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from concurrent import futures
from dataclasses import dataclass
from typing import Any

import zkrq


class TimedOut(BaseException):
    """As libraries have them that must not be caught by ``except Exception``."""


class Textless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Exits(Exception):
    """Ends the program where it is told."""

    def __str__(self) -> str:
        raise SystemExit(7)

    __repr__ = __str__


class NoText(Exception):
    def __str__(self) -> Any:
        return None


class Endless(Exception):
    def __str__(self) -> str:
        return str(self)

    __repr__ = __str__


class Empty(Exception):
    """False, as a collection of errors may be."""

    def __len__(self) -> int:
        return 0


@dataclass(frozen=True)
class Frozen(Exception):
    """Nothing can be noted on it."""

    code: int = 5


class Untold(zkrq.Reject):
    """Has no reason at all."""

    def __init__(self) -> None:
        pass


class Garbled(zkrq.RetryLater):
    """Has a delay that is none."""

    def __init__(self) -> None:
        super().__init__(0)
        self.delay: Any = "soon"
        self.reason: Any = 5


CLASSES: list[Callable[[str], BaseException]] = [
    ValueError,
    KeyError,
    TimeoutError,
    SystemExit,
    GeneratorExit,
    StopIteration,
    StopAsyncIteration,
    asyncio.CancelledError,
    futures.CancelledError,
    MemoryError,
    RecursionError,
    asyncio.QueueEmpty,
    asyncio.InvalidStateError,
    lambda text: UnicodeDecodeError("utf-8", text.encode(errors="replace"), 0, 1, text),
    lambda text: OSError(2, text, text),
    TimedOut,
    lambda _: Textless(),
    lambda _: Exits(),
    lambda _: NoText(),
    lambda _: Endless(),
    Empty,
    lambda _: Frozen(),
    zkrq.ClaimLost,
    zkrq.OutcomeUnknown,
    zkrq.Closed,
    zkrq.CodecError,
    zkrq.ConfigError,
]
"""Each makes an exception of a text, which is a failure."""

WISHES: list[Callable[[str], BaseException]] = [
    zkrq.Reject,
    lambda text: zkrq.Reject(ValueError(text)),
    lambda _: zkrq.Reject(Textless()),
    lambda _: zkrq.Reject(5),  # type: ignore[arg-type]
    lambda _: Untold(),
]
"""Each makes an exception of a text, which rejects the item."""

LATER: list[Callable[[str], BaseException]] = [
    lambda text: zkrq.RetryLater(0, text),
    lambda text: zkrq.RetryLater(0, ValueError(text)),
    lambda _: zkrq.RetryLater(0, NoText()),
    lambda _: Garbled(),
]

TEXTS = ["", "plain", "a\0b\nc\r\n$5\r\n", "caf\udce9", "x" * 100_000, "\u202e {0} %s %d", "é" * 600]


def one(chance: random.Random, makes: list[Callable[[str], BaseException]]) -> BaseException:
    """Make one exception of these classes, perhaps with causes, one of them itself."""
    error = chance.choice(makes)(chance.choice(TEXTS))
    if chance.random() < 0.2:
        cause: BaseException = error
        for _ in range(chance.choice([1, 50])):
            inner = chance.choice(CLASSES)("cause")
            BaseException.__setattr__(cause, "__cause__", inner)
            cause = inner
        BaseException.__setattr__(cause, "__context__", error)
    return error


def some(chance: random.Random, makes: list[Callable[[str], BaseException]], depth: int = 3) -> BaseException:
    """Make one exception, or a group, perhaps of groups."""
    if depth == 0 or chance.random() < 0.6:
        return one(chance, makes)
    return BaseExceptionGroup("together", [some(chance, makes, depth - 1) for _ in range(chance.choice([1, 2, 7]))])


def numbered(mixed: int = 10) -> list[BaseException]:
    """Make one exception of each class, then some that are mixed: in every process the same."""
    chance = random.Random(47)
    return [make("text") for make in CLASSES] + [some(chance, CLASSES) for _ in range(mixed)]
