"""What the reports of a client's schedules (``moment_reports.py``) know of each that this process pushes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zkrq.client.moments import from_ms, key_of, moment_id

if TYPE_CHECKING:
    from zkrq.client.queue import Queue
    from zkrq.client.timetable import Key
    from zkrq.protocol.recurring import Course


@dataclass(eq=False, slots=True)
class Walker:
    """A schedule as this process pushes it.

    ``key``: as what it is stored, None: it is not.  ``course``: what has become of its moments, None: it has not begun.
    ``is_keyed``: whether its items have keys, and may have been pushed under these as ids.  ``look``: looks at the
    clock, by which losses were found: if it was wrong, they are none.
    """

    queue: Queue[Any]
    name: str
    key: Key | None
    is_keyed: bool
    look: Callable[[], object]
    course: Course | None = None

    def ids_of(self, moment: int) -> Sequence[str]:
        """Return the ids under which the item of a moment may have been pushed."""
        at = from_ms(moment)
        return (moment_id(self.name, at), key_of(self.name, at)) if self.is_keyed else (moment_id(self.name, at),)
