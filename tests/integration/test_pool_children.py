"""The processes of a pool: how they start, are replaced and end."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import logging
import os
import random
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

import zkrq
import zkrq.pool.pool
from tests.every import every
from tests.harness import HANG, in_process, new_namespace, over_zookeeper, until
from tests.integration import pool_jobs as jobs
from tests.integration.pool_stage import DEATHS, Pooled, is_alive, parent_of, pooled
from zkrq import local
from zkrq.client.cluster import Cluster

pytestmark = pytest.mark.anyio


@pytest.fixture
async def cluster(servers: local.Servers) -> AsyncGenerator[Cluster, None]:
    async with in_process(servers, new_namespace()) as opened:
        yield opened


async def test_a_handler_that_holds_the_gil_loses_no_claim(servers: local.Servers) -> None:
    client = over_zookeeper(servers, new_namespace(), session_timeout=2)
    async with client as cluster, pooled(cluster, jobs.hold_the_gil) as pool:
        result = await pool.do(6)
        assert result.state is zkrq.ResultState.DONE
        assert [outcome.ending for outcome in pool.outcomes] == [zkrq.Ending.ACKED]


async def test_a_child_has_no_connection_of_its_parent(cluster: Cluster) -> None:
    async with pooled(cluster, jobs.descriptors) as pool:
        mine = {target for target in jobs.descriptors("x") if target.startswith("socket:")}
        assert len(mine) > 3
        theirs = [target for target in (await pool.do("x")).get() if target.startswith("socket:")]
        assert len(theirs) == 1, "its connection to the parent"
        assert mine.isdisjoint(theirs)


async def test_children_are_replaced_after_some_items(cluster: Cluster) -> None:
    async with pooled(cluster, jobs.process, max_items=2) as pool:
        processes = [(await pool.do(n)).get() for n in range(6)]
        assert processes[::2] == processes[1::2]
        assert len(set(processes)) == 3
        assert (pool.counts.died, pool.counts.replaced) == (0, 3)
        await until(lambda: not any(is_alive(each) for each in processes))


async def test_one_child_for_each_item(cluster: Cluster) -> None:
    async with pooled(cluster, jobs.process, max_items=1, concurrency=2) as pool:
        receipts = await pool.queue.push_many(range(8))
        results = [await pool.queue.result(receipt.id, timeout=HANG) for receipt in receipts]
        assert len({result.value for result in results}) == 8


async def test_a_child_that_has_grown_is_replaced(cluster: Cluster) -> None:
    async with pooled(cluster, jobs.grow, max_memory=200 << 20) as pool:
        small = (await pool.do(1)).get()
        assert (await pool.do(1)).value == small
        assert (await pool.do(300 << 20)).value == small
        await until(lambda: pool.counts.replaced == 1)
        await until(lambda: not is_alive(small))
        assert (await pool.do(1)).value != small
        assert pool.counts.died == 0


async def test_what_a_handler_starts_heeds_signals(cluster: Cluster) -> None:
    async with pooled(cluster, jobs.ignored_in_a_subprocess) as pool:
        ignored = (await pool.do("x")).get()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            assert not ignored >> (number - 1) & 1, number.name


async def test_a_worker_runs_again(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "zkrq.working.worker")
    pool = Pooled(cluster, jobs.process, 1, concurrency=2)
    processes = set[int]()
    for _ in range(2):
        async with pool.worker:
            processes.add((await pool.do("x")).get())
            await until(lambda: pool.counts.idle == 2)
    assert len(processes) == 2
    assert "concurrency 2 in 2 processes" in caplog.text


async def test_what_a_handler_started_ends_with_its_process(cluster: Cluster) -> None:
    async with pooled(cluster, jobs.fork, max_items=1) as pool:
        process = (await pool.do("x")).get()
        await until(lambda: not is_alive(process))


@every("handler", [jobs.fork_and_come_back, jobs.fork_and_come_back_async])
async def test_a_process_that_a_handler_forks_takes_no_items(cluster: Cluster, handler: Callable[..., Any]) -> None:
    async with pooled(cluster, handler) as pool:
        for _ in range(3):
            assert (await pool.do("x")).value == "of the child"
        assert pool.counts.died == 0


async def test_a_burst_ends_with_the_last_item(cluster: Cluster) -> None:
    pool = Pooled(cluster, jobs.echo, 1, concurrency=2)
    receipts = await pool.queue.push_many(range(20))
    await pool.worker.run(burst=True)
    assert len(pool.outcomes) == 20
    results = [(await pool.queue.result(receipt.id, timeout=0)).value for receipt in receipts]
    assert results == [*range(20)]


async def test_items_that_wait_for_a_child_in_vain_are_handed_back(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zkrq.pool.pool, "FIRST_PAUSE", 0.05)
    monkeypatch.setattr(zkrq.pool.pool, "MAX_PAUSE", 0.05)
    monkeypatch.setattr(zkrq.pool.pool, "WAIT_SECONDS", 0.1)
    broken = tmp_path / "broken"
    (tmp_path / "fragile.py").write_text(
        f"import os\nif os.path.exists({str(broken)!r}):\n    raise RuntimeError\ndef tell(item): return item\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    handler = importlib.import_module("fragile").tell
    async with pooled(cluster, handler, max_items=1, preload=[]) as pool:
        await until(lambda: pool.counts.idle == 1)
        broken.touch()
        assert (await pool.do("first")).value == "first"
        receipt = await pool.queue.push("second")
        await until(lambda: zkrq.Ending.RELEASED in [outcome.ending for outcome in pool.outcomes])
        broken.unlink()
        assert (await pool.queue.result(receipt.id, timeout=HANG)).value == "second"
        endings = [outcome.ending for outcome in pool.outcomes]
        assert {*endings} == {zkrq.Ending.ACKED, zkrq.Ending.RELEASED}


async def test_nothing_is_left_of_a_pool(cluster: Cluster) -> None:
    async with pooled(cluster, jobs.echo, concurrency=3) as pool:
        await pool.do("x")
        await until(lambda: pool.counts.idle == 3)
        processes = [*pool.processes, starter := parent_of(pool.processes[0])]
        assert all(map(is_alive, processes))
    assert not any(map(is_alive, processes))
    assert not Path(f"/proc/{starter}").exists(), "a zombie"
    assert pool.counts == dataclasses.replace(pool.counts, starting=0, idle=0, working=0, stopping=0, memory=0)


@every("case", [(jobs.die_plain, 1), (jobs.die_async, 3)])
async def test_in_a_crowd_every_item_ends_as_it_should(cluster: Cluster, case: tuple[Callable[..., Any], int]) -> None:
    """With several slots, what is beside an item that kills its process may die with it."""
    handler, slots = case
    chance = random.Random(slots)
    kinds = ["fine"] * 12 + ["segfault", "exit", "kill", "slow"]
    items = [chance.choice(kinds) for _ in range(160)]
    options: dict[str, Any] = {"slots": slots, "max_items": 7, "kill_after": 0.5, "time_limit": 1.0}
    async with pooled(cluster, handler, concurrency=6, **options) as pool:
        receipts = await pool.queue.push_many(items)
        for item, receipt in zip(items, receipts, strict=True):
            result = await pool.queue.result(receipt.id, timeout=HANG)
            said = DEATHS.get(item, "TimeoutError: the handler was stopped at its time limit of 1 s")
            expected = (zkrq.ResultState.DONE, None) if item == "fine" else (zkrq.ResultState.DEAD, said)
            ended = (result.state, result.reason and result.reason.removeprefix("failed in delivery 1 of 1: "))
            if slots == 1 or ended[1] not in DEATHS.values():
                assert ended == expected
        await until(lambda: pool.counts.stopping == pool.counts.working == pool.counts.starting == 0)
        assert pool.counts.idle == -(-6 // slots)


async def test_a_starter_that_dies_is_replaced_with_its_children(cluster: Cluster, tmp_path: Path) -> None:
    async with pooled(cluster, jobs.stay, attempts=1) as pool:
        receipt = await pool.queue.push({"here": str(tmp_path), "how": "gil"})
        await until(lambda: (tmp_path / "begun").exists() and bool((tmp_path / "begun").read_text()))
        (child,) = pool.processes
        os.kill(parent_of(child), signal.SIGKILL)
        result = await pool.queue.result(receipt.id, timeout=HANG)
        assert (result.reason or "").endswith("the process that starts the handlers' processes has ended")
        await until(lambda: not is_alive(child))
        await until(lambda: pool.counts.idle == 1)


async def test_children_that_cannot_start_are_told_of_once_and_tried_again(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(zkrq.pool.pool, "FIRST_PAUSE", 0.05)
    monkeypatch.setattr(zkrq.pool.pool, "MAX_PAUSE", 0.05)
    (tmp_path / "broken.py").write_text(
        f"import os\nif os.getpid() != {os.getpid()} and not os.path.exists({str(tmp_path / 'mended')!r}):\n"
        "    raise RuntimeError('no licence')\ndef tell(item): return item\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    pool = Pooled(cluster, importlib.import_module("broken").tell, 1)
    receipt = await pool.queue.push("x")
    run = asyncio.create_task(pool.worker.run())
    await until(lambda: pool.counts.started >= 4)
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    (said,) = [text for text in errors if "import" in text]
    assert "handlers cannot be imported in a process: RuntimeError: no licence" in said
    assert "broken.py" in said
    assert len([text for text in errors if "before it was ready" in text]) == 1
    assert (await pool.queue.size()).ready == 1, "nothing is claimed before a child is ready"
    (tmp_path / "mended").touch()
    assert (await pool.queue.result(receipt.id, timeout=HANG)).value == "x"
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run


UNFIT = {
    "threads": (
        "threading.Thread(target=threading.Event().wait, name='beside', daemon=True).start()",
        "start threads (beside)",
    ),
    "connections": ("kept = socket.socketpair()", "open connections (2)"),
}


@every("kind", UNFIT)
async def test_modules_that_children_must_not_share_are_imported_by_each(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    does, said = UNFIT[kind]
    (tmp_path / f"with_{kind}.py").write_text(
        f"import os, socket, threading\nif os.getpid() != {os.getpid()}:\n    {does}\n"
        "imported_by = os.getpid()\ndef tell(item): return [imported_by, os.getpid()]\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    handler = importlib.import_module(f"with_{kind}").tell
    for preload, is_warned in ((None, True), ((), False)):
        caplog.clear()
        async with pooled(cluster, handler, preload=preload) as pool:
            by, process = (await pool.do("x")).get()
            assert by == process
            assert pool.counts.died == 0
        assert (said in caplog.text) is is_warned
