"""The fixtures of the pytest plugin, in a run of pytest of its own."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

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


def run(folder: Path, tests: str) -> str:
    """Return what pytest says of tests whose configuration is the one line of the documentation."""
    (folder / "conftest.py").write_text('pytest_plugins = ["zkrq.testing.plugin"]\n')
    (folder / "test_shop.py").write_text(tests)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "--rootdir", str(folder)]
    done = subprocess.run([*words, str(folder)], capture_output=True, text=True, timeout=120, check=False)
    return done.stdout + done.stderr


def test_the_fixtures(tmp_path: Path) -> None:
    assert "3 passed" in (said := run(tmp_path, TESTS)), said


@pytest.mark.skipif(find_spec("trio") is None, reason="not installed: trio")
def test_on_trio_they_say_what_to_do(tmp_path: Path) -> None:
    """anyio runs tests on it, too, where it is installed."""
    said = run(tmp_path, TESTS.replace('return "asyncio"', 'return "trio"'))
    assert said.count("zkrq runs on asyncio: add to conftest.py a fixture anyio_backend that returns 'asyncio'") >= 3
