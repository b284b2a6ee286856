"""A worker with one slot, in a process of its own, that records when it begins and ends each item (record.py).

Its arguments are one JSON object (``Orders``).  It works until it is killed, or until its input ends.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import zkrq
from tests.chaos.record import Kind, Recorder
from zkrq.client.cluster import Cluster

QUEUE = "turns"

WORK = 0.02
"""Seconds that a handler takes on average."""

FAILS = 0.1
"""Part of the handlers that fail."""

AGAIN = zkrq.Retry(max_attempts=None, backoff=zkrq.constant(0.05))

RETRY_PAUSE = 0.05
"""Seconds before an ack of unknown outcome is repeated."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What a worker is told.  ``groups`` and ``limits``: arguments of ``Groups`` and ``Limits``, None: none of them."""

    who: str
    redis: dict[str, str]
    zookeeper: str
    namespace: str
    file: str
    session_timeout: float
    claim_timeout: float
    groups: dict[str, Any] | None
    limits: dict[str, Any] | None

    def text(self) -> str:
        return json.dumps(asdict(self))

    def queue_limits(self) -> zkrq.Limits | None:
        limits = dict(self.limits or {})
        if "rate" in limits:
            limits["rate"] = tuple(limits["rate"])
        return zkrq.Limits(**limits) if limits else None

    def queue(self, cluster: Cluster) -> zkrq.Queue[Any]:
        """The queue, with these groups and limits."""
        return cluster.queue(
            QUEUE,
            groups=None if self.groups is None else zkrq.Groups(**self.groups),
            limits=self.queue_limits(),
            retry=AGAIN,
            claim_timeout=self.claim_timeout,
        )


async def work(orders: Orders) -> None:
    """Take items, one at a time; start again if no server answers while this connects, as a supervisor would."""
    recorder = Recorder(Path(orders.file), orders.who)
    while True:
        try:
            await _work(orders, recorder)
        except zkrq.Unavailable:
            await asyncio.sleep(RETRY_PAUSE)


async def _work(orders: Orders, recorder: Recorder) -> None:
    async with zkrq.connect(
        orders.redis,
        orders.zookeeper,
        namespace=orders.namespace,
        session_timeout=orders.session_timeout,
    ) as cluster:
        async for claim in orders.queue(cluster).pop():
            token = (claim.token[0], claim.token[1])
            recorder.note(Kind.DELIVERED, str(claim.item), token)
            await asyncio.sleep(random.expovariate(1 / WORK))
            fails = random.random() < FAILS
            recorder.note(Kind.SETTLING, str(claim.item), token, "nack" if fails else "ack")
            await _settle(claim, fails=fails)
            recorder.note(Kind.SETTLED, str(claim.item), token, "nack" if fails else "ack")


async def _settle(claim: zkrq.Claim[Any], *, fails: bool) -> None:
    while True:
        try:
            await (claim.nack() if fails else claim.ack())
        except zkrq.ClaimLost:
            return
        except (zkrq.OutcomeUnknown, zkrq.Unavailable, zkrq.NotEnoughReplicas):
            await asyncio.sleep(RETRY_PAUSE)
        else:
            return


if __name__ == "__main__":
    asyncio.run(work(Orders(**json.loads(sys.argv[1]))))
