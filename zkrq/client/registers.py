"""Change registers of the coordinator that several clients write, and read those that say when names were entered."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from zkrq.protocol import znodes

if TYPE_CHECKING:
    from zkrq.coordination.coordinator import Coordinator, Versioned

TRIES = 20
"""Attempts to write a register while other clients write it."""


async def rewrite(
    coordinator: Coordinator, register: str, change: Callable[[Versioned], bytes | None], tries: int = TRIES
) -> Versioned | None:
    """Write what ``change`` makes of a register; return what it holds then, None if other clients were faster each
    time.

    ``change`` is called again after each lost race; it returns None if nothing is to be written.  It may see what it
    has written itself, if the answer was lost and another client wrote after it.
    Raises what ``change`` does, and ``Unavailable``: it may have been written.
    """
    for _ in range(tries):
        found = await coordinator.read(register)
        if (data := change(found)) is None:
            return found
        if (written := await coordinator.swap(register, data, found.version)) is not None:
            return written
    return None


def moments_in(data: bytes | None, what: str) -> dict[str, int]:
    """Return the names that ``with_moments`` has encoded under this heading, and when each was entered; none from what
    cannot be read: it is written anew."""
    if not data:
        return {}
    try:
        moments = znodes.read_object(data.decode())[what]
        return {znodes.text(name): znodes.count(moment) for name, moment in dict(moments).items()}
    except (KeyError, OverflowError, TypeError, ValueError):
        return {}


def with_moments(what: str, moments: Mapping[str, int]) -> bytes:
    """Encode names and their moments, in milliseconds since 1970, unlike any other writing of the same."""
    return json.dumps({what: moments, "nonce": secrets.token_hex(8)}, separators=(",", ":")).encode()
