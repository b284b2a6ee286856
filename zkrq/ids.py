"""Item ids: unique, and they carry the time when they were made.

``019aa5f2c31-3f9c2a71-1b``: milliseconds since 1970, the process's own random number, a count; all in hexadecimal.  The
time lets a server refuse a push that comes too late.  ``id=`` may also be any other short text; then the time of the
push counts.
"""

from __future__ import annotations

import itertools
import os
import re
import secrets
import time

_OWN_FORMAT = re.compile(r"([0-9a-f]{11})-[0-9a-f]{8}-[0-9a-f]+")


class _Maker:
    """The ids of this process; a forked child begins anew."""

    def __init__(self) -> None:
        self.begin()
        os.register_at_fork(after_in_child=self.begin)

    def begin(self) -> None:
        self._process = secrets.token_hex(4)
        self._count = itertools.count()

    def make(self, now_ms: int) -> str:
        return f"{now_ms:011x}-{self._process}-{next(self._count):x}"


_maker = _Maker()


def new_id() -> str:
    """A new id, to be pushed soon.  Make it before the push to be able to repeat the push safely."""
    return _maker.make(time.time_ns() // 1_000_000)


def new_id_at(now_ms: int) -> str:
    """A new id that carries this moment."""
    return _maker.make(now_ms)


def made_at_ms(id: str) -> int | None:
    """The time that an id carries, in milliseconds since 1970; None for one that was not made here."""
    match = _OWN_FORMAT.fullmatch(id)
    return int(match[1], 16) if match else None
