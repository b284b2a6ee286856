"""Handlers in processes: what they see, how they end, and what becomes of their items."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

import zkrq
from tests.every import every
from tests.harness import HANG, in_process, new_namespace, settled, until
from tests.integration import pool_jobs as jobs
from tests.integration.pool_stage import DEATHS, Pooled, folder_in, is_alive, pooled
from zkrq import local
from zkrq.client.cluster import Cluster
from zkrq.client.queue import push_encoded

pytestmark = pytest.mark.anyio


@pytest.fixture
async def cluster(servers: local.Servers) -> AsyncGenerator[Cluster, None]:
    async with in_process(servers, new_namespace()) as opened:
        yield opened


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


async def test_handlers_by_task_run_in_processes(cluster: Cluster) -> None:
    """And what has none goes back here, without a process."""
    handlers: zkrq.Handlers[Any] = {"where": jobs.where, "greet": zkrq.Task(jobs.greet, time_limit=60)}
    async with pooled(cluster, handlers, unknown_after=0) as pool:
        seen = (await pool.do("a", task="where", headers={"trace": "t"})).get()
        assert (seen["task"], seen["headers"]) == ("where", {"trace": "t"})
        assert seen["process"] != os.getpid()
        assert (await pool.do("you", task="greet")).get() == "hello you"
        assert "no handler for task 'other'" in ((await pool.do("a", task="other")).reason or "")


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


@every("handler", [jobs.fail, jobs.fail_async, jobs.put_off])
async def test_a_handler_puts_its_item_off(cluster: Cluster, handler: Callable[..., Any]) -> None:
    async with pooled(cluster, handler) as pool:
        assert (await pool.do("early")).value == "early"
        endings = [outcome.ending for outcome in pool.outcomes]
        assert set(endings[:-1]) == {zkrq.Ending.RELEASED}, "once in each process"
        assert endings[-1] is zkrq.Ending.ACKED


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
        other = folder_in(tmp_path, "other")
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
    tmp_path = folder_in(tmp_path, how)
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
    tmp_path = folder_in(tmp_path, how)
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
    tmp_path = folder_in(tmp_path, handler.__name__)
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
