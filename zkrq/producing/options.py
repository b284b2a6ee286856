"""Read the options of a push: checked, and in the units of the wire."""

from __future__ import annotations

from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from zkrq.base import clock
from zkrq.base.checks import (
    Duration,
    Headers,
    check_count,
    check_duration,
    check_group,
    check_headers,
    check_id,
    check_key_window,
    check_moment,
)
from zkrq.base.errors import ConfigError, ContradictsOrder
from zkrq.protocol.levels import Feature
from zkrq.protocol.records import PRIORITIES

if TYPE_CHECKING:
    from zkrq.base.limits import Groups


class Options(NamedTuple):
    """Options of a push, checked, in the units of the wire; ``ttl_ms`` 0: no limit.  ``replaces``: in the place of
    queued items with this key; ``ordered``: into a group that keeps the order; ``key_window_ms``: for how long it keeps
    others of its key away, 0: while it is there."""

    priority: int = 0
    delay_ms: int = 0
    key: str = ""
    ttl_ms: float = 0
    headers: Headers = MappingProxyType({})
    group: str | None = None
    replaces: bool = False
    ordered: bool = False
    key_window_ms: int = 0

    @property
    def is_plain(self) -> bool:
        """Whether the item may be in a bundle."""
        return not (self.delay_ms or self.key or self.ttl_ms or self.ordered)

    @property
    def feature(self) -> Feature:
        """What a push into a group, one that replaces others, or one with a window of its key needs."""
        if self.key_window_ms:
            return Feature.KEY_WINDOW
        return Feature.GROUPS if self.group is not None else Feature.REPLACE

    def among(self, groups: Groups) -> Options:
        """Return the options of an item that is pushed into a queue with groups: one without a group belongs to their
        own one.

        Raises ``ConfigError`` for what would contradict the order of a group.
        """
        if groups.ordered and (self.delay_ms or self.priority):
            given = f"priority={self.priority}" if self.priority else f"a delay of {self.delay_ms / 1000:g} s"
            raise out_of_order(given)
        return self._replace(group=self.group or "", ordered=groups.ordered)


def out_of_order(given: str) -> ContradictsOrder:
    """Return the error for a push whose options contradict the order that its queue keeps."""
    return ContradictsOrder(
        f"groups keep the order of their pushes (Groups(ordered=True)), which {given} would contradict: push without "
        "it, or into another queue; nothing was written"
    )


PLAIN = Options()
"""No options; recognized by its identity, without a call."""


def read_options(
    delay: Duration | None,
    at: datetime | None,
    priority: int,
    key: str | None,
    ttl: Duration | None,
    headers: Headers | None = None,
    group: str | None = None,
) -> Options:
    """Check the options of a push.  Raises ``ConfigError``."""
    if priority == 0 and delay is None and at is None and key is None and ttl is None and not headers and group is None:
        return PLAIN
    if group is not None:
        check_group(group)
    check_count("priority", priority, least=PRIORITIES.start, most=PRIORITIES.stop - 1)
    if delay is not None and at is not None:
        raise ConfigError("delay and at exclude each other")
    seconds = 0.0
    if at is not None:
        seconds = check_duration("at", max(0.0, (check_moment("at", at) - clock.now()).total_seconds()))
    elif delay is not None:
        seconds = check_duration("delay", delay)
    ttl_ms = 0.0 if ttl is None else max(1.0, check_duration("ttl", ttl, positive=True) * 1000)
    if ttl_ms and ttl_ms <= seconds * 1000:
        raise ConfigError(f"ttl is {ttl_ms / 1000:g} s, not longer than the delay of {seconds:g} s: never delivered")
    checked_key = "" if key is None else check_id("key", key)
    return Options(priority, round(seconds * 1000), checked_key, ttl_ms, check_headers(headers or {}), group)


def among_its_key(options: Options, replace: bool, window: Duration | None) -> Options:
    """Return the options of a push that says what it does about other items with its key: it takes the place of queued
    ones, or keeps them away for a time in seconds.  Raises ``ConfigError``."""
    if window is None:
        if not options.key:
            raise ConfigError("replace=True needs a key: key='user-42'")
        return options._replace(replaces=replace)
    window_ms = check_key_window(window)
    if not options.key:
        raise ConfigError("key_window needs a key: key='user-42'")
    if replace:
        raise ConfigError(
            "key_window and replace=True exclude each other: the first item of a window is kept, or the last one; use "
            "key_window alone, or replace=True with a delay"
        )
    return options._replace(key_window_ms=window_ms)
