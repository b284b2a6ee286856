"""The calls of the HTTP API.  Their paths, parameters and replies are those of the table of operations."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from zkrq.base.codecs import JSON
from zkrq.base.errors import ClaimLost, Closed, CodecError, OutcomeUnknown, PayloadTooLarge, Receipt, ZkrqError
from zkrq.base.limits import check_result
from zkrq.client.changing import change_settings, named_in
from zkrq.client.missing import find_missing
from zkrq.operations.claims import ACK, BURY, CLAIM, EXTEND, NACK, PROGRESS, RELEASE, SAVE
from zkrq.operations.figures import WORK_FIGURES
from zkrq.operations.flows import FLOWS
from zkrq.operations.items import ENDED
from zkrq.operations.push import RECEIPT
from zkrq.operations.queues import BACKLOG, CONSUMER, FIGURES, GROUPS_FOUND, QUIETED, SHARD
from zkrq.operations.schedules import SCHEDULES
from zkrq.operations.servers import SERVERS
from zkrq.operations.settings import STORED
from zkrq.operations.table import OPERATIONS
from zkrq.serve.audit import name_chosen, say
from zkrq.serve.bodies import claimed, found, stored, told
from zkrq.serve.calls import make_router
from zkrq.serve.holding import Kept
from zkrq.serve.problems import Busy, NoneNamed, NoSuchItem, describe_error, headers_of, kind_of
from zkrq.serve.watching import takes_pushes

if TYPE_CHECKING:
    from fastapi import APIRouter

    from zkrq.client.cluster import Cluster
    from zkrq.client.quieting import Quieted
    from zkrq.consuming.claims import Claim
    from zkrq.operations.operation import Operation
    from zkrq.serve.bodies import Body, Payload
    from zkrq.serve.holding import Held, Holding
    from zkrq.serve.queues import Queues

T = TypeVar("T")

WAITING_MAX = 500
"""Requests that wait for items, or for results, at one time."""

BY_HTTP = "HTTP"
"""Who has edited an item, unless the caller says it."""

STOPPING = "this server is stopping: ask another one, or retry later"


class Api:
    """Carry out the calls of HTTP clients on one cluster."""

    def __init__(self, cluster: Cluster, queues: Queues, holding: Holding, stopping: asyncio.Event) -> None:
        """``stopping``: set when nothing more is to be claimed."""
        self._cluster = cluster
        self._queues = queues
        self._holding = holding
        self._stopping = stopping
        self._waiting = 0

    def router(self) -> APIRouter:
        """Return the calls, with their paths."""
        others = [each for each in OPERATIONS.values() if each.name not in (*SCHEDULES, *FLOWS, *SERVERS)]
        return make_router(others, self)

    # -- push ------------------------------------------------------------------------------------------------------

    async def push(self, queue: str, body: Payload) -> Response:
        return JSONResponse(RECEIPT.tell(await self._push(queue, body, body.payload())))

    async def push_many(self, queue: str, body: Body) -> Response:
        """Push all, and reply like the worst error if there is one; the outcomes tell of each item."""
        items: list[Payload] = body.given()["items"]
        puts = [(item, item.payload()) for item in items]  # finds a bad item before the first one is pushed
        pushes = (self._push(queue, item, payload) for item, payload in puts)
        outcomes = await asyncio.gather(*pushes, return_exceptions=True)
        bugs = (each for each in outcomes if isinstance(each, BaseException) and not isinstance(each, ZkrqError))
        if bug := next(bugs, None):
            raise bug
        told = {"outcomes": [_outcome(cast("Receipt | ZkrqError", outcome)) for outcome in outcomes]}
        errors = [outcome for outcome in outcomes if isinstance(outcome, ZkrqError)]
        if not errors:
            return JSONResponse(told)
        ids = tuple(id for error in errors if isinstance(error, OutcomeUnknown) for id in error.ids)
        worst = OutcomeUnknown(ids=ids) if ids else errors[0]
        kind = kind_of(worst)
        happened = "partly" if not ids and len(errors) < len(outcomes) else kind.happened
        return JSONResponse({**describe_error(worst), "happened": happened, **told}, kind.status, headers_of(kind))

    async def _push(self, queue: str, push: Payload, payload: bytes) -> Receipt:
        return await self._queues[queue].push(payload, **push.given())

    # -- claim -----------------------------------------------------------------------------------------------------

    async def claim(self, request: Request, queue: str, body: Body | None) -> Response:
        """Claim items; a client that hangs up leaves them in the queue."""
        wanted = _values(CLAIM, body)
        self._holding.check_room()
        popping = self._queues[queue].pop_many(min(wanted["count"], self._holding.room), timeout=wanted["wait"])
        claims = await self._wait(request, popping, self._hand_back)
        shown = [_hand_over(each, wanted["lease"]) for each in self._holding.hold(queue, claims, wanted["lease"])]
        return Response(f'{{"claims": [{", ".join(shown)}]}}', media_type="application/json")

    async def _hand_back(self, claims: Sequence[Claim[bytes]]) -> None:
        """Release what was claimed for a client that has hung up."""
        await asyncio.gather(*(claim.release() for claim in claims), return_exceptions=True)

    async def _wait(
        self,
        request: Request,
        work: Coroutine[Any, Any, T],
        give_back: Callable[[T], Awaitable[None]] | None = None,
    ) -> T:
        """Wait for something that may take long; end it if the client hangs up, or this server stops.

        ``give_back`` is called with what it has brought for a client that has hung up.  Raises ``Closed``, ``Busy``.
        """
        if self._stopping.is_set() or self._waiting >= WAITING_MAX:
            work.close()
            raise Closed(STOPPING) if self._stopping.is_set() else Busy
        working = asyncio.create_task(work)
        hung_up = asyncio.create_task(_hung_up(request))
        tasks = (working, hung_up, asyncio.create_task(self._stopping.wait()))
        self._waiting += 1
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiting -= 1
            gone = hung_up.done()
            for task in tasks:
                task.cancel()  # changes nothing if it is done
            await asyncio.wait(tasks)
        if working.cancelled():
            raise Closed(STOPPING)  # or the client is gone, and reads no answer
        if gone:
            if give_back:
                await give_back(working.result())
            raise ClientDisconnect
        return working.result()

    # -- settle ----------------------------------------------------------------------------------------------------

    async def ack(self, claim: str, body: Body | None) -> Response:
        wanted = _values(ACK, body)
        kept = _kept(wanted) if "result" in (body.given() if body else ()) else None
        queue = self._holding.queue_of(claim) if wanted["next"] else None
        if queue is None or self._holding.room < 1 or self._stopping.is_set():
            await self._holding.ack(claim, kept)
            return JSONResponse({"settled": "ack", **({"next": None} if wanted["next"] else {})})
        # Begun first, so that the request for the item leaves together with the ack: one decision of the servers.
        popping = asyncio.create_task(self._queues[queue].pop_many(1, timeout=0))
        try:
            await self._holding.ack(claim, kept)
            await asyncio.wait([popping])
        except BaseException:
            self._holding.hand_back(popping)
            raise
        # The ack is done, whatever became of the request.
        claims = [] if isinstance(popping.exception(), ZkrqError) else popping.result()
        following = "null"
        for held in self._holding.hold(queue, claims, wanted["lease"]):
            following = _hand_over(held, wanted["lease"])
        return Response(f'{{"settled": "ack", "next": {following}}}', media_type="application/json")

    async def ack_many(self, body: Body) -> Response:
        """Remove the items of several claims: name those that are lost, and raise what befell others."""
        tokens: list[str] = list(dict.fromkeys(body.given()["claims"]))
        outcomes = await asyncio.gather(*map(self._holding.ack, tokens), return_exceptions=True)
        errors = [each for each in outcomes if isinstance(each, BaseException) and not isinstance(each, ClaimLost)]
        if bug := next((error for error in errors if not isinstance(error, ZkrqError)), None):
            raise bug
        if errors:
            is_certain = len(errors) == len(tokens) and not any(isinstance(each, OutcomeUnknown) for each in errors)
            raise errors[0] if is_certain else OutcomeUnknown("some claims may have been acked: repeat the request")
        lost = [token for token, outcome in zip(tokens, outcomes, strict=True) if outcome is not None]
        return JSONResponse({"acked": len(tokens) - len(lost), "lost": lost})

    async def nack(self, claim: str, body: Body | None) -> Response:
        await self._holding.nack(claim, **_values(NACK, body))
        return JSONResponse({"settled": "nack"})

    async def release(self, claim: str, body: Body | None) -> Response:
        await self._holding.release(claim, **_values(RELEASE, body))
        return JSONResponse({"settled": "release"})

    async def bury(self, claim: str, body: Body | None) -> Response:
        await self._holding.bury(claim, **_values(BURY, body))
        return JSONResponse({"settled": "bury"})

    async def extend(self, claim: str, body: Body | None) -> Response:
        seconds = _values(EXTEND, body)["lease"]
        await self._holding.extend(claim, seconds)
        return JSONResponse({"lease": seconds})

    async def save(self, claim: str, body: Body | None) -> Response:
        await self._holding.save(claim, _values(SAVE, body)["state"])
        return JSONResponse({"saved": True})

    async def progress(self, claim: str, body: Body | None) -> Response:
        await self._holding.progress(claim, **_values(PROGRESS, body))
        return JSONResponse({"reported": True})

    # -- figures ---------------------------------------------------------------------------------------------------

    async def statistics(self) -> Response:
        statistics = await self._cluster.statistics()
        health, shards = self._cluster.health(), self._cluster.shards
        return JSONResponse(
            {
                "namespace": self._cluster.namespace,
                "epoch": health.epoch,
                "writable": takes_pushes(self._cluster),
                "warnings": [*health.warnings],
                "servers": {name: server.place for name, server in health.servers.items()},
                "shards": {name: SHARD.tell(each) for name, each in shards.items()},
                "queues": {name: FIGURES.tell(each) for name, each in statistics.items()},
            }
        )

    async def consumers(self) -> Response:
        found = await self._cluster.consumers()
        return JSONResponse({"consumers": {owner: CONSUMER.tell(each) for owner, each in found.items()}})

    async def quiet(self, body: Body | None) -> Response:
        return await _quieted(self._cluster.quiet, body)

    async def unquiet(self, body: Body | None) -> Response:
        return await _quieted(self._cluster.unquiet, body)

    async def queue_statistics(self, queue: str) -> Response:
        return JSONResponse(FIGURES.tell(await self._queues[queue].statistics()))

    async def backlog(self, queue: str) -> Response:
        return JSONResponse(BACKLOG.tell(await self._queues[queue].backlog()))

    # -- manage ----------------------------------------------------------------------------------------------------

    async def pause(self, queue: str, body: Body | None) -> Response:
        await self._queues[queue].pause(**(body.given() if body else {}))
        return JSONResponse({"paused": True})

    async def resume(self, queue: str) -> Response:
        await self._queues[queue].resume()
        return JSONResponse({"paused": False})

    async def find(self, queue: str, **wanted: Any) -> Response:
        return Response(found(await self._queues[queue].find_page(**wanted)), media_type="application/json")

    async def history(self, queue: str, limit: int) -> Response:
        items = await self._queues[queue].history(limit)
        kept = (await self._queues[queue].statistics()).history
        return JSONResponse({"kept": kept, "items": [ENDED.tell(item) for item in items]})

    async def groups(self, queue: str, limit: int) -> Response:
        return JSONResponse(GROUPS_FOUND.tell(await self._queues[queue].groups(limit)))

    async def figures(self, queue: str, since: float, step: float | None) -> Response:
        told = await self._queues[queue].figures(since, step)
        return JSONResponse({"figures": [WORK_FIGURES.tell(each) for each in told]})

    async def settings(self, queue: str) -> Response:
        return JSONResponse(STORED.tell(await self._queues[queue].settings()))

    async def change_settings(self, queue: str, body: Body) -> Response:
        return JSONResponse(STORED.tell(await change_settings(self._queues[queue], named_in(body.given()))))

    async def get(self, queue: str, id: str) -> Response:
        item = await self._queues[queue].get(id)
        if item is None:
            raise NoSuchItem
        return Response(stored(item), media_type="application/json")

    async def result(self, request: Request, queue: str, id: str, timeout: float) -> Response:
        waiting = self._queues.with_results(queue).result(id, timeout=timeout)
        return Response(told(await self._wait(request, waiting)), media_type="application/json")

    async def cancel(self, queue: str, id: str) -> Response:
        found = await self._queues[queue].cancel(id)
        if not found:
            raise NoSuchItem
        return JSONResponse({"outcome": found.value})

    async def dead_letters(self, queue: str, count: int) -> Response:
        letters = await self._queues[queue].dead_letters(count)
        return Response(f'{{"items": [{", ".join(map(stored, letters))}]}}', media_type="application/json")

    async def edit(self, queue: str, id: str, body: Payload) -> Response:
        wanted = {"by": BY_HTTP, **body.given()}
        redriven = await self._queues[queue].edit(id, body.payload(), **wanted)
        if not redriven and await self._queues[queue].get(id) is None:
            raise NoSuchItem
        return JSONResponse({"redriven": redriven})

    async def redrive(self, queue: str, body: Body | None) -> Response:
        wanted = body.given() if body else {}
        redriven = await self._queues[queue].redrive(**wanted)
        return JSONResponse({"redriven": redriven, **await self._missing(queue, redriven, **wanted)})

    async def advance(self, queue: str, body: Body | None) -> Response:
        wanted = body.given() if body else {}
        if not wanted:
            raise NoneNamed
        advanced = await self._queues[queue].advance(**wanted)
        return JSONResponse({"advanced": advanced, **await self._missing(queue, advanced, **wanted)})

    async def _missing(
        self, queue: str, changed: int, ids: Sequence[str] | None = None, **others: Any
    ) -> dict[str, list[str]]:
        """Return which of the ids that were named the queue does not have, for a reply."""
        return {} if ids is None else {"missing": await find_missing(self._queues[queue], ids, changed)}


def _values(operation: Operation, body: Body | None) -> dict[str, Any]:
    """Return all parameters of a call, given or not."""
    return {**operation.defaults, **(body.given() if body else {})}


async def _quieted(act: Callable[..., Awaitable[Quieted]], body: Body | None) -> Response:
    """Make consumers quiet, or let them claim again; reply what they said."""
    given = body.given() if body else {}
    owners, host = given.get("owners", ()), given.get("host")
    quieted = await act(*owners, host=host)
    say(name_chosen(owners, host))
    return JSONResponse(QUIETED.tell(quieted))


def _hand_over(held: Held, seconds: float) -> str:
    """Write a claim as JSON, and forget its item: the client has it, and the claim may be held for long."""
    shown = claimed(held.token, held.claim, seconds)
    held.claim.item = b""
    return shown


def _kept(wanted: dict[str, Any]) -> Kept:
    """Return the result that an ack leaves.  Raises ``CodecError``, ``PayloadTooLarge``."""
    result, ttl_ms = wanted["result"], round(wanted["ttl"] * 1000)
    try:
        return Kept(b"" if result is None else check_result(JSON.encode(result)), ttl_ms)
    except PayloadTooLarge:
        raise
    except ValueError as error:
        raise CodecError(f"the result is not JSON: {error}; the item was not acked") from error


async def _hung_up(request: Request) -> None:
    """Return when the client has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _outcome(outcome: Receipt | ZkrqError) -> dict[str, object]:
    return RECEIPT.tell(outcome) if isinstance(outcome, Receipt) else describe_error(outcome)
