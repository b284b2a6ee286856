"""How far the work on an item is: reported by its handler, read by others while the item is claimed."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

import zkrq
from tests.behaviour.conftest import PassTime
from tests.harness import settled, take
from zkrq.client.results import reading
from zkrq.consuming import reporting

pytestmark = pytest.mark.anyio


async def progress(queue: zkrq.Queue[Any], id: str) -> tuple[float | None, str] | None:
    item = await queue.get(id)
    assert item is not None
    return item.progress and (item.progress.fraction, item.progress.text)


async def test_last_report_is_seen_while_the_item_is_claimed(
    queue: zkrq.Queue[Any], cluster: zkrq.Cluster, name: str, pass_time: PassTime
) -> None:
    await queue.push("a book")
    claim = await take(queue)
    assert await progress(queue, claim.id) is None
    claim.progress(0.1, "page 3 of 30")
    await settled(lambda: _is(queue, claim.id, (0.1, "page 3 of 30")))
    for page in range(4, 13):
        claim.progress(page / 30, f"page {page} of 30")
    await pass_time(reporting.REPORT_SECONDS)
    await settled(lambda: _is(queue, claim.id, (0.4, "page 12 of 30")))
    result = await reading(queue).result(claim.id, timeout=0)
    assert (result.state, result.owner) == ("claimed", claim.owner)
    assert str(result.progress) == "40 %, page 12 of 30"
    await claim.release()
    assert await progress(queue, claim.id) is None
    again = await take(queue)
    assert await progress(queue, again.id) is None, "of the claim before"
    await again.ack()


async def _is(queue: zkrq.Queue[Any], id: str, wanted: tuple[float | None, str]) -> bool:
    return await progress(queue, id) == wanted


async def test_at_most_one_report_a_second_is_sent(
    queue: zkrq.Queue[Any], monkeypatch: pytest.MonkeyPatch, pass_time: PassTime
) -> None:
    sent = list[str]()
    make = reporting.Report

    def report(queue: str, id: str, token: str, text: str) -> Any:
        sent.append(text)
        return make(queue, id, token, text)

    monkeypatch.setattr(reporting, "Report", report)
    await queue.push(1)
    async with await take(queue) as claim:
        claim.progress(0.0)
        await settled(lambda: _is(queue, claim.id, (0.0, "")))
        for number in range(100):
            claim.progress(number / 100)
        await pass_time(reporting.REPORT_SECONDS)
        await settled(lambda: _is(queue, claim.id, (0.99, "")))
    assert sent == ["0 ", "0.99 "]


async def test_handler_in_a_thread_reports(queue: zkrq.Queue[Any]) -> None:
    reported, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def handle(item: Any, claim: zkrq.Claim[Any]) -> None:
        claim.progress(text="halfway " + "x" * 300)
        loop.call_soon_threadsafe(reported.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()

    receipt = await queue.push(1)
    working = asyncio.create_task(queue.work(handle))
    try:
        await reported.wait()
        await settled(lambda: _is(queue, receipt.id, (None, "halfway " + "x" * 192)))
    finally:
        go_on.set()
        working.cancel()
        await asyncio.wait([working])


async def test_bad_reports_are_refused(queue: zkrq.Queue[Any]) -> None:
    await queue.push(1)
    claim = await take(queue)
    for wrong in (-0.1, 1.1, math.nan, True, "half"):
        with pytest.raises(zkrq.ConfigError, match="progress"):
            claim.progress(wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(zkrq.ConfigError, match="text"):
        claim.progress(0.5, 7)  # pyright: ignore[reportArgumentType]
    assert await progress(queue, claim.id) is None
    await claim.ack()
    with pytest.raises(zkrq.ZkrqError):
        claim.progress(0.5)
