"""``zkrq serve`` as a process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from anyio.abc import Process

from tests.harness import HANG
from zkrq import local

ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def process(servers: local.Servers, namespace: str, *flags: str, **variables: str) -> AsyncGenerator[Process]:
    """``zkrq serve``; killed at the end if it is still there."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("ZKRQ_", "NOTIFY_"))},
        "PYTHONPATH": str(ROOT),
        "ZKRQ_REDIS": ",".join(f"{name}={url}" for name, url in servers.redis_urls.items()),
        "ZKRQ_ZOOKEEPER": servers.zookeeper_hosts,
        "ZKRQ_NAMESPACE": namespace,
        "ZKRQ_SESSION_TIMEOUT": "3",
        **variables,
    }
    command = [sys.executable, "-m", "zkrq", "serve", "--port", "0", *flags]
    async with await anyio.open_process(
        command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as started:
        try:
            yield started
        finally:
            if started.returncode is None:
                started.kill()


async def url_of(started: Process) -> str:
    """Where it listens, once it does."""
    assert started.stdout
    text = ""
    with anyio.fail_after(HANG):
        while not (found := re.search(r"listening on (\S+), port (\d+)\n", text)):
            text += (await started.stdout.receive()).decode()
    return f"http://{found[1]}:{found[2]}"


async def output(started: Process) -> str:
    """What it printed, once it has ended."""
    assert started.stdout
    with anyio.fail_after(HANG):
        text = b"".join([part async for part in started.stdout])
        await started.wait()
    return text.decode()
