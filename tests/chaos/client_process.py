"""Producers and consumers in a process of their own, which record all that they see (record.py).

Controlled by one JSON object as the argument (``Orders``), then by lines on standard input: ``stop`` ends the
producers, and is answered with ``idle`` when their last pushes have returned; the end of the input ends the process.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import random
import signal
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import zkrq
from tests.chaos.record import Kind, Recorder
from zkrq.base.retry import Retry, constant
from zkrq.client.cluster import Cluster
from zkrq.consuming.claims import lease_of
from zkrq.protocol.calls import Claim, Decision, Turn
from zkrq.protocol.deciding import Decided
from zkrq.protocol.view import View
from zkrq.replication.replicas import Replicas

QUEUE, SMALL = "jobs", "errands"
"""The second one has a limit, and is paused now and then."""

MAX_SIZE = 40
"""Items that the small queue takes."""

CONNECTED, STOP, IDLE = "connected", "stop", "idle"

RETRY_PAUSE = 0.05
"""Seconds before a push, or a settling, is tried again."""

GIVE_UP = 200.0
"""Seconds after which a push is not repeated any more: well within the time in which that is allowed."""

WORK = 0.01
"""Seconds that a handler takes on average."""

LONG_ONE_IN = 10
"""One handler in so many takes up to ``Orders.long_work``, so that several hold a claim during every fault."""

CAREFUL = 0.5
"""Part of the handlers that give up a claim which, by its own word, no longer holds; the others try to settle it."""

SMALL_FILLING = 100
"""Bytes of ballast in the other pushes."""

DELAYED = 0.5
"""Part of the pushes that is for later, so that there is always something in the queue to be lost."""

KEYS = tuple(f"key-{number}" for number in range(30))
KEYED = 0.2
"""Part of the pushes that has one of these keys, so that some are duplicates."""

EXPIRING, FOR_EVER = 0.1, 10 * 86400.0
"""Part of the pushes that has a time to live, and how long: longer than any run, and than a clock is set by."""

BUNDLED, BUNDLED_MAX = 0.2, 12
"""Part of the pushes that is of several items at once, which form a bundle; and how many these are at most."""

CANCELLED = 0.03
"""Part of the pushes that is cancelled a little later, with some luck before it is done."""

LARGE_ONE_IN = 100
"""One push in so many is as large as ``Orders.filling`` says."""

REFUSALS = (zkrq.NotEnoughReplicas, zkrq.QueueFull, zkrq.Unavailable, zkrq.ConfigError)
"""Nothing happened.  ``ConfigError``: a server does not let this client in."""

TOGETHER = 4
"""Claims that are acked in one call, by the consumers that do so."""

PAUSE_EVERY, PAUSE_SECONDS = 3.0, 0.5
"""How often the small queue is paused, and for how long, on average."""

VERBS = {"ack": 0.9, "nack": 0.05, "release": 0.05}
"""How claims are settled, and how often so."""

_log = logging.getLogger("zkrq.chaos")

_DEATH_OF_PARENT = 1  # PR_SET_PDEATHSIG


@dataclass(frozen=True, slots=True)
class Orders:
    """All that a client process needs to know.  Times are in seconds; ``pause`` is what a producer rests on average,
    ``delay`` for how much later a push is at most, ``long_work`` what a slow handler takes at most; ``pauses``: whether
    it is this process that pauses the small queue."""

    name: str
    log: str
    redis: dict[str, str]
    zookeeper: str
    namespace: str
    min_replicas: int
    seed: str
    session_timeout: float
    command_timeout: float
    operation_timeout: float
    claim_timeout: float
    delay: float
    long_work: float
    pauses: bool
    filling: int
    """Bytes of ballast in one push of ``LARGE_ONE_IN``."""
    producers: int = 3
    consumers: int = 16
    pause: float = 0.025

    def dump(self) -> str:
        return json.dumps(asdict(self))


class Client:
    """The producers and consumers of this process."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._recorder = Recorder(Path(orders.log), orders.name)
        self._note = self._recorder.note
        self._chance = random.Random(f"{orders.seed} {orders.name}")
        self._stopping = False
        self._asked: dict[str, float] = {}
        self._cancelling: set[asyncio.Task[None]] = set()
        self._cluster = self._connect()

    def _connect(self) -> Cluster:
        orders = self._orders
        return zkrq.connect(
            orders.redis,
            orders.zookeeper,
            namespace=orders.namespace,
            found=True,
            min_replicas=orders.min_replicas,
            description=orders.name,
            session_timeout=orders.session_timeout,
            command_timeout=orders.command_timeout,
            operation_timeout=orders.operation_timeout,
            on_event=self._heard,
        )

    async def run(self) -> None:
        with self._noting_requests():
            await self._run()

    async def _run(self) -> None:
        async with AsyncExitStack() as stack:
            cluster = await self._connected(stack)
            retry = Retry(max_attempts=None, backoff=constant(0.1))
            timeout = self._orders.claim_timeout
            queue: zkrq.Queue[Any] = cluster.queue(QUEUE, claim_timeout=timeout, retry=retry)
            small: zkrq.Queue[Any] = cluster.queue(SMALL, claim_timeout=timeout, retry=retry, max_size=MAX_SIZE)
            say(CONNECTED)
            consuming = [self._consume(queue) for _ in range(self._orders.consumers)]
            consuming += [self._consume(small), self._consume_together(small), self._consume_together(queue)]
            consumers = [asyncio.create_task(work) for work in consuming]
            producing = [self._produce(queue) for _ in range(self._orders.producers)]
            producing.append(self._produce(small))
            producing += [self._pause_now_and_then(small)] if self._orders.pauses else []
            producers = [asyncio.create_task(work) for work in producing]
            listening = asyncio.create_task(self._listen(producers))
            await asyncio.wait([listening, *consumers], return_when=asyncio.FIRST_COMPLETED)
            for task in (*producers, *consumers):
                if task.done():
                    task.result()  # whatever ended it, it should not have ended
                task.cancel()
            await asyncio.wait([*producers, *consumers])

    async def _connected(self, stack: AsyncExitStack) -> Cluster:
        """Connect, however long it takes: with short time-outs a busy machine is too slow for the first try."""
        while True:
            try:
                return await stack.enter_async_context(self._cluster)
            except zkrq.Unavailable as error:
                _log.info("not connected yet: %s", error)
                await asyncio.sleep(RETRY_PAUSE)
                self._cluster = self._connect()

    async def _listen(self, producers: list[asyncio.Task[None]]) -> None:
        while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
            assert line == STOP
            self._stopping = True
            await asyncio.gather(*producers)
            await asyncio.gather(*self._cancelling)
            say(IDLE)

    # -- producing -----------------------------------------------------------------------------------------------------

    async def _produce(self, queue: zkrq.Queue[Any]) -> None:
        while not self._stopping:
            together = queue.name == QUEUE and self._chance.random() < BUNDLED
            await (self._push_together(queue) if together else self._push(queue))
            await asyncio.sleep(self._chance.expovariate(1 / self._orders.pause))

    async def _push(self, queue: zkrq.Queue[Any]) -> None:
        """One item, tried until its push returns."""
        chance, id = self._chance, zkrq.new_id()
        options: dict[str, Any] = {"priority": chance.randrange(3)}
        if chance.random() < DELAYED:
            options["delay"] = chance.uniform(0, self._orders.delay)
        if chance.random() < KEYED:
            options["key"] = f"{queue.name} {chance.choice(KEYS)}"
        if chance.random() < EXPIRING:
            options["ttl"] = FOR_EVER
        if chance.random() < CANCELLED:
            self._cancelling.add(task := asyncio.create_task(self._cancel(queue, id)))
            task.add_done_callback(self._cancelling.discard)
        filling = self._orders.filling if chance.randrange(LARGE_ONE_IN) == 0 else SMALL_FILLING
        await self._push_until_it_returns(queue, id, id, "." * filling, options)

    async def _push_together(self, queue: zkrq.Queue[Any]) -> None:
        """Several items that form a bundle; those whose push may have happened are pushed again one by one."""
        names = [zkrq.new_id() for _ in range(self._chance.randint(2, BUNDLED_MAX))]
        filling = "." * SMALL_FILLING
        for name in names:
            self._note(Kind.PUSHING, name)
        outcomes: Sequence[zkrq.Receipt | zkrq.ZkrqError]
        try:
            outcomes = await queue.push_many({"id": name, "filling": filling} for name in names)
        except zkrq.ZkrqError as error:
            outcomes = list(error.outcomes.outcomes()) if error.outcomes else []
        assert len(outcomes) == len(names)
        again: dict[str, str] = {}
        for at, (name, outcome) in enumerate(zip(names, outcomes, strict=True)):
            if isinstance(outcome, zkrq.OutcomeUnknown):
                self._note(Kind.PUSH_UNKNOWN, name)
                again[name] = outcome.ids[at if len(outcome.ids) > 1 else 0]
            else:
                self._note(Kind.PUSH_REFUSED if isinstance(outcome, zkrq.ZkrqError) else Kind.PUSHED, name)
        for name, id in again.items():
            await self._push_until_it_returns(queue, name, id, filling, {})

    async def _push_until_it_returns(
        self, queue: zkrq.Queue[Any], name: str, id: str, filling: str, options: dict[str, Any]
    ) -> None:
        """``name``: of the item, in the log; ``id``: under which it is pushed."""
        until = time.monotonic() + GIVE_UP
        while time.monotonic() < until:
            self._note(Kind.PUSHING, name, detail=options.get("key", ""))
            try:
                receipt = await queue.push({"id": name, "filling": filling}, id=id, **options)
            except zkrq.OutcomeUnknown:
                self._note(Kind.PUSH_UNKNOWN, name)
            except REFUSALS:
                self._note(Kind.PUSH_REFUSED, name)
            else:
                if receipt.duplicate:
                    self._note(Kind.DUPLICATE, name, detail=receipt.id)
                else:
                    self._note(Kind.PUSHED, name)
                return
            await asyncio.sleep(RETRY_PAUSE)

    async def _cancel(self, queue: zkrq.Queue[Any], id: str) -> None:
        """Cancel an item, tried until that returns."""
        await asyncio.sleep(self._chance.uniform(0, self._orders.delay / 2))
        while True:
            self._note(Kind.CANCELLING, id)
            try:
                found = await queue.cancel(id)
            except zkrq.OutcomeUnknown:
                self._note(Kind.CANCEL_UNKNOWN, id)
            except REFUSALS:
                self._note(Kind.CANCEL_REFUSED, id)
            else:
                self._note(Kind.CANCELLED, id, detail=found.value)
                return
            await asyncio.sleep(RETRY_PAUSE)

    # -- pausing -------------------------------------------------------------------------------------------------------

    async def _pause_now_and_then(self, queue: zkrq.Queue[Any]) -> None:
        """Ends when it is told to stop, with the queue going on."""
        while not self._stopping:
            await asyncio.sleep(self._chance.uniform(0, 2 * PAUSE_EVERY))
            self._note(Kind.PAUSING)
            with suppress(zkrq.OutcomeUnknown, *REFUSALS):
                await queue.pause()
                self._note(Kind.PAUSED)
            await asyncio.sleep(self._chance.uniform(0, 2 * PAUSE_SECONDS))
            with suppress(*REFUSALS):
                size = sum((await queue.statistics()).sizes[:3])
                self._note(Kind.SIZE, detail=f"{size} {MAX_SIZE}")
            await self._resume(queue)

    async def _resume(self, queue: zkrq.Queue[Any]) -> None:
        while True:
            self._note(Kind.RESUMING)
            try:
                return await queue.resume()
            except (zkrq.OutcomeUnknown, *REFUSALS):
                await asyncio.sleep(RETRY_PAUSE)

    # -- consuming -----------------------------------------------------------------------------------------------------

    async def _consume(self, queue: zkrq.Queue[Any]) -> None:
        async for claim in queue.pop():
            self._note_delivered(queue, claim)
            careful = self._chance.random() < CAREFUL
            await self._work(claim)
            if self._holds(claim) or not (careful or claim.lost):
                await self._settle(claim, careful)

    async def _consume_together(self, queue: zkrq.Queue[Any]) -> None:
        """Some at a time, acked with one call, which is repeated until it is known of each."""
        while True:
            try:
                claims = await queue.pop_many(TOGETHER, timeout=1.0)
            except REFUSALS:
                await asyncio.sleep(RETRY_PAUSE)
                continue
            for claim in claims:
                self._note_delivered(queue, claim)
            if claims:
                await self._work(claims[0])
            while claims := [claim for claim in claims if not claim.settled and self._holds(claim)]:
                for claim in claims:
                    self._note(Kind.SETTLING, _name_of(claim), claim.token, "ack")
                try:
                    lost = {_name_of(claim) for claim in await queue.ack_many(claims)}
                except (zkrq.OutcomeUnknown, *REFUSALS):
                    lost = {_name_of(claim) for claim in claims if not claim.settled}
                    for claim in claims:
                        unknown = _name_of(claim) in lost
                        self._note(
                            Kind.SETTLE_UNKNOWN if unknown else Kind.SETTLED, _name_of(claim), claim.token, "ack"
                        )
                    await asyncio.sleep(RETRY_PAUSE)
                    continue
                for claim in claims:
                    if _name_of(claim) in lost:
                        self._note(Kind.LOST, _name_of(claim), claim.token, "ack_many")
                    else:
                        self._note(Kind.SETTLED, _name_of(claim), claim.token, "ack")
                break

    def _note_delivered(self, queue: zkrq.Queue[Any], claim: zkrq.Claim[Any]) -> None:
        asked_at = self._asked[lease_of(claim).grant.request]
        self._note(Kind.ASKED, _name_of(claim), claim.token, "small" if queue.name == SMALL else "", asked_at)
        self._note(Kind.DELIVERED, _name_of(claim), claim.token, claim.owner)

    @contextmanager
    def _noting_requests(self) -> Generator[None, None, None]:
        """Know when each claim request was begun first."""
        decide = Replicas.decide

        async def note(replicas: Replicas, call: Decision[Any], **options: Any) -> Decided[Any]:
            if isinstance(call, Claim | Turn):
                self._asked.setdefault(f"{call.owner}/{call.seq}", time.monotonic())
            return await decide(replicas, call, **options)

        with patch.object(Replicas, "decide", note):
            yield

    async def _work(self, claim: zkrq.Claim[Any]) -> None:
        """Take some time, unless the claim is lost meanwhile."""
        longest = self._orders.long_work if self._chance.randrange(LONG_ONE_IN) == 0 else 2 * WORK
        with suppress(TimeoutError):
            async with asyncio.timeout(self._chance.uniform(0, longest)):
                await claim.lost

    def _holds(self, claim: zkrq.Claim[Any]) -> bool:
        """Whether the claim still holds by its own word; if not, that is written down."""
        if not claim.holds:
            # The loop's clock is time.monotonic: a deadline that has passed was the end of it.
            ended_at = min(time.monotonic(), lease_of(claim).deadline_at)
            self._note(Kind.LOST, _name_of(claim), claim.token, claim.lost.reason or "its deadline passed", at=ended_at)
        return claim.holds

    async def _settle(self, claim: zkrq.Claim[Any], careful: bool) -> None:
        """Settle one claim, tried until it is settled or lost."""
        (verb,) = self._chance.choices(list(VERBS), list(VERBS.values()))
        settle = {"ack": claim.ack, "nack": claim.nack, "release": claim.release}[verb]
        while True:
            self._note(Kind.SETTLING, _name_of(claim), claim.token, verb)
            try:
                await settle()
            except zkrq.OutcomeUnknown:
                self._note(Kind.SETTLE_UNKNOWN, _name_of(claim), claim.token, verb)
            except REFUSALS:
                self._note(Kind.SETTLE_REFUSED, _name_of(claim), claim.token, verb)
            except zkrq.ClaimLost as error:
                self._note(Kind.LOST, _name_of(claim), claim.token, f"{verb}: {error}")
                return
            else:
                self._note(Kind.SETTLED, _name_of(claim), claim.token, verb)
                return
            await asyncio.sleep(RETRY_PAUSE)
            if careful and not self._holds(claim):
                return

    # -- hearing -------------------------------------------------------------------------------------------------------

    def _heard(self, event: zkrq.Event) -> None:
        match event:
            case zkrq.ViewChanged():
                self._note(Kind.VIEW, detail=_shown(self._cluster.view))
            case zkrq.OwnerFenced(owner=owner) | zkrq.SessionLost(owner=owner):
                self._note(Kind.OWNER_ENDED, detail=owner)
            case _:
                pass
        self._note(Kind.EVENT, detail=str(event))


def _name_of(claim: zkrq.Claim[Any]) -> str:
    """The name of the item in the log: the id under which it was pushed, unless it was pushed with others."""
    return claim.item["id"]


def _shown(view: View) -> str:
    """The view in a line: epoch, the queues' primaries, and the members in the lives that it names."""
    lives = (f"{id}={life.run_id}/{life.generation}" for id, life in view.members.items())
    return f"{view.epoch} {view.primary(QUEUE)} {view.primary(SMALL)} {','.join(lives)}"


def say(word: str) -> None:
    print(word, flush=True)


def _log_by_the_shared_clock() -> None:
    """The library's log, on standard error, under the same clock as the entries."""
    formatter = logging.Formatter("%(monotonic).6f %(levelname)s %(name)s %(message)s")
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)

    def stamp(record: logging.LogRecord) -> bool:
        record.monotonic = time.monotonic()
        return True

    handler.addFilter(stamp)
    logging.getLogger("zkrq").addHandler(handler)
    logging.getLogger("zkrq").setLevel(logging.INFO)


if __name__ == "__main__":
    # A process that is stopped would outlive a controller that was killed.
    ctypes.CDLL(None).prctl(_DEATH_OF_PARENT, signal.SIGKILL)
    _log_by_the_shared_clock()
    asyncio.run(Client(Orders(**json.loads(sys.argv[1]))).run())
