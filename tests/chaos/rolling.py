"""Clients of the release before and of this one in one namespace, under load, while servers die.

A *roll* replaces the client processes one after the other by another release, as an operator does.  The namespace is
founded by the release before; the level is raised at the end, when a client is stopped that will hear of it late.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path

import pytest

import zkrq
from tests.chaos.checker import check
from tests.chaos.client_process import CONNECTED, IDLE, QUEUE, STOP
from tests.chaos.faults import Fault
from tests.chaos.record import Kind
from tests.chaos.run import Run, drain, move
from tests.chaos.stage import (
    CONNECT_TIMEOUT,
    IDLE_TIMEOUT,
    LEAVE_TIMEOUT,
    PRESENT,
    ClientProcess,
    Pace,
    Release,
    Stage,
    dismiss,
    quiesce,
    set_stage,
)
from zkrq import local
from zkrq.protocol.levels import SPOKEN

GROUPED = 20
"""Items that are pushed into groups after the level is raised, for the clients of the stage."""

STOPPED_FOR = 1.0
"""Seconds for which a client is stopped while the level is raised: less than its session and its claims last."""

SETTLED = 20
"""Calls of a refused client after which it is believed that it is refused for good."""


class Rolling:
    """The parts of a run that rolls."""

    def __init__(self, stage: Stage, before: Release, servers: local.Servers) -> None:
        self.stage = stage
        self.before = before
        self.fired = 0
        self._servers = servers
        self._numbers = len(stage.clients)

    async def roll(self, release: Release, faults: Sequence[Fault] = ()) -> None:
        """Replace every client by one of a release; each fault lasts while one of them is replaced."""
        for client, fault in zip_longest(list(self.stage.clients), faults):
            await self._replace(client, release, fault)

    async def _replace(self, client: ClientProcess, release: Release, fault: Fault | None) -> None:
        stage, told = self.stage, ""
        if fault is not None:
            assert await stage.become_whole(stage.pace.whole)
            told = f"{fault.name} {await fault.begin()}"
            stage.note(Kind.FAULT_BEGUN, told)
        try:
            follower = await self._start(release, pauses=client.orders.pauses)
            await self._stop(client)
            stage.clients[stage.clients.index(client)] = follower
        finally:
            if fault is not None:
                await fault.end()
                stage.note(Kind.FAULT_ENDED, told)
                self.fired += fault.fired
        await move(stage, f"after {client.name} was replaced by {follower.name}")

    async def _start(self, release: Release, *, pauses: bool = False) -> ClientProcess:
        self._numbers += 1
        client = await self.stage.start(f"client-{self._numbers}", release, pauses)
        async with asyncio.timeout(CONNECT_TIMEOUT):
            await client.hear(CONNECTED)
        return client

    async def _stop(self, client: ClientProcess) -> None:
        client.tell(STOP)
        async with asyncio.timeout(IDLE_TIMEOUT + LEAVE_TIMEOUT):
            await client.hear(IDLE)
            told_at = time.monotonic()
            assert await client.leave() == 0, client.name
        # It ended its handlers when it was told to, and handed back their claims.
        self.stage.look()
        mine = (entry for entry in self.stage.journal.entries if entry.who == client.name)
        delivered = (entry.at for entry in mine if entry.kind is Kind.DELIVERED)
        self.stage.note(Kind.STOPPED, client.name, at=max(told_at, *delivered))

    # -- raising the level ---------------------------------------------------------------------------------------------

    def connect(self) -> zkrq.Cluster:
        """A client of this release that is no process of the stage, an operator's for instance."""
        stage = self.stage
        return zkrq.connect(
            self._servers.redis_urls,
            self._servers.zookeeper_hosts,
            namespace=stage.namespace,
            description="operator",
            session_timeout=stage.pace.session_timeout,
            operation_timeout=stage.pace.operation_timeout,
        )

    async def raise_while_clients_are_stopped(self) -> None:
        """Raise the level while a client of each release is stopped: that of this one goes on, the other is refused."""
        stage = self.stage
        late = await self._start(self.before)
        # It is seen by its consumers, which enrol with their first claim.
        await move(stage, "beside a client of the release before")
        async with self.connect() as operator:
            kept = operator.queue(f"{QUEUE}-kept")  # no client of the stage works on it
            await kept.push("a")
            claim = await kept.pop_one(timeout=CONNECT_TIMEOUT)
            assert claim
            # Before it is raised, nothing can be written that the release before cannot read.
            with pytest.raises(zkrq.ConfigError, match=r"this needs level .*`zkrq upgrade`"):
                await claim.save("never")
            with pytest.raises(zkrq.ConfigError, match=rf"do not speak level {SPOKEN.highest}: {late.name}"):
                await operator.upgrade()
            assert operator.level == SPOKEN.lowest
            stopped = (late, stage.clients[0])
            for client in stopped:
                stage.note(Kind.STOPPED, client.name)
                client.signal(signal.SIGSTOP)
            await operator.upgrade(force=True)
            assert operator.level == operator.view.level == SPOKEN.highest
            await claim.save("since the level was raised")
            await self._push_grouped(operator)
            await asyncio.sleep(STOPPED_FOR)
            for client in stopped:
                client.signal(signal.SIGCONT)
                stage.note(Kind.CONTINUED, client.name)
            await self._see_refused(late)
            await move(stage, "after the level was raised")
            await claim.release()
            async with await kept.pop_one(timeout=CONNECT_TIMEOUT) or pytest.fail("it was lost") as claim:
                assert claim.saved == "since the level was raised"
            assert {each.version for each in (await operator.clients()).values()} <= {zkrq.__version__, ""}
        await self._see_none_starts()

    async def _push_grouped(self, operator: zkrq.Cluster) -> None:
        """Push in groups, for the clients of the stage."""
        stage, queue = self.stage, operator.queue(QUEUE)
        recorder = stage.journal.recorder("operator")
        for number in range(GROUPED):
            name = zkrq.new_id()
            recorder.note(Kind.PUSHING, name)
            await queue.push({"id": name, "filling": ""}, id=name, group=f"group-{number % 3}")
            recorder.note(Kind.PUSHED, name)
        recorder.close()

    async def _see_refused(self, client: ClientProcess) -> None:
        """See that a client of the release before completes nothing that it begins after it has gone on."""
        stage = self.stage
        async with asyncio.timeout(IDLE_TIMEOUT):
            while len(refused := _calls_since_continued(stage, client, refused=True)) < SETTLED:
                await asyncio.sleep(0.05)
        assert not (done := _calls_since_continued(stage, client, refused=False)), done
        stage.note(Kind.STOPPED, client.name)  # for good: what it holds is for others
        await client.end()
        assert f"it is at level {SPOKEN.highest}" in client.errors.read_text(), refused

    async def _see_none_starts(self) -> None:
        """See that no further client of the release before opens the namespace."""
        client = await self.stage.start("client-refused", self.before, False)
        with suppress(RuntimeError):
            async with asyncio.timeout(CONNECT_TIMEOUT):
                await client.hear(CONNECTED)
            pytest.fail("a client of the release before has connected")
        assert "ConfigError" in client.errors.read_text()


def _calls_since_continued(stage: Stage, client: ClientProcess, *, refused: bool) -> list[str]:
    """Return pushes that were begun since a client was continued and have ended, refused or done."""
    stage.look()
    entries = sorted(stage.journal.entries, key=lambda entry: entry.at)
    since = next(entry.at for entry in entries if entry.kind is Kind.CONTINUED and entry.detail == client.name)
    begun = {
        entry.id for entry in entries if entry.who == client.name and entry.kind is Kind.PUSHING and entry.at > since
    }
    # Of an item whose push was in flight when the client was stopped, the next try may find it pushed.
    begun -= {
        entry.id for entry in entries if entry.who == client.name and entry.kind is Kind.PUSHING and entry.at < since
    }
    end = Kind.PUSH_REFUSED if refused else Kind.PUSHED
    mine = [entry for entry in entries if entry.who == client.name and entry.at > since]
    ended = [f"{entry.kind} {entry.id}" for entry in mine if entry.kind is end and (refused or entry.id in begun)]
    late = [f"{entry.kind} {entry.id}" for entry in mine if entry.kind is Kind.DELIVERED and entry.at > since + 1]
    return ended if refused else ended + late


async def play(
    servers: local.Servers,
    before: Release,
    namespace: str,
    *,
    rounds: Sequence[Sequence[type[Fault]]],
    pace: Pace,
    directory: Path,
) -> Run:
    """Roll to this release and back as often as ``rounds`` has faults for, then to this one; raise the level; judge."""
    directory.mkdir(parents=True, exist_ok=True)
    async with set_stage(
        servers, directory, namespace, min_replicas=2, pace=pace, seed=namespace, release=before
    ) as stage:
        rolling = Rolling(stage, before, servers)
        await move(stage, "in the beginning")
        stage.note(Kind.LOAD_BEGUN)
        for kinds in rounds:
            faults = [kind(stage) for kind in kinds]
            await rolling.roll(PRESENT, faults)
            await rolling.roll(before, faults)
        await rolling.roll(PRESENT)
        await stage.become_whole(pace.whole)
        await rolling.raise_while_clients_are_stopped()
        stage.note(Kind.LOAD_ENDED)
        await quiesce(stage)
        left = await drain(stage)
        stage.note(Kind.DISMISSED)
        await dismiss(stage)
        stage.look()
    if not rolling.fired:
        stage.troubles.append("no fault ever happened")
    outcome = check(stage.journal.entries, left, notice=pace.claim_timeout)
    return Run("rolling", 2, namespace, rolling.fired, outcome, tuple(stage.troubles), stage.journal.entries)
