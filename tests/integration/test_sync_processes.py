"""``zkrq.sync`` in processes: across forks, interrupted, at the end of the interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

import zkrq
from tests.harness import HANG
from tests.integration.blocking import take
from zkrq import local, sync

ROOT = Path(__file__).parents[2]


@pytest.fixture
def queue(connect: Callable[..., sync.Cluster]) -> Generator[sync.Queue[Any]]:
    with connect() as cluster:
        yield cluster.queue("jobs", retry=zkrq.Retry(backoff=zkrq.constant(0)))


OPENING = """
import atexit, logging, os, signal, sys, threading, time
import zkrq
cluster = zkrq.sync.connect({redis!r}, {zookeeper!r}, namespace={namespace!r}, session_timeout=30, found=True)
queue = cluster.queue("jobs")
"""


def run(servers: local.Servers, namespace: str, script: str, *flags: str) -> str:
    """Run a script whose ``cluster`` and ``queue`` are those of the test; return its output.  It must end well."""
    opening = OPENING.format(redis=servers.redis_urls, zookeeper=servers.zookeeper_hosts, namespace=namespace)
    command = [sys.executable, "-W", "error", *flags, "-c", opening + script]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=HANG)
    assert (result.returncode, result.stderr) == (0, ""), result.stdout
    return result.stdout


def test_the_end_of_the_interpreter_closes_the_cluster(
    servers: local.Servers, namespace: str, queue: sync.Queue[Any]
) -> None:
    script = """
logging.disable(logging.WARNING)  # the claim that is held at the end is a warning
queue.push(1)
claim = queue.pop_one()
loop = queue.pop(prefetch=2)
atexit.register(queue.push, "from an exit handler")
print(claim.item, flush=True)
"""
    assert run(servers, namespace, script) == "1\n"
    # The session is closed: nothing waits for its end, which would take 30 seconds, or for the claim's.
    assert queue.size() == (2, 0, 0, 0)
    assert [take(queue).item for _ in range(2)] == [1, "from an exit handler"]


def test_a_forked_process_opens_a_connection_of_its_own(
    servers: local.Servers, namespace: str, queue: sync.Queue[Any]
) -> None:
    script = """
queue.push("before")
claim = queue.pop_one()
stop = threading.Event()

def produce():
    while not stop.is_set():
        queue.push("parent")

threads = [threading.Thread(target=produce) for _ in range(4)]
for thread in threads:
    thread.start()
children = []
for _ in range(4):
    child = os.fork()
    if child == 0:
        queue.push("child")
        try:
            claim.ack()
        except zkrq.WrongLoop as error:
            os.write(1, f"{error}\\n".encode())  # at once: where nothing is buffered, `print` writes line ends apart
        sys.exit(7)
    children.append(child)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
stop.set()
for thread in threads:
    thread.join()
queue.push("after")
claim.ack()
print(*codes)
"""
    # Python warns of forks beside threads; nothing but zkrq's own locks is at stake here.
    output = run(servers, namespace, script, "-W", "ignore:This process (pid=:DeprecationWarning")
    *refusals, codes = output.splitlines()
    assert len(refusals) == 4
    assert all("before a fork" in line for line in refusals)
    assert codes == "7 7 7 7"
    items = [item.item for item in queue.scan()]
    assert items.count("child") == 4
    assert "parent" in items
    assert "after" in items
    assert "before" not in items


def test_private_servers_belong_to_the_process_that_started_them(servers: local.Servers, namespace: str) -> None:
    script = """
with zkrq.sync.embedded(1) as private:
    jobs = private.queue("jobs")
    jobs.push(1)
    child = os.fork()
    if child == 0:
        try:
            jobs.push(2)
        except zkrq.WrongLoop as error:
            print(error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    print(jobs.size().ready)
"""
    output = run(servers, namespace, script, "-W", "ignore:This process (pid=:DeprecationWarning")
    refusal, ready = output.splitlines()
    assert "the private servers belong to process" in refusal
    assert ready == "1"


def test_an_interrupted_pop_claims_nothing(servers: local.Servers, namespace: str, queue: sync.Queue[Any]) -> None:
    script = """
main = threading.main_thread().ident
queue.size()
try:
    threading.Timer(0.5, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
    queue.pop_one()
except KeyboardInterrupt:
    print("interrupted")
queue.push(1)
time.sleep(0.5)
print(queue.size().ready, queue.held)
"""
    assert run(servers, namespace, script) == "interrupted\n1 0\n"
