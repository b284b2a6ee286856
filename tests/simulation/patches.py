"""Patch the inputs of a run that do not come from the event loop: clocks, random numbers and hashes."""

from __future__ import annotations

import random
import secrets
import time
import zlib
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from tests.simulation.code import LOADED
from tests.simulation.loop import PROCESS, Loop
from zkrq.consuming.claims import Claim, lease_of
from zkrq.protocol.records import VERSION_BYTES

EPOCH = 1_790_000_000.0
"""What the clock on the wall shows when a run begins."""


def _hash_claim(claim: Claim[Any]) -> int:
    lease = lease_of(claim)
    return zlib.crc32(f"{lease.id}/{lease.grant.request}/{lease.grant.packed[VERSION_BYTES].hex()}".encode())


@contextmanager
def determined(loop: Loop, seed: int) -> Generator[None, None, None]:
    """Clocks show the loop's time, and all chance comes from the seed.  Not covered: PYTHONHASHSEED, which has to be
    set before the interpreter starts."""
    chance = random.Random(f"{seed}/tokens")
    state = random.getstate()
    random.seed(f"{seed}/module")

    def shows() -> float:
        process = PROCESS.get()
        return EPOCH + loop.skipped + loop.now + (process.clock if process else 0.0)

    with (
        ExitStack() as of_each,
        patch.object(time, "time", shows),
        patch.object(time, "time_ns", lambda: int(shows() * 1e9)),
        patch.object(time, "monotonic", lambda: loop.now),
        patch.object(secrets, "token_bytes", lambda length=32: chance.randbytes(length or 32)),
        patch.object(secrets, "token_hex", lambda length=32: chance.randbytes(length or 32).hex()),
    ):
        for code in LOADED:
            # Weak sets of claims are walked in the order of their hashes.
            of_each.enter_context(patch.object(code.module("consuming.claims").Claim, "__hash__", _hash_claim))
            code.module("base.ids")._maker.begin()
        try:
            yield
        finally:
            random.setstate(state)
