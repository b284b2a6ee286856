"""What several pages ask for at the same time is read once, and never before it was asked for."""

from __future__ import annotations

import asyncio

import pytest

from zkrq.serve.contents import SharedReads

pytestmark = pytest.mark.anyio


class Source:
    """Something that is read when the test says so, and counts its readings."""

    def __init__(self) -> None:
        self.begun = 0
        self.answers = asyncio.Queue[Exception | None]()

    async def read(self) -> int:
        self.begun += 1
        number = self.begun
        if error := await self.answers.get():
            raise error
        return number


async def rest() -> None:
    """Have all that can go on do so."""
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
def source() -> Source:
    return Source()


async def test_those_that_come_during_a_reading_share_the_next_one(source: Source) -> None:
    shared = SharedReads()
    callers = [asyncio.create_task(shared.read("a", source.read)) for _ in range(10)]
    await rest()
    assert source.begun == 1
    source.answers.put_nowait(None)
    source.answers.put_nowait(None)
    assert await asyncio.gather(*callers) == [1] + [2] * 9
    assert not shared._readings  # pyright: ignore[reportPrivateUsage]
    source.answers.put_nowait(None)
    assert await shared.read("a", source.read) == 3, "nothing is kept"


async def test_other_keys_are_read_apart(source: Source) -> None:
    shared = SharedReads()
    callers = [asyncio.create_task(shared.read(key, source.read)) for key in "ab"]
    await rest()
    assert source.begun == 2
    source.answers.put_nowait(None)
    source.answers.put_nowait(None)
    assert await asyncio.gather(*callers) == [1, 2]


async def test_a_reading_that_fails_is_not_shared(source: Source) -> None:
    shared = SharedReads()
    callers = [asyncio.create_task(shared.read("a", source.read)) for _ in range(3)]
    for answer in (OSError("first"), OSError("second"), None):
        source.answers.put_nowait(answer)
    first, second, third = await asyncio.gather(*callers, return_exceptions=True)
    assert (str(first), str(second), third) == ("first", "second", 3)


async def test_a_caller_that_leaves_takes_nothing_from_the_others(source: Source) -> None:
    shared = SharedReads()
    callers = [asyncio.create_task(shared.read("a", source.read)) for _ in range(3)]
    await rest()
    callers[0].cancel()
    await rest()
    callers[1].cancel()
    await rest()
    source.answers.put_nowait(None)
    assert await callers[2] == 3
    assert not shared._readings  # pyright: ignore[reportPrivateUsage]
