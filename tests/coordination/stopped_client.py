"""A client that will be stopped: it reports what it sees on standard output, as JSON lines."""

from __future__ import annotations

import asyncio
import json
import sys

from zkrq.coordination.coordinator import Session
from zkrq.coordination.zookeeper import ZooKeeperCoordinator

JUMP = 4.0  # seconds between two looks at the clock that mean: we were stopped
LOOK = 0.05  # seconds


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


class Reporter:
    def register_changed(self, register: str) -> None: ...

    def consumers_changed(self) -> None: ...

    def leading_changed(self, leading: bool) -> None: ...

    def session_changed(self, session: Session) -> None:
        say(event="session", state=session.state.value, id=session.id)


async def main(hosts: str, namespace: str, timeout: float) -> None:
    loop = asyncio.get_running_loop()
    coordinator = ZooKeeperCoordinator(hosts, namespace=namespace, session_timeout=timeout)
    coordinator.subscribe(Reporter())
    async with coordinator:
        owner = await coordinator.enrol("to be stopped")
        last = loop.time()  # before it is said: whoever hears it may stop us at once
        say(event="enrolled", owner=owner)
        while True:
            await asyncio.sleep(LOOK)
            if loop.time() - last > JUMP:
                say(event="resumed", valid=coordinator.valid_until > loop.time())
            last = loop.time()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
