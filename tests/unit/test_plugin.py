"""The fixtures of the pytest plugin, in a run of pytest of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = """
import pytest
import zkrq

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.mark.parametrize("again", [1, 2])
async def test_a_delay(zkrq_cluster, zkrq_clock, again):
    emails = zkrq_cluster.queue("emails")
    assert not any(await emails.size()), "empty for each test"
    await emails.push(again, delay=3600)
    sent = []

    async def send(item):
        sent.append(item)

    async with zkrq.Worker().add(emails, send):
        await zkrq_clock.advance(3600)
    assert sent == [again]
    await emails.push("left behind")


async def test_two_processes(zkrq_servers):
    async with zkrq_servers.connect() as ann, zkrq_servers.connect() as bob:
        zkrq_servers.kill("redis-1")
        await ann.queue("jobs").push(1)
        assert (await bob.queue("jobs").pop_one(timeout=10)).item == 1
"""


def test_the_fixtures(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["zkrq.testing.plugin"]\n')
    (tmp_path / "test_shop.py").write_text(TESTS)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "--rootdir", str(tmp_path)]
    done = subprocess.run([*words, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False)
    assert "3 passed" in done.stdout, done.stdout + done.stderr
