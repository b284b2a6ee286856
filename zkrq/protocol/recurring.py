"""Decide which moments of a schedule are pushed, and which are lost, without a clock and without I/O.

Every process that runs a schedule walks its moments.  It begins after the moment up to which all are *done*, as the
namespace stores it, so moments that passed while no process ran the schedule are found by the next one.  Each moment of
the walk is pushed, or it is *lost* for one of the reasons of ``Loss``.  Losses are kept until they are reported, and a
moment that is not reported is not done, so a process that dies before its report leaves it to the next one.

A process may find a moment lost that another process has pushed, for instance because its own event loop was blocked.
So a loss is reported only some time after it was found, and not if the moment is stored as done by then, or the servers
know its item.

Without these rules moments are lost without a report: by all processes while each waits for a server that hangs, as the
next moment replaces those that came in between; and by a fleet that is away for longer than a push may be late.

Moments, and times of the wall clock, are milliseconds since 1970; times of the monotonic clock are seconds.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

ON_TIME_MS = 10_000
"""Milliseconds for which a moment counts as on time where missed ones are not pushed."""

LOSSES_MAX = 1_000
"""Losses of a schedule that are kept one by one until they are reported; of older ones the number is kept."""

Missed = Literal["all", "last", "none"]
"""Which of several moments that are due are pushed."""

MISSED: tuple[Missed, ...] = ("all", "last", "none")


class Loss(enum.Enum):
    """Why moments are not pushed, as a clause."""

    LATE = "no process could push them as early as catch_up and missed of the schedule demand"
    LEFT_OUT = "several were due, of which only the last one is pushed"
    FAILED = "the push failed for good; the log of this process says why"


@dataclass(frozen=True, slots=True)
class Terms:
    """How late a moment may be pushed, in milliseconds, and which of several that are due."""

    catch_up: int
    missed: Missed = "last"

    @property
    def latest(self) -> int:
        """Milliseconds after which a moment is too late."""
        return min(self.catch_up, ON_TIME_MS) if self.missed == "none" else self.catch_up


class Decision(NamedTuple):
    """What becomes of moments that are due: those to push, and those that are lost."""

    pushed: Sequence[int]
    lost: Mapping[int, Loss]


def decide(due: Sequence[int], present: int, terms: Terms, *, more: bool = False) -> Decision:
    """Decide about moments that have come, in order.  ``more``: later ones are due as well, and decided next."""
    in_time = [moment for moment in due if moment > present - terms.latest]
    lost = dict.fromkeys(due[: len(due) - len(in_time)], Loss.LATE)
    if terms.missed != "last":
        return Decision(in_time, lost)
    kept = [] if more else in_time[-1:]
    return Decision(kept, lost | dict.fromkeys(in_time[: len(in_time) - len(kept)], Loss.LEFT_OUT))


@dataclass(frozen=True, slots=True)
class Row:
    """Moments of which only the first, the last and the number are kept."""

    first: int
    last: int
    size: int

    def joined(self, other: Row | None) -> Row:
        """Return a row of both."""
        if other is None:
            return self
        return Row(min(self.first, other.first), max(self.last, other.last), self.size + other.size)


class Progress(NamedTuple):
    """What is stored of a schedule's moments.

    ``done``: all moments up to this one are pushed, or reported as lost.  ``last``: the last one that was pushed;
    ``lost``: the last one that was lost, None: none was; ``losses``: how many were.
    """

    done: int
    last: int | None = None
    lost: int | None = None
    losses: int = 0

    def merged(self, other: Progress) -> Progress:
        """Return what is known by both.  ``other`` adds its losses, unless another process has reported them before."""
        is_new = other.lost is not None and other.lost > self.done
        return Progress(
            max(self.done, other.done),
            _later(self.last, other.last),
            _later(self.lost, other.lost),
            self.losses + (other.losses if is_new else 0),
        )


def _later(first: int | None, second: int | None) -> int | None:
    return second if first is None else first if second is None else max(first, second)


class Course:
    """Follow the moments of one schedule in one process: those in flight, and the losses that are not reported yet."""

    def __init__(self, start: int) -> None:
        """``start``: moments up to this one are done."""
        self.walked = start
        """Moments up to this one are decided, or left out because they are not expected."""
        self.decided = start
        """The last moment that was decided, or is known to be done."""
        self.known = start
        """Moments up to this one are done, as other processes have stored."""
        self.in_flight = set[int]()
        self.last: int | None = None
        """The last moment that was pushed, by this process or before."""
        self.losses = dict[int, tuple[Loss, float]]()
        """Why each moment is lost, and when that was found, by the caller's monotonic clock."""
        self.older: tuple[Row, Loss, float] | None = None
        """Losses of which there are too many to keep each."""
        self.unstored: Row | None = None
        """Losses that are reported, and not stored yet."""

    # -- the walk ------------------------------------------------------------------------------------------------------

    def take(self, due: Sequence[int], present: int, terms: Terms, *, now: float, more: bool = False) -> Sequence[int]:
        """Decide about the moments after ``walked`` that have come; return those to push now.

        ``now``: the monotonic clock, in seconds; otherwise as ``decide``.
        """
        decided = decide(due, present, terms, more=more)
        self.decided = self.walked = max(self.walked, *due) if due else self.walked
        for moment, loss in decided.lost.items():
            self.lose(moment, loss, now)
        begun = [moment for moment in decided.pushed if moment not in self.in_flight]
        self.in_flight.update(begun)
        return begun

    def skip(self, row: Row, now: float) -> None:
        """Count moments as lost that are too late, and too many to be decided one by one."""
        self.decided = self.walked = max(self.walked, row.last)
        self._count(row, Loss.LATE, now)

    def skip_to(self, moment: int) -> None:
        """Leave out moments up to this one, which are not expected: they passed in a pause, or before a change."""
        self.walked = max(self.walked, moment)

    def go_back(self, present: int, reach: int) -> None:
        """Begin again after the clock was set back: it may have been wrong.

        The walk goes back by ``reach`` milliseconds, and to the first moment that was found lost by the wrong clock,
        but not to what is stored as done.  What was pushed since is known by its id.
        """
        first = min(self._lost(), default=present)
        self.decided = self.walked = max(min(present - reach, first - 1), min(self.known, present))
        self.losses.clear()
        self.older = None

    def resume(self) -> None:
        """Go back to the first moment in flight, after its push was cancelled: it is decided again."""
        if self.in_flight:
            self.decided = self.walked = min(self.walked, min(self.in_flight) - 1)
            self.in_flight.clear()

    # -- what becomes of a moment --------------------------------------------------------------------------------------

    def overdue(self, moment: int, present: int, terms: Terms) -> Loss | None:
        """Say why a moment whose push has failed is not to be pushed again; None: it is."""
        if present - moment >= terms.latest:
            return Loss.LATE
        return Loss.LEFT_OUT if terms.missed == "last" and self.walked > moment else None

    def pushed(self, moment: int) -> None:
        """Note that the item of a moment exists."""
        self.in_flight.discard(moment)
        self.last = _later(self.last, moment)

    def drop(self, moment: int) -> None:
        """Forget a moment in flight that is not expected any more, or done by another process."""
        self.in_flight.discard(moment)

    def lose(self, moment: int, loss: Loss, now: float) -> None:
        """Note that a moment is not pushed here."""
        self.in_flight.discard(moment)
        self.losses[moment] = loss, now
        while len(self.losses) > LOSSES_MAX:
            first = min(self.losses)
            loss, found = self.losses.pop(first)
            self._count(Row(first, first, 1), loss, found)

    def _count(self, row: Row, loss: Loss, found: float) -> None:
        if self.older:
            known, loss, found = self.older
            row = row.joined(known)
        self.older = row, loss, found

    def _lost(self) -> list[int]:
        """Return the losses, of those that are not kept one by one the first."""
        return [*self.losses, *([self.older[0].first] if self.older else [])]

    # -- reports -------------------------------------------------------------------------------------------------------

    @property
    def done(self) -> int:
        """All moments up to this one are pushed, or reported as lost: none in the future, whatever the clock says."""
        return min(self.decided, min([*self.in_flight, *self._lost()], default=self.decided + 1) - 1)

    @property
    def found_at(self) -> float | None:
        """When the first loss that is not reported was found, None: there is none."""
        found = [found for _, found in self.losses.values()]
        return min([*found, *([self.older[2]] if self.older else [])], default=None)

    def learn(self, progress: Progress, latest: int) -> None:
        """Follow what is stored: other processes have pushed, or reported, moments up to ``progress.done``.

        ``latest``: after this no moment can be done yet; one that is stored so comes from a clock that was wrong.
        """
        if progress.done > latest:
            return
        self.known = progress.done
        self.walked = max(self.walked, progress.done)
        self.decided = max(self.decided, progress.done)
        self.last = _later(self.last, progress.last)
        for moment in [moment for moment in self.losses if moment <= progress.done]:
            del self.losses[moment]
        if self.older and self.older[0].last <= progress.done:
            self.older = None

    def forgive(self, moment: int) -> None:
        """Note that a moment that seemed lost is not: another process has pushed it."""
        self.losses.pop(moment, None)
        self.last = _later(self.last, moment)

    def report(self, until: float) -> dict[Loss, tuple[Row, Sequence[int]]]:
        """Take the losses that were found up to this time: by reason, all of them, and those kept one by one."""
        taken: dict[Loss, tuple[Row, Sequence[int]]] = {}
        if self.older and self.older[2] <= until:
            row, loss, _ = self.older
            taken[loss], self.older = (row, ()), None
        for loss in Loss:
            some = sorted(moment for moment, (why, found) in self.losses.items() if why is loss and found <= until)
            if some:
                older = taken[loss][0] if loss in taken else None
                taken[loss] = Row(some[0], some[-1], len(some)).joined(older), some
        for _, some in taken.values():
            for moment in some:
                del self.losses[moment]
        for row, _ in taken.values():
            self.unstored = row.joined(self.unstored)
        return taken

    @property
    def news(self) -> Progress | None:
        """What is to be stored, None: nothing that is not known to be."""
        row = self.unstored
        if self.done <= self.known and row is None:
            return None
        return Progress(self.done, self.last, row and row.last, row.size if row else 0)

    def stored(self, written: Progress) -> None:
        """Note that ``written``, which was ``news``, is stored."""
        row = self.unstored
        left = row.size - written.losses if row else 0
        self.unstored = replace(row, size=left) if row and left else None
