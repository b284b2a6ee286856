"""Read the options of a push: checked, and in the units of the wire."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Unpack, cast

from zkrq.base.checks import TASK_HEADER
from zkrq.base.errors import ContradictsOrder
from zkrq.operations.push import PUSH, PUSH_MEMBER, MemberOptions, PushOptions, wait_of
from zkrq.protocol.calls import OfKey
from zkrq.protocol.records import DELAY, HELD, MEMBER, Opens, held_for, waiting_for

if TYPE_CHECKING:
    from zkrq.base.checks import Headers
    from zkrq.base.flows import FlowName
    from zkrq.base.limits import Groups


class Options(NamedTuple):
    """Options of a push, checked, in the units of the wire; ``ttl_ms`` 0: no limit.  ``of_key``: what it does about
    other items with its key; ``ordered``: into a group that keeps the order.  ``flow``: as records name it, the flow of
    which the item is a member, or for whose end it is held, when that ``opens`` it; empty: none.
    ``at_latest_ms`` 0: no end.  ``after``: for which members of its flow a member waits (``flow_names.named``).
    ``task``: empty: none.  ``inner``: the flow for which it stands, as records name it; empty: it is an item like
    others."""

    priority: int = 0
    delay_ms: int = 0
    key: str = ""
    ttl_ms: float = 0
    headers: Headers = MappingProxyType({})
    group: str | None = None
    of_key: OfKey = OfKey()
    ordered: bool = False
    flow: bytes = b""
    opens: Opens | None = None
    at_latest_ms: int = 0
    after: tuple[str, ...] = ()
    task: str = ""
    inner: bytes = b""

    @property
    def is_plain(self) -> bool:
        """Whether the item may be in a bundle."""
        return not (self.delay_ms or self.key or self.ttl_ms or self.ordered or self.is_held)

    @property
    def is_held(self) -> bool:
        """Whether the item waits for something that others decide."""
        return self.opens is not None or bool(self.after or self.inner)

    @property
    def stored_headers(self) -> Headers:
        """The headers as they are stored: with the task, if there is one."""
        return {**self.headers, TASK_HEADER: self.task} if self.task else self.headers

    @property
    def fields(self) -> Mapping[str, bytes]:
        """The fields of its record."""
        if not self.flow:
            return _NO_FIELDS
        delay = {DELAY: b"%d" % self.delay_ms} if self.delay_ms and self.is_held else _NO_FIELDS
        if self.opens:
            return {HELD: held_for(self.flow, self.opens), **delay}
        if self.inner:
            return {MEMBER: self.flow, HELD: held_for(self.inner, Opens.NESTED)}
        return {MEMBER: self.flow, HELD: waiting_for(self.after), **delay} if self.after else {MEMBER: self.flow}

    def among(self, groups: Groups) -> Options:
        """Return the options of an item that is pushed into a queue with groups: one without a group belongs to that of
        its task, or to their own one.

        Raises ``ConfigError`` for what would contradict the order of a group.
        """
        if groups.ordered and (self.delay_ms or self.priority):
            given = f"priority={self.priority}" if self.priority else f"a delay of {self.delay_ms / 1000:g} s"
            raise out_of_order(given)
        group = self.group or (self.task if groups.by_task else "")
        return self._replace(group=group, ordered=groups.ordered)


def out_of_order(given: str) -> ContradictsOrder:
    """Return the error for a push whose options contradict the order that its queue keeps."""
    return ContradictsOrder(
        f"groups keep the order of their pushes (Groups(ordered=True)), which {given} would contradict: push without "
        "it, or into another queue; nothing was written"
    )


_NO_FIELDS: Mapping[str, bytes] = MappingProxyType({})

PLAIN = Options()
"""No options; recognized by its identity, without a call."""

_NONE_GIVEN = {name: value for name, value in PUSH.defaults.items() if name != "id"}
"""All of them, as they are without a caller's word: compared first, because most pushes have none."""


def read_options(**given: Unpack[PushOptions]) -> Options:
    """Check the options of a push.  Raises ``ConfigError``."""
    if given == _NONE_GIVEN:
        return PLAIN
    values = PUSH.check(given)
    return Options(
        values.get("priority", 0),
        round(wait_of(values) * 1000),
        values.get("key", ""),
        max(1.0, values["ttl"] * 1000) if "ttl" in values else 0.0,
        values.get("headers", {}),
        values.get("group"),
        OfKey(values.get("replace", False), round(values.get("key_window", 0.0) * 1000)),
        at_latest_ms=math.ceil(values.get("at_latest", 0.0) * 1000),
        task=values.get("task", ""),
    )


def of_member(flow: FlowName, given: MemberOptions) -> PushOptions:
    """Return the options of a push into a flow: the name of a member makes its id.  Raises ``ConfigError``."""
    options = cast("PushOptions", {name: value for name, value in given.items() if name != "name"})
    if (name := given.get("name")) is not None:
        PUSH_MEMBER.check(given)
        options["id"] = flow.id_of(name)
    return options
