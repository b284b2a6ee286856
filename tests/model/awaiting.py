"""Lets coroutines of the library run as clients of the model, which are generators.

A coroutine that awaits nothing but what is below needs no event loop: it is a generator that yields what the innermost
``await`` yields, which here is the requests of a client's step.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Coroutine, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from unittest.mock import patch

from tests.model.membership import PAUSE, Steps
from tests.model.world import World
from zkrq.base import clock

if TYPE_CHECKING:
    from tests.model.ensemble import Ensemble

T = TypeVar("T")


class Awaited(Generic[T]):
    """What a client does, for ``await``."""

    def __init__(self, steps: Steps[T]) -> None:
        self._steps = steps

    def __await__(self) -> Generator[Any, Any, T]:
        return self._steps


def steps_of(coroutine: Coroutine[Any, Any, T]) -> Steps[T]:
    """The opposite: what a coroutine does, for ``yield from``."""
    return (yield from coroutine.__await__())


def pause() -> Awaited[None]:
    """Let others go first."""
    return Awaited(_pause())


def doze(world: World) -> Awaited[None]:
    """Do nothing for a while, now and then."""
    return Awaited(_pause(world.doze()))


def _pause(turns: range = range(1)) -> Steps[None]:
    for _ in turns:
        yield PAUSE


@contextmanager
def determined(ensemble: Ensemble) -> Generator[None]:
    """What the library's coroutines read besides: the clock, and names that are used once."""
    clock.go_by(lambda: ensemble.now_ms * 1000)
    try:
        with (
            patch.object(secrets, "token_hex", lambda length=32: ensemble.first.nonce()),
            patch.object(asyncio, "gather", _in_turn),  # there is no event loop
        ):
            yield
    finally:
        clock.go_by(clock.machine_us)


async def _in_turn(*awaitables: Awaitable[T]) -> list[T]:
    return [await each for each in awaitables]
