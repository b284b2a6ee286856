"""Define how the handlers of a worker run in processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zkrq.base.checks import Duration, check_count, check_duration, check_posix, check_text
from zkrq.base.errors import ConfigError
from zkrq.base.meant import names_fields

SLOTS_MAX = 1_000
"""Handlers that run in one child at the same time."""

KILL_MAX = 8.0
"""Greatest ``kill_after`` in seconds: a worker that drains waits ten seconds for handlers that it has cancelled."""


@names_fields("zkrq.Processes")
@dataclass(frozen=True, slots=True)
class Processes:
    """Run the handlers of a worker in child processes: ``Worker(concurrency=8, pool=Processes())``.

    ``slots``: handlers that run in one child at the same time, 1 to 1000; more than 1 only if all are ``async``.
    The worker has as many children as its ``concurrency`` needs.  ``max_items``: items after which a child is replaced,
    None: no limit.  ``max_memory``: bytes of resident memory above which a child is replaced after an item, None: no
    limit.  ``preload``: names of modules that are imported once, before children are forked; None: those of the
    handlers; empty: none, so each child imports them itself.  ``kill_after``: seconds, 0 to 8, from the SIGTERM that
    stops a handler until SIGKILL.  Raises ``ConfigError``, also on Windows.
    """

    slots: int = 1
    max_items: int | None = None
    max_memory: int | None = None
    preload: Sequence[str] | None = None
    kill_after: Duration = 5.0

    def __post_init__(self) -> None:
        check_posix("handlers in processes")
        check_count("slots", self.slots, least=1, most=SLOTS_MAX)
        if self.max_items is not None:
            check_count("max_items", self.max_items, least=1)
        if self.max_memory is not None:
            check_count("max_memory", self.max_memory, least=1)
        if self.preload is not None:
            if isinstance(self.preload, str):
                raise ConfigError(f"preload: a list of modules' names is expected: [{self.preload!r}]")
            object.__setattr__(self, "preload", tuple(check_text("a name in preload", each) for each in self.preload))
        seconds = check_duration("kill_after", self.kill_after)
        if seconds > KILL_MAX:
            raise ConfigError(f"kill_after is {seconds:g} s: must be at most {KILL_MAX:g} s")
        object.__setattr__(self, "kill_after", seconds)
