"""Hold the settings of a client and of a queue, each as one frozen value that is checked when it is made.

Only this module knows the meaning, unit, default and bounds of a setting.  ``connect()``, ``found()``, ``embedded()``,
``zkrq.testing`` and ``Cluster.queue()`` take settings as keyword arguments.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final, Self, TypedDict

from zkrq.base.checks import check_count, check_duration, check_kind, check_lease, check_name, check_text, in_seconds
from zkrq.base.codecs import JSON, Codec
from zkrq.base.errors import ConfigError
from zkrq.base.limits import DeadLetters, Declared, Groups, History, Limits, Results, ResultTtl, Size
from zkrq.base.meant import unknown_option
from zkrq.base.retry import Retry
from zkrq.protocol.clocks import PUT_WINDOW
from zkrq.protocol.levels import SPOKEN

if TYPE_CHECKING:
    from zkrq.base.checks import Duration
    from zkrq.base.events import Event

MAX_OPERATION_TIMEOUT = PUT_WINDOW / 4
"""Seconds; an operation must end long before servers refuse its push as too late."""

MAX_DESCRIPTION = 200
"""Characters of a client's description; the rest is cut off."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one client.  Raises ``ConfigError`` for bad values."""

    namespace: str = "zkrq"
    """Name of the namespace: a folder in ZooKeeper, a prefix of all keys in Redis."""

    found: bool = False
    """Whether to found the namespace if it does not exist; otherwise that is an error."""

    min_replicas: int | None = None
    """Least number of in-sync servers with which a push succeeds, fixed when the namespace is founded.

    None: as it was founded; to found it: 2, or 1 if there is one server.
    """

    description: str | None = None
    """Text that describes this process in ``consumers()``; None: host and process id."""

    session_timeout: float = 10.0
    """Seconds until ZooKeeper ends the session of a silent client and other clients give its claims back."""

    command_timeout: float = 2.0
    """Seconds until a Redis server that does not answer a command counts as dead."""

    operation_timeout: float = 15.0
    """Seconds for which a push or an ack is retried before it raises; at most ``MAX_OPERATION_TIMEOUT``."""

    auto_upgrade: bool = False
    """Whether to raise the active level when no client of an older release was seen for a day."""

    level: int = SPOKEN.highest
    """Active level of a namespace that this client founds; that of the namespace for a further shard."""

    only_looks: bool = False
    """Whether this client only looks, as a command that shows something: it evicts, repairs and recovers no server, and
    never leads."""

    on_event: Callable[[Event], object] | None = None
    """Called with every ``zkrq.Event``, on the event loop; must not block."""

    def __post_init__(self) -> None:
        check_name("namespace", self.namespace)
        if self.min_replicas is not None:
            check_count("min_replicas", self.min_replicas, least=1)
        if self.description is not None:
            check_text("description", self.description)
        check_duration("session_timeout", self.session_timeout, positive=True)
        check_duration("command_timeout", self.command_timeout, positive=True)
        check_duration("operation_timeout", self.operation_timeout, positive=True)
        if self.operation_timeout > MAX_OPERATION_TIMEOUT:
            raise ConfigError(f"operation_timeout is {self.operation_timeout:g} s: at most {MAX_OPERATION_TIMEOUT:g} s")

    def check_servers(self, count: int) -> None:
        """Raise ``ConfigError`` if ``min_replicas`` can never be met by this many servers."""
        if self.min_replicas is not None:
            check_count("min_replicas", self.min_replicas, least=1, most=count)

    def describe(self) -> str:
        """Return the description, at most ``MAX_DESCRIPTION`` characters of it."""
        return (self.description or f"{socket.gethostname()}:{os.getpid()}")[:MAX_DESCRIPTION]


DEFAULTS = Settings()


@dataclass(frozen=True, slots=True)
class ProgramOptions:
    """Options of one program for one queue; some declare settings of the queue.  Raises ``ConfigError``."""

    codec: Codec[Any] = JSON
    """Encodes items for a push, decodes them for a claim."""

    claim_timeout: float = 30.0
    """Seconds until an unextended claim expires; zkrq extends claims while the process runs."""

    retry: Retry | None = None
    """Policy after a failure; None: ``Retry()``."""

    dead_letters: DeadLetters | None = None
    """Which dead letters are kept, as this process declares it; None: it declares nothing."""

    max_size: int | None = None
    """Most items queued, scheduled and claimed together, as this process declares it; None: it declares nothing."""

    max_payload_bytes: int = 1 << 20
    """Greatest size of one encoded item, in bytes."""

    limits: Limits | None = None
    """Limits of the queue over all processes, which this one declares; None: it declares nothing."""

    groups: Groups | None = None
    """Whether items without a group are a group of their own, how many items of each group are claimed at once, and
    whether in order; None: each item without a group stands in line by itself."""

    history: int | None = None
    """How many of the items that have ended last the queue keeps, 0: none from now on; None: it declares nothing."""

    results: Results[Any] | None = None
    """How long the results of handlers are kept, which this process declares; None: it keeps none."""

    saved: Codec[Any] = JSON
    """Encodes what handlers save of their work, and decodes it."""

    def __post_init__(self) -> None:
        check_lease("claim_timeout", self.claim_timeout)
        check_count("max_payload_bytes", self.max_payload_bytes, least=1)
        if self.max_size is not None:
            check_count("max_size", self.max_size, least=1)
        check_kind("retry", self.retry, Retry)
        check_kind("dead_letters", self.dead_letters, DeadLetters)
        check_kind("results", self.results, Results)
        check_kind("limits", self.limits, Limits)
        check_kind("groups", self.groups, Groups)
        if self.history is not None:
            History(self.history)

    @property
    def declared(self) -> Sequence[Declared]:
        """What this process declares of the queue for all processes."""
        groups = self.groups if self.groups and self.groups.settings else None
        history = None if self.history is None else History(self.history)
        size = None if self.max_size is None else Size(self.max_size)
        ttl = None if self.results is None else ResultTtl(self.results.ttl)
        every = (self.limits, groups, history, size, self.dead_letters, ttl)
        return [each for each in every if each is not None]

    @property
    def has_limits(self) -> bool:
        """Whether this process declares limits of the queue's claims or of those of its groups."""
        return any(isinstance(each, Limits | Groups) for each in self.declared)

    def updated(self, options: Mapping[str, Any]) -> Self:
        """Return these settings with others for the options that are given.  Raises ``TypeError`` for unknown ones."""
        if unknown := options.keys() - _NAMES:
            raise unknown_option("a queue", min(unknown), _NAMES)
        return replace(self, **_given(options))

    def difference(self, options: Mapping[str, Any]) -> str | None:
        """Name the first option that is given and not the same here, with both values; None: all are.

        Raises as ``updated``.
        """
        given = _given(options)
        if given.keys() <= _NAMES:
            known = [getattr(self, name) for name in given]
            # A program that asks for its queue before each push gives the same options each time.  What equals one of
            # another type may still be a bad value, as 7.0 is for a size.
            if known == [*given.values()] and [*map(type, known)] == [*map(type, given.values())]:
                return None
        other = self.updated(given)
        for field in fields(self):
            one, another = getattr(self, field.name), getattr(other, field.name)
            if one != another:
                return f"{field.name}={one!r}, not {another!r}"
        return None


_NAMES = frozenset(field.name for field in fields(ProgramOptions))


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are given, with durations in seconds."""
    given = {name: value for name, value in options.items() if value is not AS_DECLARED}
    if "claim_timeout" in given:
        given["claim_timeout"] = in_seconds(given["claim_timeout"])
    return given


class QueueOptions(TypedDict, total=False):
    """The settings of a queue as options, without its codec, which the type of the queue depends on."""

    claim_timeout: Duration
    retry: Retry | None
    dead_letters: DeadLetters | None
    max_size: int | None
    max_payload_bytes: int
    limits: Limits | None
    groups: Groups | None
    history: int | None
    saved: Codec[Any]


class _AsDeclared:
    """The type of ``AS_DECLARED``."""

    def __repr__(self) -> str:
        return "AS_DECLARED"


AS_DECLARED: Final[Any] = _AsDeclared()
"""Stands for an option of a queue that is not given: as this process has declared the queue, or else the default."""

QUEUE_DEFAULTS = ProgramOptions()
