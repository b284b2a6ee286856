"""What handlers in processes ask of their claims, and what they log."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

import zkrq
import zkrq.logs
from tests.every import every
from tests.harness import HANG, in_process, new_namespace, until
from tests.integration import pool_jobs as jobs
from tests.integration.pool_stage import pooled
from zkrq import local
from zkrq.client.cluster import Cluster

pytestmark = pytest.mark.anyio


@pytest.fixture
async def cluster(servers: local.Servers) -> AsyncGenerator[Cluster, None]:
    async with in_process(servers, new_namespace()) as opened:
        yield opened


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


async def test_a_handler_in_a_process_of_its_own_is_told_what_to_use_for_its_flow(cluster: Cluster) -> None:
    async with pooled(cluster, jobs.ask_for_flow) as pool:
        assert (await pool.do("alone")).value == "None"
        async with pool.queue.flow("import") as flow:
            receipt = await flow.push("member")
        told = (await pool.queue.result(receipt.id, timeout=HANG)).get()
        assert told.endswith("use cluster.queue('jobs').flow('import')")
        assert (await cluster.queue("jobs").flow("import").status()).name == "import"


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
        assert "ValueError: as expected" in (failed.exc_text or "")
        assert "ValueError: as expected" in json.loads(zkrq.logs.JsonFormatter().format(failed))["exception"]
        assert quiet.getMessage() == "in a thread: ä"
