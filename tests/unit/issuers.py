"""An issuer of claims that is slow to answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from zkrq.base.codecs import JSON
from zkrq.base.events import Events
from zkrq.base.flows import FlowName
from zkrq.base.loop import OwnLoop
from zkrq.base.retry import Again
from zkrq.consuming.claims import Claim
from zkrq.consuming.flow import Flow
from zkrq.consuming.lease import Grant, Lease, Refused, Verb
from zkrq.consuming.observing import Observers
from zkrq.protocol.records import Bundle, Row, State, Version, pack


class SlowIssuer:
    """Answers what it is asked when the test says so."""

    claim_timeout = 30.0
    queue = "jobs"
    observers = Observers(Events(None))
    keeps_results = False
    saved_codec = JSON

    def __init__(self) -> None:
        self.answer: asyncio.Future[Refused] = asyncio.get_running_loop().create_future()
        self.own_loop = OwnLoop()
        self.own_loop.settle()

    def settle(self, lease: Lease, verb: Verb, ms: int = 0, text: str = "") -> asyncio.Future[Refused]:
        return self.answer

    def ack_together(self, leases: Sequence[Lease], returning: int) -> asyncio.Future[Refused]:
        return self.answer

    def check_saves(self) -> None: ...

    def flow_of(self, flow: FlowName) -> Flow:
        raise AssertionError(flow)

    def save(self, lease: Lease, number: int, text: bytes, ms: int) -> asyncio.Future[Refused]:
        return self.answer

    def report(self, lease: Lease, text: str) -> None: ...

    def encode_result(self, result: object) -> bytes:
        raise AssertionError(result)

    def counts_each_step(self, lease: Lease) -> bool:
        return False

    def after_failure(self, lease: Lease, delay: float | None, reason: str) -> Again | str:
        return reason

    def after_snooze(self, lease: Lease, delay: float) -> Again | str:
        return Again(delay)


def claimed(issuer: SlowIssuer, seconds: float) -> Claim[str]:
    packed = pack(Bundle(Version(1, 2), State.CLAIMED.value, rows_of=[1], rows=[Row("ann", 1)]))
    grant = Grant(issuer, "i", packed, "ann", "ann/1")
    return Claim("item", grant, 0, asyncio.get_running_loop().time() + seconds)
