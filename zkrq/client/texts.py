"""Write figures for people: numbers, durations, moments, sizes of memory, and what is wrong in a few words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from zkrq.base import clock

if TYPE_CHECKING:
    from zkrq.client.backlog import Backlog
    from zkrq.client.health import Health
    from zkrq.client.inspection import Statistics

STANDINGS: Mapping[str, str] = {
    "member": "in sync",
    "learner": "being caught up",
    "eligible": "out of sync, has all items",
    "out": "out of sync",
}
"""What people are told of the places of servers in the view."""


def show_alarm(health: Health, trouble: str = "") -> str:
    """Say in a few words what a window's title warns of; empty if nothing is wrong.  ``trouble``: of the last look."""
    in_sync = sum(server.place == "member" for server in health.servers.values())
    if in_sync < len(health.servers) and (health.warnings or not health.ok):
        return f"{in_sync} of {len(health.servers)} in sync"
    if not health.ok:
        return "not ready"
    return "no answer" if trouble else ""


def show_tone(health: Health, trouble: str = "", notes: Sequence[str] = ()) -> str:
    """Return the colour of the state: ``good``, ``warn`` while everything works with less than it should have, ``bad``.

    ``trouble``: why the servers' figures could not be read.  ``notes``: what else could not be.
    """
    if not health.ok or trouble:
        return "bad"
    return "warn" if health.warnings or notes or health.session != "connected" else "good"


def show_state(health: Health, trouble: str = "", notes: Sequence[str] = ()) -> str:
    """Say in a sentence what works."""
    match show_tone(health, trouble, notes):
        case "good":
            return "All servers are in sync. Items can be pushed and claimed."
        case "warn":
            return "Items can be pushed and claimed. If pushes stop, claims continue."
        case _:
            return "The servers do not answer." if health.ok else "Not everything works."


def show_number(value: float) -> str:
    """Write a number with at least two digits: without decimals, unless it is small; one below a thousandth is 0."""
    if 0.001 <= abs(value) < 0.995:
        return f"{value:.2g}"
    return f"{value:,.1f}" if 1 <= abs(value) < 100 and value != int(value) else f"{value:,.0f}"


def show_duration(seconds: float) -> str:
    """Write seconds with at least two digits, in the largest unit of which there are at least two, or a second."""
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    if seconds >= 0.9995:
        return f"{seconds:.0f} s" if seconds >= 9.95 else f"{seconds:.1f} s"
    thousandths = 1000 * seconds
    return "0 s" if thousandths < 0.05 else f"{thousandths:.0f} ms" if thousandths >= 9.95 else f"{thousandths:.1f} ms"


def show_backlog(backlog: Backlog | None) -> str:
    """Say what the ready items of a queue do, and when none is left; empty if that is not known."""
    if backlog is None or backlog.per_second is None:
        return ""
    if backlog.seconds_left is not None:
        pace = show_number(-backlog.per_second)
        return f"shrinks by {pace} a second: it is gone in {show_duration(backlog.seconds_left)} if that goes on"
    return f"grows by {show_number(backlog.per_second)} a second" if backlog.per_second else "stays as it is"


def show_moment(moment: datetime, now: datetime | None = None) -> str:
    """Write a moment: the time of a day in UTC, and the date unless it is within twelve hours of ``now``."""
    is_near = abs(moment - (now or clock.now())) < timedelta(hours=12)
    return f"{moment.astimezone(UTC):{'%H:%M:%S' if is_near else '%Y-%m-%d %H:%M'}} UTC"


def show_due(seconds_left: float | None, now: datetime | None = None) -> str:
    """Write in how many seconds something is due, with the moment."""
    left = max(0.0, seconds_left or 0.0)
    now = now or clock.now()
    return f"{show_duration(left)}, at {show_moment(now + timedelta(seconds=left), now)}"


def show_pause(figures: Statistics) -> str:
    """Say that a queue is paused, with the moment at which it goes on by itself."""
    return f"paused until {show_moment(figures.paused_until)}" if figures.paused_until else "paused"


def show_bytes(count: float) -> str:
    """Write a number of bytes, in the largest unit of which there is at least one."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count:,.0f} bytes"


def show_count(count: int, noun: str) -> str:
    """Write how many there are of something: ``1 item``, ``2 items``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
