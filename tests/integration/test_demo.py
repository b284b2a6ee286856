"""The demo: it counts correctly, ends cleanly, and leaves nothing behind, however it ends."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from zkrq import local
from zkrq.cli.demo.tally import Report, Tally
from zkrq.cli.demo.words import Display, next_steps

DEMO_TIMEOUT = 60.0  # seconds for a shortened demo; twelve are usual
NOTICE = 10.0  # seconds within which processes must be gone

ALL = frozenset({"redis", "zookeeper"})
needs_servers = pytest.mark.skipif(local.available() != ALL, reason="Redis or ZooKeeper is not installed")
needs_redis = pytest.mark.skipif("redis" not in local.available(), reason="redis-server is not installed")
needs_proc = pytest.mark.skipif(not Path("/proc/self").exists(), reason="asks /proc who is there")


async def run(*arguments: str, environment: dict[str, str] | None = None) -> tuple[int, str, str]:
    with anyio.fail_after(DEMO_TIMEOUT):
        result = await anyio.run_process(
            [sys.executable, "-m", "zkrq", "demo", *arguments], env=environment, check=False
        )
    return result.returncode, result.stdout.decode(), result.stderr.decode()


def without_uvloop(folder: Path) -> dict[str, str]:
    """An environment for processes that have no uvloop."""
    (folder / "uvloop.py").write_text("raise ImportError")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


@needs_servers
@pytest.mark.anyio
@pytest.mark.parametrize("loop", [pytest.param("asyncio", marks=pytest.mark.chaos), "uvloop"])
async def test_nothing_is_lost_while_servers_and_a_consumer_are_killed(loop: str, tmp_path: Path) -> None:
    environment = without_uvloop(tmp_path) if loop == "asyncio" else None
    code, out, err = await run("--seconds", "4", "--json", environment=environment)
    result = json.loads(out)
    assert (code, result["troubles"]) == (0, []), err
    assert (result["lost"], result["delivered_after_ack"]) == (0, 0)
    assert result["pushed"] == result["done"] + result["unheard"] > 100
    assert result["redelivered"] >= 1
    assert result["delivered"] == result["pushed"] + result["redelivered"]
    assert [line.split(">>> ")[1].split()[2].rstrip(",-123") for line in err.splitlines() if ">>>" in line] == [
        "consumer",
        "redis",
        "zookeeper",
    ]


@needs_redis
@pytest.mark.anyio
async def test_without_zookeeper_it_shows_what_it_can_and_says_so(tmp_path: Path) -> None:
    if executable := shutil.which("redis-server"):
        (tmp_path / "redis-server").symlink_to(executable)
    hidden = ("JAVA_HOME", "ZOOKEEPER_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in hidden} | {"PATH": str(tmp_path)}
    code, out, err = await run("--seconds", "2", environment=environment)
    assert (code, err) == (0, "")
    assert "ZooKeeper is not installed" in out.splitlines()[0]
    assert ">>> kill -9 redis-" in out
    assert "Nothing was lost, nothing came back." in out


@needs_servers
@needs_proc
@pytest.mark.anyio
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.chaos), signal.SIGKILL])
async def test_whatever_ends_it_nothing_is_left(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "zkrq", "demo"]
    async with await anyio.open_process(command, stdin=subprocess.DEVNULL) as process:
        assert process.stdout
        with anyio.fail_after(DEMO_TIMEOUT):
            async for chunk in process.stdout:
                if b"producers push" in chunk:
                    break
        children = [pid for pid in processes() if parent(pid) == process.pid]
        assert len(children) >= 3 + 6
        process.send_signal(number)
        with anyio.fail_after(NOTICE):
            code = await process.wait()
            while any(map(running, children)):
                await anyio.sleep(0.05)
        assert code == (-signal.SIGKILL if number is signal.SIGKILL else 128 + number)


def processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def stat(pid: int) -> list[str]:
    """State, parent and more; nothing for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def parent(pid: int) -> int | None:
    fields = stat(pid)
    return int(fields[1]) if fields else None


def running(pid: int) -> bool:
    return stat(pid)[:1] not in ([], ["Z"])


# -- the count -------------------------------------------------------------------------------------------------------


def tally(*story: tuple[str, str], pushed: str = "a") -> Tally:
    """Items that were pushed, and then what consumers reported, second by second: ``("one delivered", "a")``."""
    counted = Tally()
    for id in pushed:
        counted.note_push(id, 0.0)
    for at, (what, id) in enumerate(story, start=1):
        consumer, kind = what.split()
        if kind == "dies":
            counted.note_death(consumer)
        else:
            counted.note(consumer, Report(kind), id, float(at))
    return counted


DONE = (("one delivered", "a"), ("one finished", "a"), ("one acked", "a"))


def test_an_item_that_is_done() -> None:
    result = tally(*DONE).result()
    assert (result.pushed, result.delivered, result.done, result.redelivered) == (1, 1, 1, 0)
    assert result.clean


def test_an_item_that_nobody_acked_is_lost() -> None:
    assert tally().result().lost == 1
    assert tally(*DONE, pushed="ab").result().lost == 1
    assert tally(("one delivered", "a"), ("one dies", "")).result().lost == 1
    assert not tally().result().clean


def test_an_item_delivered_after_its_ack_is_told() -> None:
    assert tally(*DONE, ("two delivered", "a")).result().delivered_after_ack == 1


def test_reports_are_judged_by_when_they_were_made() -> None:
    counted = Tally()
    counted.note("two", Report.ACKED, "a", 3.0)
    counted.note("one", Report.DELIVERED, "a", 1.0)
    counted.note("two", Report.DELIVERED, "a", 2.0)
    assert counted.result().delivered_after_ack == 0


def test_a_killed_consumers_item_is_delivered_again() -> None:
    counted = tally(("one delivered", "a"), ("one dies", ""))
    assert counted.unfinished() == {"a"}
    result = tally(
        ("one delivered", "a"), ("one dies", ""), ("two delivered", "a"), ("two finished", "a"), ("two acked", "a")
    ).result()
    assert (result.redelivered, result.unheard, result.clean) == (1, 0, True)


def test_an_ack_whose_answer_nobody_lived_to_hear() -> None:
    result = tally(("one delivered", "a"), ("one finished", "a"), ("one dies", "")).result()
    assert (result.done, result.unheard, result.lost, result.clean) == (0, 1, 0, True)


def test_a_claim_that_was_lost_is_laid_down() -> None:
    counted = tally(("one delivered", "a"))
    assert counted.in_hand("one") == 1
    counted.note("one", Report.DROPPED, "a", 2.0)
    assert counted.in_hand("one") == 0
    counted = tally(("one delivered", "a"), ("one finished", "a"), ("one dropped", "a"), ("one dies", ""))
    assert counted.result().lost == 1


def test_gaps_are_measured_while_there_are_pushes() -> None:
    counted = Tally()
    for at in (1.0, 1.5, 4.0):
        counted.note_push(f"{at}", at)
        counted.note("one", Report.DELIVERED, f"{at}", at)
        counted.note("one", Report.ACKED, f"{at}", at + 0.1)
    counted.stop_measuring()
    counted.note("one", Report.ACKED, "4.0", 99.0)
    result = counted.result()
    assert result.longest_push_gap == pytest.approx(2.5)
    assert result.longest_ack_gap == pytest.approx(2.5)


# -- the display -----------------------------------------------------------------------------------------------------


def test_figures_come_now_and_then_and_events_at_once() -> None:
    output = io.StringIO()
    display = Display(output)
    display.say("all is well")
    display.say("kill -9 redis-1", deed=True)
    display.show({"pushed": "1,234"})
    display.show({"pushed": "1,235"})
    assert [line[9:] for line in output.getvalue().splitlines()] == [
        "all is well",
        ">>> kill -9 redis-1",
        "pushed 1,234",
    ]


def test_what_to_try_next_exists_where_the_user_is() -> None:
    """A wheel has no Makefile."""
    assert "make dev" in "\n".join(next_steps(checkout=True))
    told = "\n".join(next_steps(checkout=False))
    assert "make" not in told
    assert "zkrq dev " in told
    assert "zkrq demo --seconds 60 --rate 1000 " in told
