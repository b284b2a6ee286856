"""Handlers in processes: what they see, how they end, and what becomes of their items."""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import zkrq
from tests.every import every
from tests.harness import HANG, in_process, new_namespace, until
from tests.integration import pool_jobs as jobs
from zkrq import local
from zkrq.client.cluster import Cluster
from zkrq.client.queue import push_encoded
from zkrq.pool.pool import PoolStatistics

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


# -- how they fail -----------------------------------------------------------------------------------------------------


@every("handler", [jobs.fail, jobs.fail_async])
async def test_what_a_handler_raises_is_data(cluster: Cluster, handler: Callable[..., Any]) -> None:
    async with pooled(cluster, handler) as pool:
        reasons = {}
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


# -- what cannot be in a process ---------------------------------------------------------------------------------------


async def test_what_no_process_finds_is_refused_as_it_is_added(cluster: Cluster) -> None:
    def local_one(item: object) -> None: ...

    queue = cluster.queue("jobs")
    for handler in (local_one, lambda item: None):
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
        "import os, threading\nthreading.Thread(target=threading.Event().wait, name='beside', daemon=True).start()\n"
        "imported_by = os.getpid()\ndef tell(item): return [imported_by, os.getpid()]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    handler = importlib.import_module("threaded").tell
    for preload, warned in ((None, True), ((), False)):
        caplog.clear()
        async with pooled(cluster, handler, preload=preload) as pool:
            by, process = (await pool.do("x")).get()
            assert by == process
            assert pool.counts.died == 0
        assert ("start threads (beside)" in caplog.text) is warned
