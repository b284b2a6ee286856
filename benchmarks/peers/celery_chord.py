"""Celery: a chord over one Redis server, which is the broker and keeps the results; a prefork worker of its own."""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from celery import Celery, chord

from benchmarks.peers.common import Job
from benchmarks.peers.fan import CONCURRENCY, POLL, Notes, serve

SETTINGS = f"prefork, {CONCURRENCY} processes, acks late, Redis as broker and as result backend"
TIMEOUT = 60.0
"""Seconds for the worker to start."""

URL = os.environ.get("BENCHMARK_REDIS", "")

app = Celery(
    "chords",
    broker=URL,
    backend=URL,
    task_acks_late=True,
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
)


def _note(*words: object) -> None:
    descriptor = os.open(os.environ["BENCHMARK_NOTES"], os.O_WRONLY | os.O_APPEND)
    os.write(descriptor, f"{' '.join(map(str, words))} {time.time()}\n".encode())
    os.close(descriptor)


@app.task(name="member")
def member(flow: str, number: int, seconds: float) -> int:
    time.sleep(seconds)
    _note("end", flow, number)
    return number


@app.task(name="continue")
def go_on(numbers: list[int], flow: str) -> None:
    _note("go-on", flow)


class _Read:
    """Reads what the worker's processes have noted."""

    def __init__(self, file: Path, notes: Notes) -> None:
        self._file, self._notes, self._up_to = file, notes, 0

    async def follow(self) -> None:
        while True:
            self.read()
            await asyncio.sleep(POLL)

    def read(self) -> None:
        with self._file.open("rb") as lines:
            lines.seek(self._up_to)
            text = lines.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._up_to += len(whole)
        for line in whole.decode().splitlines():
            match line.split():
                case ["end", flow, number, at]:
                    self._notes.end(flow, int(number), float(at))
                case ["go-on", flow, at]:
                    self._notes.go_on(flow, float(at))
                case _:
                    raise ValueError(line)


async def main(job: Job) -> None:
    """Start a worker, and make chords."""
    app.conf.broker_url = app.conf.result_backend = job.servers[0]

    async def make(flow: str, members: int, seconds: float) -> None:
        def send() -> None:
            chord([member.s(flow, number, seconds) for number in range(members)], go_on.s(flow)).apply_async()

        await asyncio.to_thread(send)

    with tempfile.NamedTemporaryFile() as file:
        os.environ.update(BENCHMARK_NOTES=file.name, BENCHMARK_REDIS=job.servers[0])
        command = ["-m", "celery", "-A", "benchmarks.peers.celery_chord", "worker", f"--concurrency={CONCURRENCY}"]
        quiet = ["--loglevel=critical", "--without-gossip", "--without-mingle"]
        with subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, *command, *quiet], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as worker:
            notes = Notes()
            reading = asyncio.create_task(_Read(Path(file.name), notes).follow())
            try:
                async with asyncio.timeout(TIMEOUT):
                    await make("warm-up", 10, 0.0)
                    while not notes.continued["warm-up"]:  # noqa: ASYNC110
                        await asyncio.sleep(POLL)
                await serve(make, notes, SETTINGS)
            finally:
                reading.cancel()
                worker.terminate()
                with suppress(subprocess.TimeoutExpired):
                    worker.wait(5)
                worker.kill()


if __name__ == "__main__":
    logging.disable()
    asyncio.run(main(Job(**json.loads(sys.argv[1]))))
