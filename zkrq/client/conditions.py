"""Say which items a search looks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from zkrq.base.checks import check_count, check_group, check_id, check_text
from zkrq.base.errors import ConfigError
from zkrq.client.cursors import Source
from zkrq.operations.states import STATE

if TYPE_CHECKING:
    from zkrq.client.items import Item, ItemState


PAGE_MAX = 500
"""Items of a page."""


class Conditions(NamedTuple):
    """Say which items are looked for: those of which all of these hold.  None: any."""

    key: str | None = None
    header: tuple[str, str] | None = None
    error: str | None = None
    state: ItemState | None = None
    group: str | None = None

    @property
    def sources(self) -> Sequence[Source]:
        """What has to be read: the index of keys knows no dead letter."""
        if self.state == "dead":
            return (Source.DEAD,)
        if self.key is not None:
            return (Source.KEYED, Source.DEAD) if self.state is None else (Source.KEYED,)
        return (Source.ALL,)

    def check_any(self, queue: str) -> None:
        """Check that there is a condition, beside the state.  Raises ``ConfigError``."""
        if self == Conditions(state=self.state):
            state = "" if self.state is None else repr(self.state)
            raise ConfigError(
                f"find() needs key=, header=, error= or group=; for all items of queue {queue!r}: scan({state}), or "
                f"`zkrq export {queue}`"
            )

    def hold(self, item: Item[Any]) -> bool:
        """Tell whether this is one of the items."""
        return (
            self.state in (None, item.state)
            and self.key in (None, item.key)
            and self.group in (None, item.group)
            and (self.header is None or item.headers.get(self.header[0]) == self.header[1])
            and (self.error is None or self.error.casefold() in (item.reason or "").casefold())
        )


def check_conditions(conditions: Conditions, limit: int = 1) -> Conditions:
    """Return the conditions; check the length of a page, too.  Raises ``ConfigError``."""
    check_count("limit", limit, least=1, most=PAGE_MAX)
    if conditions.key is not None:
        check_id("key", conditions.key)
    if conditions.group is not None:
        check_group("group", conditions.group)
    if conditions.header is not None:
        pair = isinstance(conditions.header, tuple | list) and len(conditions.header) == 2  # pyright: ignore[reportUnnecessaryIsInstance]
        if not pair:
            raise ConfigError(f"header is {conditions.header!r}: must be a name and a value, as a tuple of two str")
        for part in conditions.header:
            check_text("header", part)
    if conditions.error is not None and not check_text("error", conditions.error):
        raise ConfigError("error is empty: must be a text that the reason contains")
    if conditions.state is not None:
        STATE.check("state", conditions.state)
    return conditions
