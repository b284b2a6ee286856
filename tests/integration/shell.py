"""``zkrq`` as a shell starts it, with the servers in its environment; also on a terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream

import zkrq
from tests.harness import new_namespace
from zkrq import local

COMMAND_TIMEOUT = 20.0  # seconds for one command; one is usual on a busy machine
START_TIMEOUT = 60.0  # seconds until private servers are up

NO_RATE = {"rate": None, "seconds": None}
NO_SETTINGS: dict[str, Any] = {
    "queue": "jobs",
    "limits": {"concurrency": None, **NO_RATE},
    "groups": {"concurrency": None, **NO_RATE, "ordered": False, "named": {}},
    "history": 0,
    "max_size": None,
    "dead_letters": {"max_count": 100_000, "max_age": None, "expired": False},
    "results_ttl": None,
}
"""What `zkrq queues show` tells of a queue without any."""


class Shell:
    """Runs ``zkrq`` with the servers in its environment, in a namespace of its own."""

    def __init__(self, servers: local.Servers, prepared_zkrq: list[str]) -> None:
        self.zkrq = prepared_zkrq
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("ZKRQ_")},
            "ZKRQ_REDIS": ",".join(f"{name}={url}" for name, url in servers.redis_urls.items()),
            "ZKRQ_ZOOKEEPER": servers.zookeeper_hosts,
            "ZKRQ_NAMESPACE": new_namespace(),
        }

    async def run(self, *arguments: str, stdin: str = "", **environment: str) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        with anyio.fail_after(COMMAND_TIMEOUT):
            result = await anyio.run_process(
                [*self.zkrq, *arguments],
                input=stdin.encode(),
                env={**self.environment, **environment},
                check=False,
            )
        return result.returncode, result.stdout.decode(), result.stderr.decode()

    async def value(self, *arguments: str, stdin: str = "") -> list[Any]:
        """The lines of a command that succeeds, with ``--json``."""
        code, out, err = await self.run(*arguments, "--json", stdin=stdin)
        assert (code, err) == (0, "")
        return [json.loads(line) for line in out.splitlines()]

    async def settings(self, queue: str) -> dict[str, Any]:
        """What ``zkrq queues show`` says of the settings of a queue, without how it is now."""
        (told,) = await self.value("queues", "show", queue)
        return {name: value for name, value in told.items() if name != "now"}

    @asynccontextmanager
    async def start(self, *arguments: str, prepared: bool = True) -> AsyncGenerator[Process, None]:
        """A command that goes on: it can be sent signals.  ``prepared``: False where a user's own process matters."""
        program = self.zkrq if prepared else (sys.executable, "-m", "zkrq")
        async with await anyio.open_process(
            [*program, *arguments], env=self.environment, stdin=subprocess.DEVNULL
        ) as process:
            try:
                yield process
            finally:
                if process.returncode is None:
                    process.kill()


async def founded_shell(servers: local.Servers, prepared_zkrq: list[str]) -> Shell:
    """A shell whose namespace exists."""
    shell = Shell(servers, prepared_zkrq)
    await zkrq.found(servers.redis_urls, servers.zookeeper_hosts, namespace=shell.environment["ZKRQ_NAMESPACE"])
    return shell


async def first_line(process: Process) -> str:
    assert process.stdout
    return await TextReceiveStream(process.stdout).receive()


class Terminal:
    """A command whose stdin and stderr are a terminal; its stdout is not."""

    def __init__(self, process: subprocess.Popen[bytes], end: int) -> None:
        self._process = process
        self._end = end
        self._shown = ""

    def until(self, text: str) -> str:
        """Read until the terminal shows this; return all that it has shown."""
        while text not in self._shown:
            data = os.read(self._end, 1 << 16)
            assert data, self._shown
            self._shown += data.decode()
        return self._shown

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def ended(self) -> tuple[int, str]:
        """Exit code and stdout."""
        out, _ = self._process.communicate(timeout=COMMAND_TIMEOUT)
        return self._process.returncode, out.decode()


@contextmanager
def on_a_terminal(shell: Shell, *arguments: str, prepared: bool = True, **environment: str) -> Generator[Terminal]:
    end, terminal = os.openpty()
    process = subprocess.Popen(
        [*(shell.zkrq if prepared else (sys.executable, "-m", "zkrq")), *arguments],
        env={**shell.environment, "TERM": "xterm", **environment},
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=terminal,
    )
    os.close(terminal)
    try:
        yield Terminal(process, end)
    finally:
        process.kill()
        process.communicate()
        os.close(end)
