"""The everyday fleet is measured by programs of their own: they push, work and tell, and say why if they cannot."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import bars, fleet, programs, server_time
from benchmarks.peers.fleet import Duty
from benchmarks.places import of_servers
from benchmarks.sheet import Sheet
from zkrq.local import Servers

pytestmark = pytest.mark.anyio

SMALL = fleet.Fleet(2, 2, 0.001)
PYTHON = Path(sys.executable)


@pytest.mark.parametrize("title", [fleet.ZKRQ, fleet.POOL])
async def test_a_small_fleet_is_measured(servers: Servers, monkeypatch: pytest.MonkeyPatch, title: str) -> None:
    monkeypatch.setattr(fleet, "SECONDS", 0.25)
    sheet = Sheet()
    zkrq = next(system for system in fleet.SYSTEMS if system.title == title)
    async with fleet.running(zkrq, PYTHON, of_servers(servers), SMALL) as crew:
        await crew.paced(sheet, 100, 2)
        pushes, deliveries, _ = await crew.round(20, 100)
    assert len(pushes) == len(deliveries) == 20
    assert all(delivered > 0 for delivered in deliveries)
    figures = sheet.rows(SMALL.at(100))[zkrq.title]
    assert len(figures["push p50"].values) == 2
    assert len(figures) == (6 if server_time.available() else 4)
    assert figures["push p50"].median <= figures["push p99"].median
    if server_time.available():
        assert figures[fleet.WORKERS].median > 0
    assert all(program.returncode is not None for program in (crew.producer, *crew.workers))


async def test_a_program_that_fails_says_why_in_one_line(servers: Servers) -> None:
    duty = Duty(True, list(servers.redis_urls.values()), "jobs", slots=0, zookeeper=servers.zookeeper_hosts)
    program = await programs.start(PYTHON, "benchmarks.fleet_client", duty._asdict())
    await programs.answer(program)
    with pytest.raises(programs.ProgramFailed, match="ConfigError: concurrency is 0"):
        await programs.answer(program)
    with pytest.raises(programs.ProgramFailed, match="environment is missing"):
        await programs.start(Path("/nowhere/python"), "benchmarks.fleet_client", {})


def test_the_bars_are_about_what_is_measured() -> None:
    assert {fleet.ZKRQ, fleet.SAQ, fleet.NATS} <= {system.title for system in fleet.SYSTEMS}
    sheet = Sheet()
    for topic in (fleet.EIGHT.at(fleet.EVERYDAY), fleet.SIXTEEN.at(fleet.BUSY)):
        for place, system in enumerate(fleet.SYSTEMS, 1):
            sheet.add(topic, system.title, **{fleet.TO_HANDLER: 1 / place, fleet.WORKERS: 1.0, fleet.SERVERS: 1.0})
    everyday = [bar for bar in bars.bars(sheet) if "workers, " in bar.what]
    assert [bar.measured for bar in everyday] == [(3.0,), (1.0,), (1.0,), (2.0,)]
