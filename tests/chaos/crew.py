"""Workers that are processes of their own, and are killed at random; a server that is killed and comes back."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from tests.chaos.record import Kind, Recorder
from zkrq import local


class Crew:
    """The workers of one run.

    ``module``: what each process runs, with what ``orders`` returns for its name and number as its argument.  What it
    writes as errors goes into ``directory``.
    """

    def __init__(self, module: str, directory: Path, orders: Callable[[str, int], str]) -> None:
        self._module = module
        self._directory = directory
        self._orders = orders
        self._workers = dict[str, asyncio.subprocess.Process]()
        self.started = 0

    async def hire(self) -> None:
        """Start a worker."""
        self.started += 1
        who = f"worker-{self.started}"
        orders = self._orders(who, self.started)
        with (self._directory / f"{who}.err").open("wb") as errors:
            self._workers[who] = await asyncio.create_subprocess_exec(
                sys.executable, "-m", self._module, orders, stderr=errors
            )

    async def kill(self, who: str) -> None:
        """kill -9.  Raises ``RuntimeError`` with what a worker has written that had ended by itself."""
        process = self._workers.pop(who)
        if process.returncode is not None:
            raise RuntimeError(f"{who} has ended by itself:\n{(self._directory / f'{who}.err').read_text()}")
        process.send_signal(signal.SIGKILL)
        await process.wait()

    @asynccontextmanager
    async def hired(self, count: int) -> AsyncGenerator[None]:
        """As many workers; all are gone when this is left."""
        try:
            await asyncio.gather(*(self.hire() for _ in range(count)))
            yield
        finally:
            await asyncio.shield(asyncio.gather(*map(self.kill, list(self._workers))))

    async def lose(self, recorder: Recorder, chance: random.Random, seconds: float) -> None:
        """Kill one after the other, and start another one for each; ``seconds``: between two, on average."""
        while True:
            await asyncio.sleep(chance.uniform(0, 2 * seconds))
            who = chance.choice(sorted(self._workers))
            await self.kill(who)
            recorder.note(Kind.STOPPED, detail=who)
            await self.hire()


async def bounce(servers: local.Servers, name: str, recorder: Recorder, chance: random.Random) -> None:
    """Kill a server, and start it again after a while."""
    server = next(each for each in servers.redis if each.name == name)
    recorder.note(Kind.FAULT_BEGUN, detail=name)
    await server.kill()
    await asyncio.sleep(chance.uniform(0.5, 3.0))
    await server.start()
    recorder.note(Kind.FAULT_ENDED, detail=name)
