"""A worker as a program: what can be seen without servers."""

from __future__ import annotations

import gc
import os
import re
import signal
import socket
import sys
from pathlib import Path

import pytest

import zkrq
import zkrq.testing
from zkrq.base.errors import ConfigError
from zkrq.cli.worker import load
from zkrq.process.exits import Exit
from zkrq.process.notify import READY, notify

PAGE = Path(__file__).parents[2] / "docs" / "workers.md"


def test_the_page_of_workers_lists_the_exit_codes() -> None:
    table = PAGE.read_text().partition("| exit code | |")[2].partition("\n\n")[0]
    listed = {row[0]: row[1] for row in re.findall(r"^\| (\S+)(?: \+ n)? \| (.*) \|$", table, re.MULTILINE)}
    assert {name for name in listed if name != "---"} == {str(each.value) for each in Exit}
    for number in (signal.SIGTERM, signal.SIGINT):
        assert f"{Exit.SIGNAL + number} for {number.name}" in listed[str(Exit.SIGNAL.value)]


def test_notify_without_a_service_manager(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify(READY)
    assert not caplog.records
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    notify(READY)
    assert "READY=1 could not be sent" in caplog.text


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX") or os.uname().sysname != "Linux", reason="abstract sockets: Linux")
def test_notify_by_an_abstract_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"zkrq-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name}")
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        notify(READY)
        assert manager.recv(100) == b"READY=1"


def test_targets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "zkrq_test_jobs.py").write_text("class Jobs:\n    def worker(cluster): pass\nnumber = 7\n")
    assert callable(load("zkrq_test_jobs:Jobs.worker"))
    for wrong in ("zkrq_test_jobs", ":worker", "zkrq_test_jobs:", "zkrq_test_jobs:number", "zkrq_test_jobs:Jobs.none"):
        with pytest.raises(ConfigError):
            load(wrong)
    (tmp_path / "zkrq_test_broken.py").write_text("import zkrq_test_missing\n")
    with pytest.raises(ConfigError, match=r"module 'zkrq_test_broken' cannot be imported, .*'zkrq_test_missing'"):
        load("zkrq_test_broken:worker")
    assert "Traceback" in capsys.readouterr().err


def test_run_checks_before_it_connects() -> None:
    cluster = zkrq.connect(["redis://127.0.0.1:1"], "127.0.0.1:1")
    with pytest.raises(ConfigError, match="grace"):
        zkrq.run(lambda cluster: zkrq.Worker(), cluster, grace=-1)


def test_what_was_imported_is_kept_from_the_garbage_collector_while_a_program_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("zkrq.process.program.fastest_loop", lambda: None)  # the clock of tests is asyncio's
    frozen: list[int] = []

    async def handle(item: object) -> None:
        frozen.append(gc.get_freeze_count())

    async def make(cluster: zkrq.Cluster) -> zkrq.Worker:
        await cluster.queue("work").push("item")
        return zkrq.Worker().add(cluster.queue("work"), handle)

    try:
        zkrq.run(make, zkrq.testing.cluster(), burst=True)
    finally:
        gc.unfreeze()
        gc.freeze()  # what was collected stays frozen, see tests.conftest
    assert len(frozen) == 1
    assert frozen[0] > 0
