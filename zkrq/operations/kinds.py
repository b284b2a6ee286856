"""Say what values a parameter of an operation takes: their check, how a word is read as one, and their bounds.

A face that has a schema of its own (JSON, a database) makes it from the fields of these classes.
"""

from __future__ import annotations

import ast
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar, Generic, TypeVar, cast

from zkrq.base import clock
from zkrq.base.checks import (
    MAX_DURATION,
    MAX_HEADERS,
    Duration,
    check_count,
    check_duration,
    check_headers,
    check_moment,
    check_text,
    number_of_seconds,
    read_duration,
)
from zkrq.base.errors import ConfigError

T = TypeVar("T")


class Kind(ABC, Generic[T]):
    """A kind of values."""

    metavar: ClassVar[str]
    """What stands for a value in the usage of a command."""

    @abstractmethod
    def check(self, name: str, value: Any) -> T:
        """Return the value as the library uses it.  Raises ``ConfigError``, which names the parameter."""

    def parse(self, text: str) -> Any:
        """Read a word, of a command line or a label, as a value to be checked.

        Raises ``ValueError``, which says what the word must be.
        """
        return text

    def read(self, told: Any) -> Any:
        """Take a value as it is, or read the text that a framework has made of it.  Raises ``ValueError``."""
        return self.parse(told) if isinstance(told, str) else told

    def tell(self, value: Any) -> Any:
        """Return a value as JSON has it."""
        return value


@dataclass(frozen=True, slots=True)
class Text(Kind[str]):
    """A text of ``least`` to ``most`` characters, None: any number; or of bytes in UTF-8, by a check of its own: an id,
    a key, a name."""

    metavar: ClassVar[str] = "TEXT"
    most: int | None = None
    least: int = 1
    checked: Callable[[str, Any], str] | None = None
    pattern: str | None = None

    def check(self, name: str, value: Any) -> str:
        if self.checked:
            return self.checked(name, value)
        length = len(check_text(name, value))
        if length < self.least or (self.most is not None and length > self.most):
            most = "" if self.most is None else f", at most {self.most}"
            raise ConfigError(f"{name} has {length} characters: must have at least {self.least}{most}")
        return value


@dataclass(frozen=True, slots=True)
class Seconds(Kind[float]):
    """A duration in seconds, or a ``timedelta``: ``least`` to ``most``, or more than 0 if it is ``positive``."""

    metavar: ClassVar[str] = "DURATION"
    least: float = 0.0
    most: float = MAX_DURATION
    positive: bool = False

    def check(self, name: str, value: Duration) -> float:
        if not self.least and self.most == MAX_DURATION:
            return check_duration(name, value, positive=self.positive)
        seconds = number_of_seconds(name, value)
        if not self.least <= seconds <= self.most:  # NaN is outside
            raise ConfigError(
                f"{name} is {seconds:g} s: must be at least {self.least:g} s and at most {self.most:.0f} s"
            )
        return float(seconds)

    def parse(self, text: str) -> float:
        return read_duration(text)


@dataclass(frozen=True, slots=True)
class Count(Kind[int]):
    """An integer of ``least`` to ``most``, None: any."""

    metavar: ClassVar[str] = "N"
    least: int = 0
    most: int | None = None

    def check(self, name: str, value: Any) -> int:
        return check_count(name, value, least=self.least, most=self.most)

    def parse(self, text: str) -> int:
        try:
            return int(text)
        except ValueError as error:
            raise ValueError("must be an integer") from error


@dataclass(frozen=True, slots=True)
class Number(Kind[float]):
    """A number of ``least`` to ``most``."""

    metavar: ClassVar[str] = "NUMBER"
    least: float = -math.inf
    most: float = math.inf

    def check(self, name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{name} must be a number, not {type(value).__name__}")
        if not self.least <= value <= self.most:
            raise ConfigError(f"{name} is {value:g}: must be at least {self.least:g} and at most {self.most:g}")
        return float(value)

    def parse(self, text: str) -> float:
        try:
            return float(text)
        except ValueError as error:
            raise ValueError("must be a number") from error


@dataclass(frozen=True, slots=True)
class Flag(Kind[bool]):
    """Yes or no."""

    metavar: ClassVar[str] = ""

    def check(self, name: str, value: Any) -> bool:
        return bool(value)

    def parse(self, text: str) -> bool:
        if (word := text.lower()) not in _FLAGS:
            raise ValueError("must be true or false")
        return _FLAGS[word]


_FLAGS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


@dataclass(frozen=True, slots=True)
class Moment(Kind[datetime]):
    """A moment with a time zone."""

    metavar: ClassVar[str] = "TIME"

    def check(self, name: str, value: Any) -> datetime:
        return check_moment(name, value)

    def parse(self, text: str) -> datetime:
        try:
            return datetime.fromisoformat(text)
        except ValueError as error:
            raise ValueError("must be a moment, such as 2040-01-31T08:00:00+01:00") from error

    def tell(self, value: datetime) -> str:
        return value.isoformat()


@dataclass(frozen=True, slots=True)
class Past(Moment):
    """A moment with a time zone that has passed: a word may say how long ago that was."""

    metavar: ClassVar[str] = "TIME|AGO"

    def parse(self, text: str) -> datetime:
        with suppress(ValueError):
            return Moment.parse(self, text)
        try:
            return clock.now() - timedelta(seconds=read_duration(text))
        except (OverflowError, ValueError) as error:
            raise ValueError("must be a moment, such as 2040-01-31T08:00:00+01:00, or how long ago, as 12h") from error


@dataclass(frozen=True, slots=True)
class Texts(Kind[Mapping[str, str]]):
    """Texts by name, of ``most`` bytes together."""

    metavar: ClassVar[str] = "NAME=TEXT"
    most: int = MAX_HEADERS

    def check(self, name: str, value: Any) -> Mapping[str, str]:
        return check_headers(value)

    def parse(self, text: str) -> Mapping[str, str]:
        """Read one of them."""
        return dict([_pair_in(text)])

    def read(self, told: Any) -> Any:
        """Take a dict, or read the text of one, as Python writes it.  Raises ``TypeError``, too."""
        texts = ast.literal_eval(told) if isinstance(told, str) else told
        if not isinstance(texts, Mapping):
            raise TypeError("must be a dict of texts")
        return cast("Mapping[str, str]", texts)

    def tell(self, value: Mapping[str, str]) -> dict[str, str]:
        return dict(value)


@dataclass(frozen=True, slots=True)
class Header(Kind[tuple[str, str]]):
    """The name of a header and its value."""

    metavar: ClassVar[str] = "NAME=TEXT"

    def check(self, name: str, value: Any) -> tuple[str, str]:
        header, text = value
        return check_text(f"the name of {name}", header), check_text(name, text)

    def parse(self, text: str) -> tuple[str, str]:
        return _pair_in(text)


def _pair_in(text: str) -> tuple[str, str]:
    """Read a name and a text."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError("must be a name, '=' and a text, such as campaign=spring")
    return name, value


@dataclass(frozen=True, slots=True)
class Choice(Kind[str]):
    """One of some words.  ``hint``: where to find what other words may have meant."""

    metavar: ClassVar[str] = "WORD"
    words: tuple[str, ...]
    hint: str = ""

    def check(self, name: str, value: Any) -> str:
        if value not in self.words:
            hint = self.hint and f"; {self.hint}"
            raise ConfigError(f"{name} is {value!r:.100}: must be one of {', '.join(map(repr, self.words))}{hint}")
        return value


@dataclass(frozen=True, slots=True)
class Many(Kind[list[Any]]):
    """``least`` to ``most`` values of one kind, None: any number."""

    metavar: ClassVar[str] = "TEXT"
    each: Kind[Any]
    most: int | None = None
    least: int = 0

    def check(self, name: str, value: Any) -> list[Any]:
        values = list(value)
        self.check_number(name, len(values))
        return [self.each.check(name, each) for each in values]

    def check_number(self, name: str, number: int) -> None:
        """Raise ``ConfigError`` for too many values, or too few."""
        check_count(f"the number of {name}", number, least=self.least, most=self.most)

    def parse(self, text: str) -> Any:
        return [self.each.parse(each) for each in text.split(",")]

    def tell(self, value: Any) -> list[Any]:
        return [self.each.tell(each) for each in value]


@dataclass(frozen=True, slots=True)
class ByName(Kind[Mapping[str, Any]]):
    """Values of one kind by name.  ``nullable``: or None, which takes away what the name has."""

    metavar: ClassVar[str] = "NAME=TEXT"
    each: Kind[Any]
    nullable: bool = False

    def check(self, name: str, value: Any) -> Mapping[str, Any]:
        return {
            key: None if each is None and self.nullable else self.each.check(name, each) for key, each in value.items()
        }

    def tell(self, value: Mapping[str, Any]) -> dict[str, Any]:
        return {key: self.each.tell(each) for key, each in value.items()}


@dataclass(frozen=True, slots=True)
class Pair(Kind[tuple[Any, Any]]):
    """Two values of one kind."""

    metavar: ClassVar[str] = "N,N"
    each: Kind[Any]

    def check(self, name: str, value: Any) -> tuple[Any, Any]:
        one, other = value
        return self.each.check(name, one), self.each.check(name, other)


@dataclass(frozen=True, slots=True)
class Value(Kind[Any]):
    """Any value that the queue's codec, or JSON, can encode."""

    metavar: ClassVar[str] = "JSON"

    def check(self, name: str, value: Any) -> Any:
        return value


@dataclass(frozen=True, slots=True)
class Content(Value):
    """What an item, or a result, consists of: each face writes its bytes in its own way."""
