"""Say what a token lets its holder do, and which requests need that.  Pure but for ``CALLER``, which a request has."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from typing import NamedTuple

from zkrq.base.checks import check_name
from zkrq.base.errors import ConfigError

LEAST_TOKEN = 16
"""Characters; a shorter token could be guessed."""

MAX_TOKENS = 8
"""Tokens of one kind that are accepted at the same time; two are usual while one is replaced."""


class Right(enum.IntEnum):
    """What a token lets its holder do: each right has those before it."""

    READ = 1
    OPERATE = 2
    ADMINISTER = 3


class Need(NamedTuple):
    """Requests that need a right: what they do, for people, and their paths, of those that may change something."""

    right: Right
    what: str
    paths: re.Pattern[str]


ANY = re.compile(r"(?s).*")

NEEDS: Sequence[Need] = (
    Need(
        Right.ADMINISTER,
        "add, remove and replace servers; upgrade",
        re.compile(r"(/v1)?/(servers|upgrade)(/.*)?", re.DOTALL),
    ),
    Need(
        Right.OPERATE,
        "push, claim and settle; pause, redrive, discard, cancel, run now; settings, schedules, flows",
        ANY,
    ),
)
"""Which right a request needs that may change something; the first row with its path counts."""

READS = Need(Right.READ, "see the pages, items, figures and metrics", ANY)
"""What a request needs that only reads."""


class Token(NamedTuple):
    """A token.  ``name``: of its holder, for the record of changes; empty: nobody has said it."""

    text: str
    right: Right
    name: str = ""


class Caller(NamedTuple):
    """Who has sent a request: the name of its token, empty without one, and what it may do."""

    name: str
    right: Right

    @property
    def title(self) -> str:
        """The caller as records and histories name it."""
        return self.name or f"unnamed ({self.right.name.lower()})"


NOBODY = Caller("", Right.READ)
"""Who asks for what needs no token."""

CALLER: ContextVar[Caller] = ContextVar("zkrq_caller", default=NOBODY)
"""Who has sent the request that is answered."""


def read_tokens(lines: Iterable[str], right: Right) -> tuple[Token, ...]:
    """Read tokens: each a line, which may begin with the name of its holder and a space.  Raises ``ConfigError``."""
    found: list[Token] = []
    for line in lines:
        name, _, text = line.rpartition(" ")
        if len(text) < LEAST_TOKEN or not text.isascii() or not text.isprintable() or " " in name:
            raise ConfigError(f"a token must have at least {LEAST_TOKEN} printable ASCII characters, and no space")
        if name:
            check_name("the name of a token", name)
        found.append(Token(text, right, name))
    if len(found) > MAX_TOKENS:
        raise ConfigError(f"{len(found)} tokens are given: at most {MAX_TOKENS} are accepted")
    return tuple(found)


def needed(path: str, *, is_safe: bool) -> Need:
    """Return what a request needs.  ``is_safe``: it only reads."""
    if is_safe:
        return READS
    return next(each for each in NEEDS if each.paths.fullmatch(path))
