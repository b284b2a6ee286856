"""The dashboard and the alerts work in a real Prometheus that scrapes a real run with faults."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
import subprocess
from collections.abc import AsyncGenerator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest

import zkrq
from tests.behaviour.helpers import FEW_ATTEMPTS
from tests.harness import HANG, in_process, new_namespace, settled
from zkrq import local
from zkrq.coordination.memory import Hub
from zkrq.process.listening import Address, Answer, Listener
from zkrq.prometheus import CONTENT_TYPE, instrument

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "examples" / "monitoring"
DASHBOARD: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text())
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
ALERTS = re.findall(r"- alert: (\w+)", (MONITORING / "alerts.yml").read_text())

needs_prometheus = pytest.mark.skipif(shutil.which("prometheus") is None, reason="not installed: prometheus")


@needs_prometheus
def test_the_alerts_are_raised_when_they_should_be_and_only_then() -> None:
    check = ["promtool", "check", "config", "prometheus.yml"]
    assert subprocess.run(check, cwd=MONITORING, capture_output=True, check=False).returncode == 0
    tests = subprocess.run(
        ["promtool", "test", "rules", "alerts_test.yml"], cwd=MONITORING, capture_output=True, text=True, check=False
    )
    assert tests.returncode == 0, tests.stderr + tests.stdout


def test_every_alert_is_tested_and_explained() -> None:
    tested = (MONITORING / "alerts_test.yml").read_text()
    page, runbook = ((ROOT / "docs" / name).read_text() for name in ("observability.md", "operations.md"))
    assert len(ALERTS) > 10
    assert set(re.findall(r"^## (\w+)$", runbook, re.MULTILINE)) == set(ALERTS)
    for alert in ALERTS:
        assert f"alertname: {alert}\n" in tested
        assert f"| `{alert}` |" in page
        assert f"runbook_url: docs/operations.md#{alert.lower()}\n" in (MONITORING / "alerts.yml").read_text()


def test_the_dashboard_and_the_alerts_use_metrics_that_exist() -> None:
    page = (ROOT / "docs" / "observability.md").read_text()
    for text in [*EXPRESSIONS, (MONITORING / "alerts.yml").read_text()]:
        for name in re.findall(r"zkrq_\w+", text):
            assert f"`{re.sub('_(sum|count|bucket)$', '', name)}`" in page, name


class Prometheus:
    """A Prometheus that scrapes one address every second."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def ask(self, expression: str) -> list[Any]:
        """The samples of an expression; none before Prometheus answers."""
        try:
            reply = await self._client.get("/api/v1/query", params={"query": expression})
        except httpx.TransportError:
            return []
        assert reply.status_code in (200, 503), reply.text
        return reply.json()["data"]["result"] if reply.status_code == 200 else []

    async def has(self, expression: str, at_least: int = 1) -> bool:
        return len(await self.ask(expression)) >= at_least

    async def raised(self) -> set[str]:
        reply = await self._client.get("/api/v1/alerts")
        return {alert["labels"]["alertname"] for alert in reply.json()["data"]["alerts"]}


@pytest.fixture
async def prometheus(tmp_path: Path, anyio_backend: str) -> AsyncGenerator[tuple[Prometheus, Address]]:
    """A Prometheus, and the address that it scrapes."""
    ports: list[int] = []
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as server:
            ports.append(server.getsockname()[1])
    own, scraped = (Address("127.0.0.1", port) for port in ports)
    config = (MONITORING / "prometheus.yml").read_text()
    config = config.replace("127.0.0.1:9464", str(scraped)).replace("scrape_interval: 15s", "scrape_interval: 1s")
    config = config.replace("global:\n", "global:\n  evaluation_interval: 1s\n")
    (tmp_path / "prometheus.yml").write_text(config)
    shutil.copy(MONITORING / "alerts.yml", tmp_path)
    process = subprocess.Popen(
        [
            "prometheus",
            "--config.file=prometheus.yml",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address={own}",
            "--log.level=error",
        ],
        cwd=tmp_path,
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://{own}", timeout=HANG) as client:
            yield Prometheus(client), scraped
    finally:
        process.kill()
        process.wait()


@needs_prometheus
async def test_a_run_with_faults_is_seen_on_the_dashboard(prometheus: tuple[Prometheus, Address]) -> None:
    """A server is killed, items become dead letters, a queue is paused: each is a curve, and perhaps an alert."""
    watching, scraped = prometheus
    namespace = new_namespace()
    registry = CollectorRegistry()
    async with (
        local.servers(redis=3, zookeeper=0) as servers,
        in_process(servers, namespace, Hub(), command_timeout=1.0) as cluster,
    ):
        instrument(cluster, registry)
        with Listener(scraped, lambda _: Answer(HTTPStatus.OK, generate_latest(registry), CONTENT_TYPE)):
            jobs, paused = cluster.queue("jobs", retry=FEW_ATTEMPTS), cluster.queue("paused")
            await paused.push("x")
            await paused.pause()

            async def handle(item: int) -> None:
                await asyncio.sleep(0)
                if item % 5 == 0:
                    raise ValueError(item)

            async with zkrq.Worker(concurrency=4).add(jobs, handle):

                async def busy(expression: str) -> bool:
                    await asyncio.gather(*(jobs.push(number) for number in range(20)))
                    return await watching.has(expression.replace("$cluster", namespace).replace("$queue", ".*"))

                await busy("up")
                await servers.redis[0].kill()
                for expression in EXPRESSIONS:
                    async with asyncio.timeout(HANG):
                        while not await busy(expression):
                            await asyncio.sleep(0.2)
                server = servers.redis[0].name
                assert await watching.has(f'zkrq_evictions_total{{server="{server}"}} == 1')
                assert await watching.has(f'zkrq_server_place{{server="{server}",place="out"}} == 1')
                assert await watching.has("zkrq_in_sync_servers == 2")
                assert await watching.has('zkrq_queue_items{queue="jobs",state="dead"} > 0')
                assert await watching.has('zkrq_queue_paused{queue="paused"} == 1')

                async def raised() -> bool:
                    return {"ZkrqServerOut", "ZkrqPaused"} <= await watching.raised()  # pending, for it must last

                await settled(raised)
                await servers.redis[0].start()
                await settled(lambda: busy(f'zkrq_server_place{{server="{server}",place="member"}} == 1'))
