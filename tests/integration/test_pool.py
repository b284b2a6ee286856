"""Handlers in processes: what they see, how they end, and what becomes of their items."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import json
import logging
import os
import random
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import zkrq
import zkrq.logs
import zkrq.pool.pool
from tests.every import every
from tests.harness import HANG, in_process, new_namespace, over_zookeeper, settled, until
from tests.integration import pool_jobs as jobs
from zkrq import local
from zkrq.client.cluster import Cluster
from zkrq.client.queue import push_encoded
from zkrq.pool.counts import PoolStatistics

pytestmark = pytest.mark.anyio


@pytest.fixture
async def cluster(servers: local.Servers) -> AsyncGenerator[Cluster, None]:
    async with in_process(servers, new_namespace()) as opened:
        yield opened


class Pooled:
    """A worker with a pool, on one queue that keeps results."""

    def __init__(self, cluster: Cluster, handler: Callable[..., Any], attempts: int, **options: Any) -> None:
        retry = zkrq.Retry(max_attempts=attempts, backoff=zkrq.constant(0))
        self.queue: zkrq.ResultQueue[Any, Any] = cluster.queue("jobs", retry=retry, results=zkrq.Results())
        self.outcomes: list[zkrq.Outcome] = []
        limit = options.pop("time_limit", None)
        grace, concurrency = options.pop("grace", 30.0), options.pop("concurrency", 1)
        self.worker = zkrq.Worker(concurrency=concurrency, grace=grace, pool=zkrq.Processes(**options))
        self.worker.add(self.queue, handler, time_limit=limit, after=lambda _, outcome: self.outcomes.append(outcome))

    async def do(self, item: Any, **options: Any) -> zkrq.Result[Any]:
        """Push an item, and wait for its end."""
        receipt = await self.queue.push(item, **options)
        result = await self.queue.result(receipt.id, timeout=HANG)
        assert result.has_ended, result
        return result

    @property
    def counts(self) -> PoolStatistics:
        pool = self.worker._pool  # pyright: ignore[reportPrivateUsage]
        assert pool
        return pool.statistics()

    @property
    def processes(self) -> list[int]:
        pool = self.worker._pool  # pyright: ignore[reportPrivateUsage]
        assert pool
        return [child.process for child in pool._children.values()]  # pyright: ignore[reportPrivateUsage]


@asynccontextmanager
async def pooled(
    cluster: Cluster, handler: Callable[..., Any], *, attempts: int = 1, **options: Any
) -> AsyncGenerator[Pooled]:
    made = Pooled(cluster, handler, attempts, **options)
    async with made.worker:
        yield made


def is_alive(process: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def _folder(parent: Path, name: str) -> Path:
    (folder := parent / name).mkdir()
    return folder


# -- what handlers see -------------------------------------------------------------------------------------------------


@every("handler", [jobs.where, jobs.where_async])
async def test_a_handler_sees_its_claim_in_another_process(cluster: Cluster, handler: Callable[..., Any]) -> None:
    async with pooled(cluster, handler) as pool:
        id = zkrq.new_id()
        options = {"id": id, "key": "k", "group": "g", "priority": 3, "headers": {"trace": "t"}}
        seen = (await pool.do({"a": [1, "ä"]}, **options)).get()
        assert seen["process"] != os.getpid()
        expected = {"id": id, "queue": "jobs", "key": "k", "group": "g", "priority": 3, "headers": {"trace": "t"}}
        assert {name: seen[name] for name in expected} == expected
        assert (seen["attempts"], seen["failures"], seen["holds"], seen["lost"]) == (1, 0, True, False)
        assert seen["main thread"]
        assert seen["redis"] == []
        assert len(seen["token"]) == 2
        again = (await pool.do({"a": 1})).get()
        assert again.get("loop") == seen.get("loop"), "a child has one event loop"
        assert again["process"] == seen["process"]


@every(
    "case",
    [
        (jobs.echo, {"a": [1, None, "ä"]}, {"a": [1, None, "ä"]}),
        (jobs.echo, None, None),
        (jobs.greet, "you", "hello you"),
        (jobs.add_three, 4, 7),
        (jobs.awaitable, "ab", "abab"),
    ],
)
async def test_handlers_of_every_kind_return_results(cluster: Cluster, case: tuple[Any, Any, Any]) -> None:
    handler, item, expected = case
    async with pooled(cluster, handler) as pool:
        result = await pool.do(item)
        assert (result.state, result.value) == (zkrq.ResultState.DONE, expected)


KEY = zkrq.typed.new_key()

CODECS: dict[str, Callable[[], Any]] = {
    "msgspec": lambda: zkrq.typed.MsgPack(jobs.Point),
    "pydantic": lambda: zkrq.typed.Pydantic(jobs.Point),
    "encrypted": lambda: zkrq.typed.Encrypted(zkrq.typed.Json(jobs.Point), [KEY]),
}


@every("name", CODECS)
async def test_codecs_decode_and_encode_in_the_child(cluster: Cluster, name: str) -> None:
    codec = CODECS[name]()
    queue = cluster.queue(name, codec=codec, results=zkrq.Results(codec=codec))
    async with zkrq.Worker(concurrency=1, pool=zkrq.Processes()).add(queue, jobs.move):
        receipt = await queue.push(jobs.Point(1))
        assert (await queue.result(receipt.id, timeout=HANG)).get() == jobs.Point(2)


async def test_a_codec_that_cannot_be_sent_is_refused(cluster: Cluster) -> None:
    keys = zkrq.typed.Encrypted(zkrq.JSON, lambda: [KEY])
    with pytest.raises(zkrq.ConfigError, match="the codecs of queue 'jobs' cannot be sent to a process"):
        zkrq.Worker(pool=zkrq.Processes()).add(cluster.queue("jobs", codec=keys), jobs.echo)


async def test_children_draw_different_random_numbers(cluster: Cluster) -> None:
    pytest.importorskip("numpy")
    async with pooled(cluster, jobs.draw, max_items=1, preload=["numpy", jobs.__name__]) as pool:
        drawn = [(await pool.do(n)).get() for n in range(3)]
        assert len({number for numbers in drawn for number in numbers}) == 6


async def test_the_parent_decodes_an_item_for_a_hook_that_asks(cluster: Cluster) -> None:
    queue = cluster.queue("jobs", results=zkrq.Results())
    seen: list[object] = []
    worker = zkrq.Worker(concurrency=1, pool=zkrq.Processes(), before=lambda claim: seen.append(claim.item))
    async with worker.add(queue, jobs.echo):
        receipt = await queue.push({"a": 1})
        assert (await queue.result(receipt.id, timeout=HANG)).get() == {"a": 1}
    assert seen == [{"a": 1}]
    await queue.push({"b": 2})
    claim = await queue.pop_one(timeout=HANG)
    assert claim is not None
    assert claim.item == {"b": 2}
    await claim.ack()


# -- how they fail -----------------------------------------------------------------------------------------------------


@every("handler", [jobs.fail, jobs.fail_async])
async def test_what_a_handler_raises_is_data(cluster: Cluster, handler: Callable[..., Any]) -> None:
    async with pooled(cluster, handler) as pool:
        reasons = dict[str, str]()
        for item in ("value", "unpicklable", "odd", "exit", "interrupt", "cancelled", "reject", "rejects", "result"):
            result = await pool.do(item)
            assert result.state is zkrq.ResultState.DEAD
            reasons[item] = (result.reason or "").removeprefix("failed in delivery 1 of 1: ")
        assert reasons["value"] == "ValueError: a bad value"
        assert reasons["unpicklable"] == "Unpicklable: has two arguments, and a lock"
        assert reasons["odd"] == "OddName: (it has no text: its __str__ raised RuntimeError)"
        assert reasons["exit"] == "SystemExit: 2"
        assert reasons["interrupt"].startswith("KeyboardInterrupt")
        assert reasons["cancelled"] == "RuntimeError: the handler cancelled itself"
        assert (reasons["reject"], reasons["rejects"]) == ("never", "rejected")
        assert reasons["result"].startswith("CodecError: the result cannot be encoded as json")
        assert (await pool.do("large")).state is zkrq.ResultState.DEAD
        assert pool.counts.died == 0, "the process of a handler that raises goes on"
        error = pool.outcomes[0].error
        assert isinstance(error, zkrq.HandlerError)
        assert error.kinds[:2] == ("builtins.ValueError", "builtins.Exception")
        assert "pool_jobs.py" in error.trace
        assert "zkrq/pool" not in error.trace


async def test_a_traceback_is_kept_with_the_dead_letter(cluster: Cluster) -> None:
    async with pooled(cluster, jobs.fail) as pool:
        result = await pool.do("value")
        assert result.traceback is not None
        assert "pool_jobs.py" in result.traceback
        assert "in fail" in result.traceback


@every("handler", [jobs.fail, jobs.fail_async])
async def test_a_handler_wishes_another_attempt(cluster: Cluster, handler: Callable[..., Any]) -> None:
    async with pooled(cluster, handler, attempts=2) as pool:
        assert (await pool.do("later")).value == "later"
        assert [outcome.ending for outcome in pool.outcomes] == [zkrq.Ending.RETRIED, zkrq.Ending.ACKED]


DEATHS = {
    "segfault": "the handler's process was killed by SIGSEGV",
    "exit": "the handler's process ended with exit code 3",
    "kill": "the handler's process was killed by SIGKILL",
    "close": "the handler's process was killed, because it closed its connection",
    "frame": "the handler's process was killed, because it sent a message of 4294967295 bytes, at most 262144 are "
    "allowed",
}


@every("how", DEATHS)
async def test_a_process_that_dies_fails_its_item(cluster: Cluster, how: str) -> None:
    async with pooled(cluster, jobs.die, attempts=2) as pool:
        result = await pool.do(how)
        assert result.state is zkrq.ResultState.DEAD
        assert result.reason == f"failed in delivery 2 of 2: {DEATHS[how]}"
        assert (await pool.do("no harm")).state is zkrq.ResultState.DONE


async def test_a_process_that_dies_fails_no_other_item(cluster: Cluster, tmp_path: Path) -> None:
    async with pooled(cluster, jobs.stay, concurrency=2) as pool:
        kept = await pool.queue.push({"here": str(tmp_path), "how": "wait"})
        await until((tmp_path / "begun").exists)
        other = _folder(tmp_path, "other")
        killed = await pool.queue.push({"here": str(other), "how": "gil"})
        await until(lambda: (other / "begun").exists() and bool((other / "begun").read_text()))
        os.kill(int((other / "begun").read_text()), signal.SIGKILL)
        assert (await pool.queue.result(killed.id, timeout=HANG)).state is zkrq.ResultState.DEAD
        assert (await pool.queue.result(kept.id, timeout=0)).state is zkrq.ResultState.CLAIMED
        pool.worker.grace = 0


async def test_an_item_that_cannot_be_decoded_is_a_dead_letter(cluster: Cluster) -> None:
    async with pooled(cluster, jobs.echo) as pool:
        receipt = await push_encoded(pool.queue, b"{no json")
        result = await pool.queue.result(receipt.id, timeout=HANG)
        assert result.state is zkrq.ResultState.DEAD
        assert (result.reason or "").startswith("cannot be decoded as json: JSONDecodeError")


# -- how they are stopped ----------------------------------------------------------------------------------------------


@every("how", ["wait", "gil", "regex", "deaf"])
async def test_a_time_limit_is_hard(cluster: Cluster, tmp_path: Path, how: str) -> None:
    tmp_path = _folder(tmp_path, how)
    async with pooled(cluster, jobs.stay, time_limit=0.5, kill_after=0.3) as pool:
        result = await pool.do({"here": str(tmp_path), "how": how})
        assert result.state is zkrq.ResultState.DEAD
        assert (result.reason or "").endswith("TimeoutError: the handler was stopped at its time limit of 0.5 s")
        process = int((tmp_path / "begun").read_text())
        await until(lambda: not is_alive(process))
        was_told = how in ("wait", "regex")  # `re` looks for signals
        assert (tmp_path / "ended").exists() is was_told
        if was_told:
            assert (tmp_path / "raised").read_text() == "CancelledError"


@every("how", ["wait", "block"])
async def test_a_time_limit_stops_async_handlers(cluster: Cluster, tmp_path: Path, how: str) -> None:
    tmp_path = _folder(tmp_path, how)
    async with pooled(cluster, jobs.stay_async, time_limit=0.5, kill_after=0.3) as pool:
        result = await pool.do({"here": str(tmp_path), "how": how})
        assert (result.reason or "").endswith("TimeoutError: the handler was stopped at its time limit of 0.5 s")


async def test_a_handler_that_finishes_while_it_is_stopped_has_done_its_item(cluster: Cluster, tmp_path: Path) -> None:
    async with pooled(cluster, jobs.stay, time_limit=0.3) as pool:
        result = await pool.do({"here": str(tmp_path), "how": "finish"})
        assert (result.state, result.value) == (zkrq.ResultState.DONE, "finished")


async def test_a_drain_hands_back_and_a_second_end_kills(cluster: Cluster, tmp_path: Path) -> None:
    pool = Pooled(cluster, jobs.stay, 1, grace=60, kill_after=8)
    run = asyncio.create_task(pool.worker.run())
    receipt = await pool.queue.push({"here": str(tmp_path), "how": "gil"})
    await until(lambda: (tmp_path / "begun").exists() and bool((tmp_path / "begun").read_text()))
    processes = pool.processes
    run.cancel()  # it drains, within its grace
    await asyncio.sleep(0)
    run.cancel()  # its grace ends: SIGTERM
    await until(lambda: pool.counts.stopping == 1)
    run.cancel()  # it ends: SIGKILL
    with pytest.raises(asyncio.CancelledError):
        await run
    assert not any(map(is_alive, processes))
    await settled(lambda: _is_ready(pool, receipt.id))


async def _is_ready(pool: Pooled, id: str) -> bool:
    item = await pool.queue.get(id)
    return item is not None and item.state == "ready"


async def test_a_drain_stops_handlers_and_hands_their_items_back_uncounted(cluster: Cluster, tmp_path: Path) -> None:
    async with pooled(cluster, jobs.stay, grace=0.1) as pool:
        receipt = await pool.queue.push({"here": str(tmp_path), "how": "wait"})
        await until((tmp_path / "begun").exists)
    assert (tmp_path / "raised").read_text() == "CancelledError"
    item = await pool.queue.get(receipt.id)
    assert item is not None
    assert (item.state, item.attempts) == ("ready", 0)
    assert pool.worker.statistics().cut_off == 1


@every("handler", [jobs.stay, jobs.stay_async])
async def test_a_loss_is_told_and_stops_the_handler(
    cluster: Cluster, tmp_path: Path, handler: Callable[..., Any]
) -> None:
    tmp_path = _folder(tmp_path, handler.__name__)
    async with pooled(cluster, handler) as pool:
        receipt = await pool.queue.push({"here": str(tmp_path), "how": "wait"})
        await until((tmp_path / "begun").exists)
        await pool.queue.cancel(receipt.id)
        await until((tmp_path / "raised").exists)
        assert (tmp_path / "raised").read_text() == "CancelledError"
        assert (tmp_path / "lost").read_text() == "its item was cancelled"
        await until(lambda: bool(pool.outcomes))
        assert pool.outcomes[0].ending is zkrq.Ending.LOST


async def test_a_signal_to_every_process_stops_no_handler(cluster: Cluster, tmp_path: Path) -> None:
    """As a service manager sends it: the parent decides."""
    async with pooled(cluster, jobs.tell) as pool:
        file = tmp_path / "go"
        receipt = await pool.queue.push(str(file))
        await settled(lambda: _has_progress(pool, receipt.id))
        (starter,) = {
            int(Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[1]) for each in pool.processes
        }
        for process in (*pool.processes, starter):
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                os.kill(process, number)
        file.touch()
        assert (await pool.queue.result(receipt.id, timeout=HANG)).state is zkrq.ResultState.DONE
        assert pool.counts.died == 0


async def _has_progress(pool: Pooled, id: str) -> bool:
    item = await pool.queue.get(id)
    if item is None or item.progress is None:
        return False
    assert (item.progress.fraction, item.progress.text) == (0.25, "a quarter")
    return True


async def test_one_of_several_in_a_child_is_stopped_alone(cluster: Cluster, tmp_path: Path) -> None:
    async with pooled(cluster, jobs.stay_async, concurrency=3, slots=3) as pool:
        items = [{"here": str(tmp_path), "how": "wait", "n": n} for n in range(3)]
        receipts = [await pool.queue.push(item) for item in items]
        await until(lambda: all((tmp_path / f"begun{n}").exists() for n in range(3)))
        assert len({(tmp_path / f"begun{n}").read_text() for n in range(3)}) == 1
        await pool.queue.cancel(receipts[1].id)
        await until(lambda: bool(pool.outcomes))
        assert [outcome.ending for outcome in pool.outcomes] == [zkrq.Ending.LOST]
        assert (pool.counts.working, pool.counts.died) == (1, 0)
        pool.worker.grace = 0


# -- what handlers ask for ---------------------------------------------------------------------------------------------


async def test_async_handlers_call_their_claim(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    async with pooled(cluster, jobs.call, attempts=2) as pool:
        assert (await pool.do("ack")).value == "by hand"
        assert (await pool.do("nack")).value == "returned"
        again = await pool.do("nack as the policy says")
        assert (again.state, again.reason) == (zkrq.ResultState.DEAD, "failed in delivery 2 of 2: not yet")
        buried = await pool.do("bury")
        assert (buried.state, buried.reason) == (zkrq.ResultState.DEAD, "no use")
        assert (await pool.do("extend")).value == "returned"
        assert (await pool.do("extend for too long")).get().startswith("seconds is 1000000000")
        assert (await pool.do("twice")).value == "once"
        await until(lambda: "refused: the claim on item" in caplog.text)
        assert "was settled before: ack" in caplog.text


async def test_a_plain_handler_calls_its_claim_on_its_own_thread(cluster: Cluster) -> None:
    async with pooled(cluster, jobs.call_plain) as pool:
        assert "is called on its own thread" in (await pool.do("x")).get()


async def test_a_plain_handler_is_stopped_while_it_waits_for_an_answer(cluster: Cluster, tmp_path: Path) -> None:
    async with pooled(cluster, jobs.stay_asking) as pool:
        receipt = await pool.queue.push({"here": str(tmp_path)})
        await until((tmp_path / "begun").exists)
        await pool.queue.cancel(receipt.id)
        await until(lambda: bool(pool.outcomes))
        assert (tmp_path / "raised").read_text() in ("CancelledError", "ClaimLost")


@every("handler", [jobs.save, jobs.save_plain])
async def test_what_a_handler_saves_survives_it(cluster: Cluster, handler: Callable[..., Any]) -> None:
    async with pooled(cluster, handler, attempts=2) as pool:
        told = (await pool.do("x")).get()
        assert told == {"state": {"page": 3, "value": told["value"]}, "value": told["value"], "attempts": 2}


async def test_log_records_reach_the_parent(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("tests.quiet").setLevel(logging.WARNING)
    logging.getLogger("tests.jobs").setLevel(logging.INFO)
    async with pooled(cluster, jobs.speak) as pool:
        receipt = await pool.queue.push("ä")
        await pool.queue.result(receipt.id, timeout=HANG)
        said, failed, quiet = [record for record in caplog.records if record.name.startswith("tests.")]
        assert (said.getMessage(), said.levelname, said.name) == ("said ä", "INFO", "tests.jobs")
        known = {name: getattr(said, name) for name in ("queue", "item", "attempt", "user", "process")}
        assert known == {
            "queue": "jobs", "item": receipt.id, "attempt": 1, "user": "u1", "process": pool.processes[0],
        }  # fmt: skip
        assert "ValueError: told of" in (failed.exc_text or "")
        assert "ValueError: told of" in json.loads(zkrq.logs.JsonFormatter().format(failed))["exception"]
        assert quiet.getMessage() == "in a thread: ä"


# -- processes ---------------------------------------------------------------------------------------------------------


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


# -- what cannot be in a process ---------------------------------------------------------------------------------------


async def test_what_no_process_finds_is_refused_as_it_is_added(cluster: Cluster) -> None:
    def local_one(item: object) -> None: ...

    def local_two(item: object, claim: object) -> None: ...

    queue = cluster.queue("jobs")
    for handler in (local_one, local_two):
        with pytest.raises(zkrq.ConfigError, match="define it at the top level of a module"):
            zkrq.Worker(pool=zkrq.Processes()).add(queue, handler)
    zkrq.Worker(pool=zkrq.Processes()).add(queue, jobs.echo)


async def test_batches_and_plain_handlers_beside_others_are_refused(cluster: Cluster) -> None:
    queue = cluster.queue("jobs")
    with pytest.raises(zkrq.ConfigError, match="leave batch out, or the pool"):
        zkrq.Worker(pool=zkrq.Processes()).add(queue, jobs.echo, batch=5)
    zkrq.Worker(pool=zkrq.Processes()).add(queue, jobs.echo)
    zkrq.Worker().add(queue, jobs.echo, batch=5)
    with pytest.raises(zkrq.ConfigError, match="slots must be 1"):
        zkrq.Worker(pool=zkrq.Processes(slots=2)).add(queue, jobs.echo)
    zkrq.Worker(pool=zkrq.Processes(slots=2)).add(queue, jobs.call)


@every(
    "case",
    [
        ({"slots": 0}, "slots is 0"),
        ({"max_items": 0}, "max_items is 0"),
        ({"max_memory": 0}, "max_memory is 0"),
        ({"preload": "jobs"}, "a list of modules' names"),
        ({"kill_after": 9}, "at most 8 s"),
    ],
)
def test_bad_settings_are_refused(case: tuple[dict[str, Any], str]) -> None:
    options, said = case
    with pytest.raises(zkrq.ConfigError, match=said):
        zkrq.Processes(**options)


async def test_modules_that_start_threads_are_imported_by_each_child(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "threaded.py").write_text(
        f"import os, threading\nif os.getpid() != {os.getpid()}:\n"
        "    threading.Thread(target=threading.Event().wait, name='beside', daemon=True).start()\n"
        "imported_by = os.getpid()\ndef tell(item): return [imported_by, os.getpid()]\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    handler = importlib.import_module("threaded").tell
    for preload, warned in ((None, True), ((), False)):
        caplog.clear()
        async with pooled(cluster, handler, preload=preload) as pool:
            by, process = (await pool.do("x")).get()
            assert by == process
            assert pool.counts.died == 0
        assert ("start threads (beside)" in caplog.text) is warned
