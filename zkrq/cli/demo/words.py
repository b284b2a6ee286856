"""Say what happens: events and results in sentences, figures line by line."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from zkrq.base.events import (
    ClaimsLost,
    DeclaredDead,
    Event,
    NotWritable,
    OwnerFenced,
    ServerEvicted,
    SessionLost,
    SessionResumed,
    SessionSuspended,
    ViewChanged,
)

if TYPE_CHECKING:
    from zkrq.cli.demo.tally import Result


FIGURES_SECONDS = 2.0
"""Seconds between two lines of figures."""


class Display:
    """Print the demo's progress, line by line."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._began = time.monotonic()
        self._next_figures = 0.0

    def say(self, text: str, *, deed: bool = False) -> None:
        """Report an event; ``deed``: the demo itself caused it."""
        self._stream.write(f"{time.monotonic() - self._began:5.1f} s  {'>>> ' if deed else ''}{text}\n")
        self._stream.flush()

    def show(self, figures: Mapping[str, str]) -> None:
        """Show the present figures by name, unless some were shown just now."""
        now = time.monotonic()
        if now >= self._next_figures:
            self._next_figures = now + FIGURES_SECONDS
            self.say(", ".join(f"{name} {figure}" for name, figure in figures.items()))


def sentence(event: Event, who: str) -> str | None:
    """Say what ``who`` reports; None: not worth a line.

    Sentences without a name are the same from every process, and shown once.
    """
    match event:
        case ViewChanged():
            return f"epoch {event.epoch}: in sync: {', '.join(event.members)}"
        case ServerEvicted():
            return f"{who} evicted {event.server} from the view"
        case NotWritable():
            return f"fewer than {event.min_replicas} servers are in sync: pushes wait"
        case OwnerFenced():
            return f"{event.items} claim(s) of {event.owner} are ready again" if event.items else None
        case SessionSuspended():
            return "ZooKeeper does not answer: the work continues"
        case SessionResumed():
            return "ZooKeeper answers again: the sessions are still valid"
        case DeclaredDead():
            return f"{who} was declared dead, and continues under a new id"
        case SessionLost():
            return f"{who} lost its ZooKeeper session, and its claims with it"
        case ClaimsLost():
            return f"{who} lost {len(event.ids)} claim(s): {event.reason}"
        case _:
            return str(event)


def describe(result: Result) -> str:
    """Describe the result in full."""
    always = (
        ("pushed", result.pushed, "the push returned: every in-sync server had the item"),
        ("delivered", result.delivered, "a handler started"),
        ("redelivered", result.redelivered, "of these, deliveries of an item that had been delivered before"),
        ("done", result.done, "the ack returned"),
        ("lost", result.lost, "pushed, but never done"),
        ("came back", result.delivered_after_ack, "delivered again after its ack had returned"),
    )
    sometimes = (
        ("unheard", result.unheard, "acked by the killed consumer, which died before the answer arrived"),
        ("retried", result.retried, "pushes made again under the same id"),
    )
    figures = [*always, *(figure for figure in sometimes if figure[1])]
    gaps = (
        f"  longest gap between two pushes that returned {result.longest_push_gap:.2f} s, "
        f"between two acks {result.longest_ack_gap:.2f} s"
    )
    return "\n".join(
        [
            "",
            *(f"  {name:<12}{figure:>8,}   {meaning}" for name, figure, meaning in figures),
            "",
            gaps,
            *(f"  trouble: {trouble}" for trouble in result.troubles),
            "",
            "Nothing was lost, nothing came back." if result.clean else "A promise was broken.",
            "",
            *next_steps(CHECKOUT),
        ]
    )


def next_steps(checkout: bool) -> tuple[str, ...]:
    """Return what to try next; only in a checkout is there a Makefile."""
    dev, demo = ("make dev", 'make demo ARGS="{}"') if checkout else ("zkrq dev", "zkrq demo {}")
    return (
        "To try next:",
        f"  {dev:<42}  runs such servers for your own code",
        f"  {demo.format('--seconds 60 --rate 1000'):<42}  the same, longer and busier",
        f"  {'README.md' if checkout else 'zkrq --help':<42}  "
        + ("the guarantee, its assumptions, ten lines of code" if checkout else "every command"),
    )


CHECKOUT = (Path(__file__).parents[3] / "Makefile").exists()
