"""Define options of a queue: what it keeps, its limits, its groups."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, cast
from urllib.parse import unquote

from zkrq.base.checks import (
    Duration,
    check_count,
    check_duration,
    check_group,
    check_kind,
    check_rate_in,
    in_seconds,
)
from zkrq.base.codecs import JSON, Codec, call_codec
from zkrq.base.errors import ConfigError, PayloadTooLarge
from zkrq.base.meant import names_fields

DEAD_LETTERS_MAX = 100_000
"""Dead letters that a queue keeps by default."""


@names_fields("zkrq.DeadLetters")
@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Limits of a queue's dead letters: their number, and their age in seconds; None: no limit.  The oldest are removed
    first.

    ``expired``: items that outlive their ``ttl`` become dead letters too, with the reason "expired"; otherwise they are
    dropped.  Like ``Limits`` all of them belong to the queue.  The calls that bury and those that claim enforce them.
    """

    max_count: int | None = DEAD_LETTERS_MAX
    max_age: Duration | None = None
    expired: bool = False

    def __post_init__(self) -> None:
        if self.max_count is not None:
            check_count("max_count", self.max_count, least=1)
        if self.max_age is not None:
            check_duration("max_age", self.max_age, positive=True)

    @property
    def max_age_ms(self) -> int:
        """``max_age`` in milliseconds, 0 if it is None."""
        return 0 if self.max_age is None else max(1, round(check_duration("max_age", self.max_age) * 1000))

    def __str__(self) -> str:
        count = "all dead letters" if self.max_count is None else f"{self.max_count:,} dead letters"
        age = "" if self.max_age is None else f" of at most {self.max_age_ms / 1000:g} s"
        return f"{count}{age}" + (", expired items among them" if self.expired else "")

    @property
    def settings(self) -> str:
        """As they are stored (``lua/_limits.lua``)."""
        age = f",age={self.max_age_ms}" if self.max_age_ms else ""
        return f"count={self.max_count or 0}{age}" + (",expired=1" if self.expired else "")

    @staticmethod
    def read(text: str) -> DeadLetters:
        """Read the limits in a queue's record."""
        return DeadLetters.of(_section("letters", text))

    @staticmethod
    def of(settings: str) -> DeadLetters:
        """Read them as they are stored; the defaults if nothing is."""
        if not settings:
            return DeadLetters()
        age_ms = _number("age", settings)
        return DeadLetters(
            _number("count", settings) or None, age_ms / 1000 if age_ms else None, _has("expired", settings)
        )


R = TypeVar("R")

RESULT_BYTES = 32 * 1024
"""Bytes of an encoded result, at most: results are kept in the memory of every server."""

RESULT_TTL_LEAST, RESULT_TTL_MAX = 1.0, 30 * 86400.0
"""Seconds for which a result may be kept."""


_DEFAULT_CODEC: Any = JSON


@dataclass(frozen=True)  # not slots: Python 3.11 fails on ``Results[int](...)`` with both
class Results(Generic[R]):
    """Keep what the handlers of a queue return, for callers of ``queue.result``.

    ``ttl``: seconds for which a result is kept, 1 second to 30 days, default one hour; like ``Limits`` it belongs to
    the queue.  ``codec``: how results become bytes, at most 32 KiB each, default ``JSON``.  A result of None takes no
    bytes, and comes back as None.  Raises ``ConfigError`` for a bad ``ttl``.
    """

    ttl: Duration = 3600.0
    codec: Codec[R] = _DEFAULT_CODEC

    def __post_init__(self) -> None:
        object.__setattr__(self, "ttl", _check_ttl(self.ttl))

    @property
    def ttl_ms(self) -> int:
        """``ttl`` in milliseconds."""
        return round(cast("float", self.ttl) * 1000)

    def encode(self, result: R | None) -> bytes:
        """Return the bytes of a result.  Raises ``CodecError``, ``PayloadTooLarge``."""
        if result is None:
            return b""
        return check_result(call_codec(self.codec.encode, result, f"the result cannot be encoded as {self.codec.name}"))

    def decode(self, text: bytes) -> R | None:
        """Return the result of these bytes.  Raises ``CodecError``."""
        if not text:
            return None
        return call_codec(self.codec.decode, text, f"the result cannot be decoded as {self.codec.name}")


CONCURRENCY_MAX = 1_000_000
"""Greatest limit of items claimed at the same time."""

RATE_MAX = 1_000_000
"""Greatest number of claims in a rate."""

RATE_SECONDS = 0.1, 3600.0
"""Shortest and longest time of a rate, in seconds."""

NAMED_GROUPS_MAX = 50
"""Groups of a queue that have limits of their own."""

NAMED_GROUPS_BYTES = 4096
"""Bytes of all their names and limits as they are stored: servers read them with each claim and ack of the queue."""


@names_fields("zkrq.Limits")
@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a queue over all workers and processes.  ``Limits()`` removes the limits that a queue has.

    ``concurrency``: greatest number of items claimed at the same time; None: no limit.  ``rate``: greatest number of
    claims begun within a time, and that time in seconds (0.1 to 3600) or as a ``timedelta``: ``(50, 1.0)`` is 50 in any
    second; None: no limit.

    They hold through failovers.  With several shards every item of the queue goes to its home.  Nothing is claimed
    ahead from a queue with limits.  Raises ``ConfigError`` for bad values.
    """

    concurrency: int | None = None
    rate: tuple[int, Duration] | None = None

    def __post_init__(self) -> None:
        if self.concurrency is not None:
            check_count("concurrency", self.concurrency, least=1, most=CONCURRENCY_MAX)
        if self.rate is not None:
            object.__setattr__(self, "rate", check_rate_in("rate", self.rate, most=RATE_MAX, within=RATE_SECONDS))

    def __str__(self) -> str:
        return ", ".join(_said(self.concurrency, self.rate)) or "no limits"

    @property
    def settings(self) -> str:
        """As they are stored (``lua/_limits.lua``)."""
        return _settings(self.concurrency, self.rate)

    @staticmethod
    def read(text: str) -> Limits:
        """Read the limits in a queue's record, or in their part of it; settings of newer versions are skipped."""
        return Limits.of(_section("limits", text))

    @staticmethod
    def of(settings: str) -> Limits:
        """Read limits as they are stored."""
        return Limits(*_read(settings))


@names_fields("zkrq.Groups")
@dataclass(frozen=True, slots=True)
class Groups:
    """Put every item of a queue into a group: items that are pushed without a ``group`` form one group.

    Without this option each such item has a place in line of its own, like a whole group.  ``by_task``: those with a
    task form a group for each task, of its name.  Give all producers of the queue the same option.

    ``concurrency``: greatest number of items of each group claimed at the same time, over all workers and processes;
    None: this program declares no such limit.  ``ordered``: each group keeps the order of its pushes, and has one item
    claimed at a time; an item that failed holds its group until it has succeeded or is a dead letter (but see
    ``Retry``).  A push into such a queue has neither ``delay`` nor ``at`` nor ``priority``, and costs a round trip
    more.  ``rate``: greatest number of claims of each group begun within a time, and that time in seconds (0.1 to 3600)
    or as a ``timedelta``: ``(50, 1.0)`` is 50 in any second; None: this program declares no rate.

    ``named``: limits of single groups by name, in place of those of each group; ``Limits()``: none for that group.  At
    most 50, and without ``concurrency`` where groups keep an order.  It needs level 2.

    Like ``Limits`` all of these belong to the queue; ``by_task`` belongs to the program.  Raises ``ConfigError`` for
    bad values.
    """

    concurrency: int | None = None
    ordered: bool = False
    rate: tuple[int, Duration] | None = None
    named: Mapping[str, Limits] = field(default_factory=dict[str, Limits], hash=False)
    by_task: bool = False

    def __post_init__(self) -> None:
        check_kind("ordered", self.ordered, bool)
        check_kind("by_task", self.by_task, bool)
        if not isinstance(self.named, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"named must be a mapping of limits, not {type(self.named).__name__}")
        object.__setattr__(self, "named", dict(sorted(self.named.items())))
        if self.concurrency is not None:
            check_count("concurrency", self.concurrency, least=1, most=CONCURRENCY_MAX)
            if self.ordered:
                raise _out_of_order(f"concurrency is {self.concurrency}")
        if self.rate is not None:
            object.__setattr__(self, "rate", check_rate_in("rate", self.rate, most=RATE_MAX, within=RATE_SECONDS))
        if self.named:
            self._check_named()

    def _check_named(self) -> None:
        check_count("the number of named groups", len(self.named), most=NAMED_GROUPS_MAX)
        for name, limits in self.named.items():
            check_group("the name of a group", name)
            if not isinstance(limits, Limits):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigError(f"the limits of group {name!r} must be a Limits, not {type(limits).__name__}")
            if self.ordered and limits.concurrency is not None:
                raise _out_of_order(f"concurrency of group {name!r} is {limits.concurrency}")
        if (size := len(_named(self.named))) > NAMED_GROUPS_BYTES:
            raise ConfigError(f"the named groups take {size} bytes, at most {NAMED_GROUPS_BYTES} are allowed")

    def __str__(self) -> str:
        said = _said(self.concurrency, self.rate)
        if self.ordered:
            text = ", ".join(("in order", *said)) + " within each group"
        else:
            text = ", ".join(said) + " in each group" if said else ""
        named = ", ".join(f"{limits} in group {name!r}" for name, limits in self.named.items())
        return ", but ".join(filter(None, (text, named))) or "no limits of groups"

    @property
    def at_once(self) -> int | None:
        """Items of each group that may be claimed at the same time; None: any number."""
        return 1 if self.ordered else self.concurrency

    def limits_of(self, group: str) -> Limits:
        """Return the limits of a group; one that keeps the order has one item claimed at a time."""
        own = self.named.get(group) or Limits(self.concurrency, self.rate)
        return Limits(1, own.rate) if self.ordered else own

    @property
    def settings(self) -> str:
        """As they are stored (``lua/_limits.lua``)."""
        ordered = "ordered=1" if self.ordered else ""
        named = f"named={_named(self.named)}" if self.named else ""
        return ",".join(filter(None, (ordered, _settings(self.concurrency, self.rate), named)))

    @staticmethod
    def read(text: str) -> Groups:
        """Read the limits of groups in a queue's record; settings of newer versions are skipped."""
        return Groups.of(_section("groups", text))

    @staticmethod
    def of(settings: str) -> Groups:
        """Read limits of groups as they are stored."""
        concurrency, rate = _read(settings)
        ordered, named = _has("ordered", settings), _read_named(settings)
        return Groups(None if ordered else concurrency, ordered, rate, named)


def _out_of_order(given: str) -> ConfigError:
    return ConfigError(f"{given}, but with ordered=True a group has one item claimed at a time: leave concurrency out")


HISTORY_MAX = 10_000
"""Items that the history of a queue has, at most: each keeps its tombstone in the memory of every server."""


@dataclass(frozen=True, slots=True)
class History:
    """How many of the items that have ended last a queue keeps; 0: none.  Raises ``ConfigError`` for a bad number."""

    count: int = 0

    def __post_init__(self) -> None:
        check_count("history", self.count, most=HISTORY_MAX)

    def __str__(self) -> str:
        return f"a history of {self.count:,} items" if self.count else "no history"

    @property
    def settings(self) -> str:
        """As it is stored (``lua/_limits.lua``)."""
        return f"keep={self.count}" if self.count else ""

    @staticmethod
    def read(text: str) -> History:
        """Read the history in a queue's record."""
        return History.of(_section("history", text))

    @staticmethod
    def of(settings: str) -> History:
        """Read it as it is stored."""
        return History(_number("keep", settings) or 0)


@dataclass(frozen=True, slots=True)
class Size:
    """How many items a queue may have, queued, scheduled and claimed together; None: any number.  Raises
    ``ConfigError`` for a bad number."""

    max: int | None = None

    def __post_init__(self) -> None:
        if self.max is not None:
            check_count("max_size", self.max, least=1)

    def __str__(self) -> str:
        return "any number of items" if self.max is None else f"at most {self.max:,} items"

    @property
    def settings(self) -> str:
        """As it is stored (``lua/_limits.lua``)."""
        return "" if self.max is None else f"max={self.max}"

    @staticmethod
    def read(text: str) -> Size:
        """Read the limit in a queue's record."""
        return Size.of(_section("size", text))

    @staticmethod
    def of(settings: str) -> Size:
        """Read it as it is stored."""
        return Size(_number("max", settings) or None)


@dataclass(frozen=True, slots=True)
class ResultTtl:
    """Seconds for which results of a queue's items are kept; None: as each program says.  Raises ``ConfigError``."""

    seconds: Duration | None = None

    def __post_init__(self) -> None:
        if self.seconds is not None:
            object.__setattr__(self, "seconds", _check_ttl(self.seconds))

    def __str__(self) -> str:
        return "results as each program says" if self.in_seconds is None else f"results for {self.in_seconds:g} s"

    @property
    def in_seconds(self) -> float | None:
        """The same as a number."""
        return None if self.seconds is None else in_seconds(self.seconds)

    @property
    def settings(self) -> str:
        """As they are stored (``lua/_limits.lua``)."""
        return "" if self.in_seconds is None else f"ttl={round(self.in_seconds * 1000)}"

    @staticmethod
    def read(text: str) -> ResultTtl:
        """Read the time in a queue's record."""
        return ResultTtl.of(_section("results", text))

    @staticmethod
    def of(settings: str) -> ResultTtl:
        """Read it as it is stored."""
        ttl_ms = _number("ttl", settings)
        return ResultTtl(ttl_ms / 1000 if ttl_ms else None)


Declared: TypeAlias = Limits | Groups | History | Size | DeadLetters | ResultTtl
"""What belongs to a queue and not to a process: a section of its record each."""


class QueueSettings(NamedTuple):
    """What a queue promises, whichever program or operator has declared it: its limits, those of each group and their
    order; how many items that have ended it keeps; how many it may have, None: any number; its dead letters; seconds
    for which results are kept, None: as each program says."""

    limits: Limits = Limits()
    groups: Groups = Groups()
    history: int = 0
    max_size: int | None = None
    dead_letters: DeadLetters = DeadLetters()
    results_ttl: float | None = None

    def __str__(self) -> str:
        """Say those that differ from the defaults."""
        history, size, ttl = History(self.history), Size(self.max_size), ResultTtl(self.results_ttl)
        said = [str(part) for part in (self.limits, self.groups, size, history, ttl) if part.settings]
        return "; ".join([*said, str(self.dead_letters)] if self.dead_letters != DeadLetters() else said)


def mark_of(settings: str) -> str:
    """Return a short name of what a program declares, by which it is known again: eight hexadecimal digits."""
    return hashlib.blake2b(settings.encode(), digest_size=4).hexdigest()


def marks_in(settings: str) -> dict[str, list[str]]:
    """Return the marks of each section, as the section ``marks`` of a queue's record has them."""
    parts = (word.partition("=") for word in settings.split(","))
    return {section: marks.split(".") for section, _, marks in parts}


def origins_of(sections: Mapping[str, str]) -> dict[str, str]:
    """Say of each section of a queue's record who has set what it says, or has taken it away: ``code``, if a program
    has declared that, or an ``operator``."""
    marks = marks_in(sections.get("marks", ""))
    names = ({*sections, *marks} - {"marks"}) - {""}
    return {
        name: "code" if mark_of(sections.get(name, "")) in marks.get(name, ()) else "operator" for name in sorted(names)
    }


def sections_of(text: str) -> dict[str, str]:
    """Return the settings of each section in a queue's record, also of those that only newer versions know.

    Of several sections of one name, which only a damaged record has, the first one counts, as for the servers.
    """
    parts = (word.partition(":") for word in reversed(text.split()))
    return {name: settings for name, colon, settings in parts if name and colon}


def _section(name: str, text: str) -> str:
    """Return the settings of a section of a queue's record, empty without it."""
    return sections_of(text).get(name, "")


def _said(concurrency: int | None, rate: tuple[int, Duration] | None) -> list[str]:
    said = [] if concurrency is None else [f"{concurrency:,} at once"]
    return said if rate is None else [*said, f"{rate[0]:,} in {in_seconds(rate[1]):g} s"]


def _settings(concurrency: int | None, rate: tuple[int, Duration] | None) -> str:
    words = [] if concurrency is None else [f"concurrency={concurrency}"]
    return ",".join(words if rate is None else [*words, f"rate={rate[0]}/{round(in_seconds(rate[1]) * 1000)}"])


def _named(groups: Mapping[str, Limits]) -> str:
    """Return the limits of named groups as they are stored."""
    words: list[str] = []
    for name, limits in groups.items():
        rate = "/" if limits.rate is None else f"{limits.rate[0]}/{round(in_seconds(limits.rate[1]) * 1000)}"
        safe = _UNSAFE.sub(lambda byte: b"%%%02X" % byte[0][0], name.encode()).decode()
        words.append(f"{safe}/{'' if limits.concurrency is None else limits.concurrency}/{rate}")
    return ";".join(words)


_UNSAFE = re.compile(rb"[^A-Za-z0-9_.-]")
"""Bytes of a name that are stored as ``%`` and two hexadecimal digits."""

_NAMED_GROUP = re.compile(r"([^/;]+)/(\d*)/(?:(\d+)/(\d+)|/)")
"""A named group as it is stored: its name, concurrency, and the count and the milliseconds of its rate."""


def _read_named(settings: str) -> dict[str, Limits]:
    """Read the limits of named groups; those that no client writes are skipped."""
    named = re.search(r"(?:^|,)named=([^,]*)", settings)
    found: dict[str, Limits] = {}
    for word in named[1].split(";")[:NAMED_GROUPS_MAX] if named else ():
        if match := _NAMED_GROUP.fullmatch(word):
            name, concurrency, count, milliseconds = match.groups()
            rate = (int(count), int(milliseconds) / 1000) if count else None
            with suppress(ConfigError):
                limits = Limits(int(concurrency) if concurrency else None, rate)
                found[check_group("the name of a group", unquote(name))] = limits
    return found


def _number(name: str, settings: str) -> int | None:
    """Return the number of this name in the settings of a section, None without it."""
    own = re.search(rf"(?:^|,){name}=(\d+)", settings)
    return int(own[1]) if own else None


def _has(name: str, settings: str) -> bool:
    return re.search(rf"(?:^|,){name}=1", settings) is not None


def _check_ttl(ttl: Duration) -> float:
    seconds = check_duration("the ttl of results", ttl)
    if not RESULT_TTL_LEAST <= seconds <= RESULT_TTL_MAX:
        raise ConfigError(
            f"the ttl of results is {seconds:g} s: must be at least {RESULT_TTL_LEAST:g} s and at most "
            f"{RESULT_TTL_MAX:.0f} s"
        )
    return seconds


def _read(settings: str) -> tuple[int | None, tuple[int, float] | None]:
    """Read concurrency and rate as ``_settings`` writes them."""
    rate = re.search(r"(?:^|,)rate=(\d+)/(\d+)", settings)
    return _number("concurrency", settings), (int(rate[1]), int(rate[2]) / 1000) if rate else None


def check_result(text: bytes) -> bytes:
    """Return an encoded result.  Raises ``PayloadTooLarge``."""
    if len(text) > RESULT_BYTES:
        said = f"the encoded result has {len(text)} bytes, at most {RESULT_BYTES} are kept; the item was not acked"
        raise PayloadTooLarge(len(text), RESULT_BYTES, said)
    return text
