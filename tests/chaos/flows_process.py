"""A worker of flows, in a process of its own, that records what it does (record.py).

It makes flows, handles their members, and what follows them.  A flow is made by a handler, as programs do it: the item
that asks for it is delivered again if this process dies in the middle.  Its arguments are one JSON object (``Orders``).
It works until it is killed.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import zkrq
from tests.chaos.record import Kind, Recorder
from zkrq.client.cluster import Cluster

T = TypeVar("T")

MAKERS = "makers"
QUEUES: tuple[str, ...] = ("rows", "prices", "mails")
"""Queues of members; a flow's home is one of them."""
AFTER = "reports"
"""Queue of what follows."""

WORK = 0.002
"""Seconds that a member takes on average."""
PAGE = 100
"""Members that one push brings."""
FAILS = 0.02
"""Part of the deliveries that fail and are repeated."""
PAUSE = 0.05
"""Seconds before a call of unknown outcome is repeated."""
ORDER: dict[str, tuple[str, ...]] = {"check": (), "price": ("check",), "stock": ("check",), "ship": ("price", "stock")}
"""Names of the members of an order, each with those for which it waits: a diamond."""
RESULTS = zkrq.Results(ttl=10.0)
"""Of members they are kept as long as the flow is."""
CRAWLED = 3
"""Members that a member of a crawl adds, until the crawl is large enough."""

AGAIN = zkrq.Retry(max_attempts=None, backoff=zkrq.constant(0.05))

Item = dict[str, Any]
"""``flow``: its name; ``what``: ``make``, ``member``, or what it is held for."""

RETRIED = (zkrq.OutcomeUnknown, zkrq.Unavailable, zkrq.NotEnoughReplicas)


@dataclass(frozen=True, slots=True)
class Orders:
    """What a worker is told."""

    who: str
    redis: dict[str, Any]
    zookeeper: str
    namespace: str
    file: str
    session_timeout: float
    claim_timeout: float
    concurrency: int

    def text(self) -> str:
        return json.dumps(asdict(self))


def name_of(item: Item, id: str) -> str:
    """Return under which name an item is recorded: its flow, what it is, and its id."""
    return f"{item['flow']}/{item['what']}/{id}"


def home_of(flow: str) -> str:
    """Return the queue on which a flow of this name is begun."""
    return QUEUES[sum(flow.encode()) % len(QUEUES)]


class Worker:
    """Handlers, and the recorder of what they do."""

    def __init__(self, cluster: Cluster, recorder: Recorder, claim_timeout: float) -> None:
        self._recorder = recorder
        self._queues: dict[str, zkrq.Queue[Item]] = {
            name: cluster.queue(
                name, retry=AGAIN, claim_timeout=claim_timeout, results=RESULTS if name in QUEUES else None
            )
            for name in (MAKERS, *QUEUES, AFTER)
        }

    async def run(self, concurrency: int) -> None:
        """Consume all queues until this is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for name, slots in ((MAKERS, 1), *((each, concurrency) for each in QUEUES), (AFTER, 2)):
                for _ in range(slots):
                    tasks.create_task(self._consume(self._queues[name]))

    async def _consume(self, queue: zkrq.Queue[Item]) -> None:
        async for claim in queue.pop():
            token = (claim.token[0], claim.token[1])
            name = name_of(claim.item, claim.id)
            self._recorder.note(Kind.DELIVERED, name, token)
            verb = await self._handle(claim)
            self._recorder.note(Kind.SETTLING, name, token, verb)
            if await self._settle(claim, verb):
                self._recorder.note(Kind.SETTLED, name, token, verb)

    async def _handle(self, claim: zkrq.Claim[Item]) -> str:
        """Do what an item asks for; return how it is to be settled."""
        item = claim.item
        if item["what"] == "make":
            return await self._make(item)
        if item["what"] != "member":
            await self._read_all(claim)
            return "ack"
        await asyncio.sleep(random.expovariate(1 / WORK))
        if item.get("crawl"):
            await self._crawl(claim)
        if awaited := ORDER.get(item["n"], ()):
            await self._read(claim, awaited)
        if random.random() < item.get("dies", 0.0):
            return "bury"
        return "nack" if random.random() < FAILS else "ack"

    async def _settle(self, claim: zkrq.Claim[Item], verb: str) -> bool:
        settle: dict[str, Callable[[], Awaitable[object]]] = {
            "ack": partial(claim.ack, result=claim.id if claim.item["what"] == "member" else None),
            "nack": claim.nack,
            "bury": lambda: claim.bury("it was told to fail"),
        }
        while True:
            try:
                await settle[verb]()
            except zkrq.ClaimLost:
                return False
            except RETRIED:
                await asyncio.sleep(PAUSE)
            else:
                return True

    # -- results -------------------------------------------------------------------------------------------------------

    async def _read(self, claim: zkrq.Claim[Item], awaited: Iterable[str]) -> None:
        """Read what the members have returned for which one has waited."""
        flow = claim.flow
        assert flow is not None
        for name in awaited:
            result = await self._surely(partial(flow.result_of, name))
            told = str(result.value) if result.has_value else str(result.state)
            self._recorder.note(Kind.READ, name_of(claim.item, f"{flow.name}.{name}"), None, told)

    async def _read_all(self, claim: zkrq.Claim[Item]) -> None:
        """Read what all members have returned, when these have ended."""
        flow = claim.flow
        assert flow is not None

        async def read() -> list[zkrq.Result[Any]]:
            return [result async for result in flow.results()]

        results = await self._surely(read)
        wrong = len(results) - len({result.id for result in results if result.value == result.id or result.is_lost})
        self._recorder.note(Kind.READ, name_of(claim.item, claim.id), claim.token, f"{len(results)} {wrong}")

    # -- making flows --------------------------------------------------------------------------------------------------

    async def _make(self, item: Item) -> str:
        """Make the flow that an item describes.  What an earlier delivery pushed stays; the flow waits for both."""
        try:
            await self._made(item)
        except zkrq.FlowEnded as error:
            # An operator has cancelled it, or an earlier delivery has made it and it is over.
            self._recorder.note(Kind.PUSH_REFUSED, name_of(item, ""), None, str(error))
        except RETRIED:  # of its begin or its seal
            return "nack"
        return "ack"

    async def _made(self, item: Item) -> None:
        name, after, queues = item["flow"], self._queues[AFTER], QUEUES[: item["queues"]]
        async with self._queues[home_of(name)].flow(name, **item.get("options", {})) as flow:
            for what, hold in (("then", flow.then), ("failure", flow.on_failure), ("always", flow.always)):
                if what in item["holds"]:
                    await self._surely(partial(hold, {"flow": name, "what": what}, queue=after, id=f"{name}-{what}"))
            if crawl := item.get("crawl"):
                await self._push(flow, [{"flow": name, "what": "member", "n": 0, "crawl": crawl}], QUEUES[0])
            for number, (step, after) in enumerate(ORDER.items() if item.get("order") else ()):
                member = {"flow": name, "what": "member", "n": step}
                queue = self._queues[QUEUES[number % len(QUEUES)]]
                receipt = await self._surely(partial(flow.push, member, queue=queue, name=step, after=after))
                self._recorder.note(Kind.PUSHED, name_of(member, receipt.id))
            for first in range(0, item["members"], PAGE):
                numbers = range(first, min(first + PAGE, item["members"]))
                members = [self._member(item, number) for number in numbers]
                await self._push(flow, members, queues[first // PAGE % len(queues)])

    def _member(self, item: Item, number: int) -> Item:
        member: Item = {"flow": item["flow"], "what": "member", "n": number}
        return {**member, "dies": item["dies"]} if number in item.get("die", []) else member

    async def _push(self, flow: zkrq.Flow, members: list[Item], queue: str) -> None:
        """Push members until it is certain.  A try whose outcome is unknown leaves members, which count as well."""
        receipts = await self._surely(partial(flow.push_many, members, queue=self._queues[queue]))
        for member, receipt in zip(members, receipts, strict=True):
            self._recorder.note(Kind.PUSHED, name_of(member, receipt.id))

    async def _surely(self, call: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await call()
            except RETRIED:
                await asyncio.sleep(PAUSE)

    async def _crawl(self, claim: zkrq.Claim[Item]) -> None:
        """Add what follows a member, as a page links to others: a tree, so each is there once but for repeats."""
        item, flow = claim.item, claim.flow
        assert flow is not None
        number: int = item["n"]
        first = number * CRAWLED + 1
        members = [{**item, "n": added} for added in range(first, min(first + CRAWLED, item["crawl"]))]
        try:
            if members:
                await self._push(flow, members, QUEUES[number % len(QUEUES)])
        except zkrq.FlowEnded as error:  # cancelled
            self._recorder.note(Kind.PUSH_REFUSED, name_of(item, claim.id), None, str(error))


async def work(orders: Orders) -> None:
    """Start again if no server answers while this connects, as a supervisor would."""
    recorder = Recorder(Path(orders.file), orders.who)
    while True:
        try:
            async with zkrq.connect(
                orders.redis,
                orders.zookeeper,
                namespace=orders.namespace,
                session_timeout=orders.session_timeout,
            ) as cluster:
                await Worker(cluster, recorder, orders.claim_timeout).run(orders.concurrency)
        except* zkrq.Unavailable:
            await asyncio.sleep(PAUSE)


if __name__ == "__main__":
    asyncio.run(work(Orders(**json.loads(sys.argv[1]))))
