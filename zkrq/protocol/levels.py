"""Define the levels: numbers for what is stored and spoken, of which a namespace has one that is active.

A release speaks a range of levels: the newest one, and at least that of the release before.  It reads all of them and
writes the active one, which stands in the view.  So clients of two releases share a namespace, and going back is safe,
until an operator raises the level.  That is a change of the view with a new epoch: every server that hears of it
refuses the calls of clients that have not read the view since (``_gate.lua``), and these cannot read it if they do not
speak its level.  No call carries a level, so none costs more for it.

Without the new epoch a client that does not know the new level, and was paused meanwhile, would go on under the view
that it has: it writes what the others no longer expect, or reads a record that it does not know.

How to change a format stands in docs/design/levels.md.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from typing import NamedTuple

from zkrq.protocol import znodes

FIRST_LEVEL = 1
"""Level of the first release."""

SECOND_LEVEL = 2
"""Level of records with fields (format 4), which clients of before do not read."""

RELEASES = {FIRST_LEVEL: "0.2.0", SECOND_LEVEL: "0.3.0"}
"""First release that speaks each level; the last one is of this release."""


class Levels(NamedTuple):
    """The levels that a client speaks, both ends included."""

    lowest: int
    highest: int

    def __contains__(self, level: object) -> bool:
        return isinstance(level, int) and self.lowest <= level <= self.highest

    def __str__(self) -> str:
        return f"level {self.lowest}" if self.lowest == self.highest else f"levels {self.lowest} to {self.highest}"


SPOKEN = Levels(FIRST_LEVEL, SECOND_LEVEL)
"""What this release speaks."""


class AtLevel(enum.Enum):
    """What begins at a level: its name in errors, and that level."""

    @property
    def level(self) -> int:
        """First level that has it."""
        return self.value[1]


class Feature(AtLevel):
    """What needs a level above the first.

    Gate it where a client asks for it, before anything is written (``check_feature``).
    """

    SAVES = ("saved states", SECOND_LEVEL)
    FLOWS = ("flows", SECOND_LEVEL)
    TASKS = ("a schedule that pushes for a task", SECOND_LEVEL)
    EDITS = ("edited items", SECOND_LEVEL)
    FAILURES = ("the last failures of items", SECOND_LEVEL)
    PAUSES = ("pauses that end by themselves", SECOND_LEVEL)
    FIGURES = ("figures", SECOND_LEVEL)
    NAMED_GROUPS = ("limits of named groups", SECOND_LEVEL)


class OtherLevel(ValueError):
    """The active level is not one that this release speaks."""

    def __init__(self, level: int, raised_by: str) -> None:
        release = raised_by or RELEASES.get(level, "")  # a namespace that was founded at its level does not name one
        if level <= SPOKEN.highest:
            step = f"with a release that speaks both, first run `zkrq upgrade --level {SPOKEN.lowest}`"
        elif release:
            step = f"install zkrq {release} or later here"
        else:
            step = "install here the release of zkrq that its other clients have"
        of = f"zkrq {release}" if release else "another release"
        self.what = f"it is at level {level}, that of {of}, and this zkrq {RELEASES[SPOKEN.highest]} speaks {SPOKEN}"
        """What is wrong, without the next step."""
        self.step = step
        """What to do about it."""
        super().__init__(f"{self.what}: {step}; nothing was written")


def check_level(level: int, raised_by: str = "") -> None:
    """Raise ``OtherLevel`` if this release does not speak the active level."""
    if level not in SPOKEN:
        raise OtherLevel(level, raised_by)


def missing(feature: AtLevel, level: int) -> str | None:
    """Say why a feature cannot be used at this level, and what to do; None if it can."""
    if level >= feature.level:
        return None
    return (
        f"this needs level {feature.level}, and the namespace is at level {level}: when every client runs zkrq "
        f"{RELEASES[feature.level]} or later (`zkrq upgrade --check` says which do not), run `zkrq upgrade`; nothing "
        "was written"
    )


def release_of(version: str) -> str:
    """Say a client's release to people; ``version``: as it has named it, empty: it names none."""
    return version or "of an unknown release"


class ClientInfo(NamedTuple):
    """What a client says of itself: its release, the levels that it speaks, and the library that it calls.

    ``started``: when it connected, in seconds since 1970 by its clock, 0: it does not say; ``slots``: handlers that its
    workers run at the same time, 0: none or it does not say.  ``id``: its own, over all sessions, ``pid``: of its
    process, empty and 0: it does not say.  ``is_quiet``: whether it claims nothing more, as an operator said.
    ``release``: the same as ``version``, for people, also of a client that names none.
    """

    description: str
    host: str
    version: str
    levels: Levels
    library: str
    started: float = 0.0
    slots: int = 0
    id: str = ""
    pid: int = 0
    is_quiet: bool = False

    @property
    def release(self) -> str:
        return release_of(self.version)

    @property
    def label(self) -> str:
        """The client and its release, for people."""
        return f"{self.description or self.host} ({self.release})"


def encode(spoken: ClientInfo) -> str:
    """Encode the entry of a client.  Later releases may add fields; ``decode`` ignores those that it does not know."""
    return json.dumps({**spoken._asdict(), "levels": list(spoken.levels)}, separators=(",", ":"))


def too_old(clients: Mapping[str, ClientInfo], level: int) -> Mapping[str, ClientInfo]:
    """Return the clients that do not speak a level, by their sessions."""
    return {session: each for session, each in clients.items() if level not in each.levels}


UNNAMED = ClientInfo("", "", "", Levels(FIRST_LEVEL, FIRST_LEVEL), "")
"""What is known of a client that has no entry yet, or one that cannot be read."""


STARTED_MAX = 250_000_000_000
"""Seconds since 1970: bound of a client's moment, which is in the year 9892.  A later one is taken for none."""


def decode(text: str) -> ClientInfo:
    """Decode what ``encode`` made, of this release or another; ``UNNAMED`` for anything else."""
    try:
        content = znodes.read_object(text)
        lowest, highest = content["levels"]
        description, host, version = (znodes.text(content[name]) for name in ("description", "host", "version"))
        started = float(content.get("started", 0.0))
        return ClientInfo(
            description,
            host,
            version,
            Levels(znodes.count(lowest), znodes.count(highest)),
            znodes.text(content.get("library", "")),
            started if 0 <= started < STARTED_MAX else 0.0,
            znodes.count(content.get("slots", 0)),
            znodes.text(content.get("id", "")),
            znodes.count(content.get("pid", 0)),
            content.get("is_quiet") is True,
        )
    except (KeyError, OverflowError, TypeError, ValueError):
        return UNNAMED


def known(told: Mapping[str, str], consumers: Mapping[str, str]) -> dict[str, ClientInfo]:
    """Return what is known of every live client, by its session.

    ``told``: what each has said of itself, encoded; ``consumers``: how each consumer describes itself, which may have
    said nothing.
    """
    clients = {session: decode(text) for session, text in sorted(told.items())}
    for session, description in sorted(consumers.items()):
        clients.setdefault(session, UNNAMED._replace(description=description))
    return clients
