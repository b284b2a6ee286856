"""The calls of the HTTP API: push, claim, settle, extend, figures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

from fastapi import APIRouter, Depends, Query, Request, Response, Security
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from starlette.requests import ClientDisconnect

from zkrq.base.errors import ClaimLost, Closed, OutcomeUnknown, Receipt, ZkrqError
from zkrq.client.changing import as_value, change_settings
from zkrq.serve.bodies import (
    LETTERS_MAX,
    WAIT_MAX,
    Ack,
    Acked,
    AckedMany,
    AckMany,
    Bury,
    Cancelled,
    ChangeSettings,
    Claimed,
    ClaimItems,
    ClaimToken,
    ConsumerFigures,
    Consumers,
    DeadLetters,
    Ended,
    ErrorQuery,
    Extend,
    Extended,
    FoundItems,
    GroupFigures,
    GroupLimit,
    GroupQuery,
    HeaderQuery,
    History,
    ItemId,
    ItemResult,
    KeyQuery,
    LargestGroups,
    Nack,
    NamespaceStatistics,
    PageLimit,
    PageWanted,
    Paused,
    Problem,
    Push,
    Pushed,
    PushedMany,
    PushMany,
    QueueName,
    QueueStatistics,
    Redrive,
    Redriven,
    Reported,
    ReportProgress,
    Settled,
    ShardFigures,
    StateQuery,
    StoredItem,
    StoredSettings,
    claimed,
    figures,
    found,
    page_wanted,
    pushed,
    stored,
    told,
)
from zkrq.serve.holding import Kept
from zkrq.serve.problems import Busy, NoSuchItem, describe_error, headers_of, kind_of
from zkrq.serve.watching import takes_pushes

if TYPE_CHECKING:
    from zkrq.client.cluster import Cluster
    from zkrq.consuming.claims import Claim
    from zkrq.serve.holding import Held, Holding
    from zkrq.serve.queues import Queues

T = TypeVar("T")

WAITING_MAX = 500
"""Requests that wait for items, or for results, at one time."""

STOPPING = "this server is stopping: ask another one, or retry later"

PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": text}
    for status, text in {
        400: "The request is wrong. Nothing happened.",
        401: "The token is missing or wrong. Nothing happened.",
        403: "Not from this page, or not on this server. Nothing happened.",
        413: "The item, or the whole body, is too large. Nothing happened.",
        415: "The body is not announced as JSON. Nothing happened.",
        421: "The server does not answer by that name. Nothing happened.",
        429: "The queue is full. Nothing happened; retry later.",
        500: "An error inside the server; its log has it. It may have happened.",
        503: "Nothing happened; retry later.",
        504: "It may have happened: repeat the request; a push under the same id.",
        "4XX": "The request is wrong in another way. Nothing happened.",
    }.items()
}

MISSING: dict[int | str, dict[str, Any]] = {
    404: {"model": Problem, "description": "The queue has no item with this id: it was never pushed, or it is done."}
}

GONE: dict[int | str, dict[str, Any]] = {
    410: {"model": Problem, "description": "The claim does not hold any more: stop working on the item."}
}


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
        """Return the calls, with their paths.  The schema names the token in any case; the guard asks for it."""
        token = HTTPBearer(
            scheme_name="token", description="A token of `--token-file`, if there is one.", auto_error=False
        )
        router = APIRouter(
            prefix="/v1",
            responses=PROBLEMS,
            dependencies=[Security(token)],
            generate_unique_id_function=lambda route: route.name,
        )
        queue, claim = "/queues/{queue}", "/claims/{claim}"
        router.post(f"{queue}/push", response_model=Pushed, tags=["push"])(self.push)
        router.post(f"{queue}/push-many", response_model=PushedMany, tags=["push"])(self.push_many)
        router.post(f"{queue}/claim", response_model=Claimed, tags=["claim"])(self.claim)
        router.post("/claims/ack-many", response_model=AckedMany, tags=["claim"])(self.ack_many)
        router.post(f"{claim}/ack", response_model=Acked, tags=["claim"], responses=GONE)(self.ack)
        for call in (self.nack, self.release, self.bury):
            path = f"{claim}/{call.__name__}"
            router.post(path, response_model=Settled, tags=["claim"], responses=GONE)(call)
        router.post(f"{claim}/progress", response_model=Reported, tags=["claim"], responses=GONE)(self.progress)
        router.post(f"{claim}/extend", response_model=Extended, tags=["claim"], responses=GONE)(self.extend)
        router.get("/queues", response_model=NamespaceStatistics, tags=["figures"])(self.statistics)
        router.get("/consumers", response_model=Consumers, tags=["figures"])(self.consumers)
        router.get(queue, response_model=QueueStatistics, tags=["figures"])(self.queue_statistics)
        for change in (self.pause, self.resume):
            router.post(f"{queue}/{change.__name__}", response_model=Paused, tags=["manage"])(change)
        router.get(f"{queue}/items", response_model=FoundItems, tags=["manage"])(self.find)
        router.get(f"{queue}/history", response_model=History, tags=["manage"])(self.history)
        router.get(f"{queue}/groups", response_model=LargestGroups, tags=["manage"])(self.groups)
        router.get(f"{queue}/settings", response_model=StoredSettings, tags=["manage"])(self.settings)
        router.patch(f"{queue}/settings", response_model=StoredSettings, tags=["manage"])(self.change_settings)
        item = f"{queue}/items/{{id:path}}"
        # Before the item itself, whose id may contain slashes.
        router.get(f"{item}/result", response_model=ItemResult, tags=["results"])(self.result)
        router.get(item, response_model=StoredItem, tags=["manage"], responses=MISSING)(self.get)
        router.post(f"{item}/cancel", response_model=Cancelled, tags=["manage"], responses=MISSING)(self.cancel)
        router.get(f"{queue}/dead", response_model=DeadLetters, tags=["manage"])(self.dead_letters)
        router.post(f"{queue}/dead/redrive", response_model=Redriven, tags=["manage"])(self.redrive)
        return router

    # -- push ------------------------------------------------------------------------------------------------------

    async def push(self, queue: QueueName, body: Push) -> Response:
        """Push one item. After a reply with status 200 it is on every server that is in sync."""
        return JSONResponse(pushed(await self._push(queue, body, body.payload())))

    async def push_many(self, queue: QueueName, body: PushMany) -> Response:
        """Push many items. If some cannot be pushed, the others still are.

        Then the reply is that of the worst error, 504 if any outcome is unknown, and its `outcomes` tell of each item.
        """
        puts = [(item, item.payload()) for item in body.items]  # finds a bad item before the first one is pushed
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

    async def _push(self, queue: str, push: Push, payload: bytes) -> Receipt:
        return await self._queues[queue].push(
            payload,
            id=push.id,
            key=push.key,
            replace=push.replace,
            key_window=push.key_window,
            delay=push.delay or None,
            priority=push.priority,
            ttl=push.ttl,
            headers=push.headers,
            group=push.group,
        )

    # -- claim -----------------------------------------------------------------------------------------------------

    async def claim(self, request: Request, queue: QueueName, body: ClaimItems | None = None) -> Response:
        """Claim items that are ready; wait for one if there is none. A client that hangs up leaves them in the queue.

        A claim lives as long as its lease. Settle it before that by `ack`, `nack`, `release` or `bury`, or `extend`
        it; otherwise the item goes back, which counts as a failed delivery.
        """
        wanted = body or ClaimItems.model_validate({})
        held = await self._claim(request, queue, wanted)
        shown = [claimed(each.token, each.claim, wanted.lease) for each in held]
        for each in held:
            each.claim.item = b""  # the client has it, and the claim may be held for long
        return Response(f'{{"claims": [{", ".join(shown)}]}}', media_type="application/json")

    async def _claim(self, request: Request, name: str, wanted: ClaimItems) -> Sequence[Held]:
        self._holding.check_room()
        popping = self._queues[name].pop_many(min(wanted.count, self._holding.room), timeout=wanted.wait)
        return self._holding.hold(name, await self._wait(request, popping, self._hand_back), wanted.lease)

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

    async def ack(self, claim: ClaimToken, body: Ack | None = None) -> Response:
        """Remove the item: the work is done. With `next`, claim one more of its queue, if one is ready.

        With `result`, callers that wait for the item get it: when the reply comes, every server in sync has it.

        If the reply is lost, the item that was claimed goes back when its lease has passed.
        """
        found_result = body and body.kept()
        kept = Kept(*found_result) if found_result else None
        queue = self._holding.queue_of(claim) if body and body.next else None
        if body is None or queue is None or self._holding.room < 1 or self._stopping.is_set():
            await self._holding.ack(claim, kept)
            answer = '{"settled":"ack","next":null}' if body and body.next else '{"settled":"ack"}'
            return Response(answer, media_type="application/json")
        # Begun first, so that the request for the item leaves together with the ack: one decision of the servers.
        popping = asyncio.create_task(self._queues[queue].pop_many(1, timeout=0))
        try:
            await self._holding.ack(claim, kept)
            await asyncio.wait([popping])
        except BaseException:
            self._holding.hand_back(popping)
            raise
        # The ack is done, whatever became of the request.
        found = [] if isinstance(popping.exception(), ZkrqError) else popping.result()
        following = "null"
        for held in self._holding.hold(queue, found, body.lease):
            following = claimed(held.token, held.claim, body.lease)
            held.claim.item = b""
        return Response(f'{{"settled": "ack", "next": {following}}}', media_type="application/json")

    async def ack_many(self, body: AckMany) -> AckedMany:
        """Remove the items of several claims. Those that are lost are named; the others are done.

        With any other status some may be done: repeat the request, unless it says that nothing happened.
        """
        tokens = list(dict.fromkeys(body.claims))
        outcomes = await asyncio.gather(*map(self._holding.ack, tokens), return_exceptions=True)
        errors = [each for each in outcomes if isinstance(each, BaseException) and not isinstance(each, ClaimLost)]
        if bug := next((error for error in errors if not isinstance(error, ZkrqError)), None):
            raise bug
        if errors:
            is_certain = len(errors) == len(tokens) and not any(isinstance(each, OutcomeUnknown) for each in errors)
            raise errors[0] if is_certain else OutcomeUnknown("some claims may have been acked: repeat the request")
        lost = [token for token, outcome in zip(tokens, outcomes, strict=True) if outcome is not None]
        return AckedMany(acked=len(tokens) - len(lost), lost=lost)

    async def nack(self, claim: ClaimToken, body: Nack | None = None) -> Settled:
        """Deliver the item again, because the work failed; after too many failures it becomes a dead letter."""
        wish = body or Nack(delay=None, reason=None)
        await self._holding.nack(claim, wish.delay, wish.reason)
        return Settled(settled="nack")

    async def release(self, claim: ClaimToken) -> Settled:
        """Return the item to its place in the queue. This counts neither as a failure nor as a delivery."""
        await self._holding.release(claim)
        return Settled(settled="release")

    async def bury(self, claim: ClaimToken, body: Bury | None = None) -> Settled:
        """Move the item to the dead letters: it can never be done."""
        await self._holding.bury(claim, (body or Bury(reason="rejected")).reason)
        return Settled(settled="bury")

    async def extend(self, claim: ClaimToken, body: Extend | None = None) -> Extended:
        """Hold the item for longer. A reply with status 200 says that the claim still holds."""
        seconds = (body or Extend.model_validate({})).lease
        await self._holding.extend(claim, seconds)
        return Extended(lease=seconds)

    async def progress(self, claim: ClaimToken, body: ReportProgress | None = None) -> Reported:
        """Report how far the work is, for those who look at the item. At most one report a second is kept."""
        report = body or ReportProgress.model_validate({})
        await self._holding.progress(claim, report.fraction, report.text)
        return Reported(reported=True)

    # -- figures ---------------------------------------------------------------------------------------------------

    async def statistics(self) -> NamespaceStatistics:
        """Count the items of every queue, and name the servers."""
        statistics = await self._cluster.statistics()
        health, shards = self._cluster.health(), self._cluster.shards
        return NamespaceStatistics(
            namespace=self._cluster.namespace,
            epoch=health.epoch,
            writable=takes_pushes(self._cluster),
            warnings=[*health.warnings],
            servers={name: server.place for name, server in health.servers.items()},
            shards={name: ShardFigures(state=each.state, away=each.away) for name, each in shards.items()},
            queues={name: figures(each) for name, each in statistics.items()},
        )

    async def consumers(self) -> Consumers:
        """List the live consumers, and count what they hold; reads all claims."""
        found = await self._cluster.consumers()
        return Consumers(consumers={owner: ConsumerFigures(**each._asdict()) for owner, each in found.items()})

    async def queue_statistics(self, queue: QueueName) -> QueueStatistics:
        """Count the items of one queue. One that never had an item has none."""
        return figures(await self._queues[queue].statistics())

    # -- manage ----------------------------------------------------------------------------------------------------

    async def pause(self, queue: QueueName) -> Paused:
        """Stop new claims from the queue, in every process, until `resume`. Pushes continue."""
        await self._queues[queue].pause()
        return Paused(paused=True)

    async def resume(self, queue: QueueName) -> Paused:
        """Allow claims again."""
        await self._queues[queue].resume()
        return Paused(paused=False)

    async def find(
        self,
        queue: QueueName,
        wanted: Annotated[PageWanted, Depends(page_wanted)],
        state: StateQuery = None,
        key: KeyQuery = None,
        header: HeaderQuery = None,
        error: ErrorQuery = None,
        group: GroupQuery = None,
    ) -> Response:
        """List items, or find some: those of which all that is given holds, in no particular order.

        One request reads a part of the queue, and may find nothing: go on with `next` until it is null. An item that
        meets the conditions during all these requests is found at least once.
        """
        name, _, value = (header or "").partition("=")
        pair = None if header is None else (name, value)
        page = await self._queues[queue].find_page(
            key=key, header=pair, error=error, group=group, state=state, limit=wanted.limit, after=wanted.after
        )
        return Response(found(page), media_type="application/json")

    async def history(self, queue: QueueName, limit: PageLimit = 100) -> History:
        """List the items that have ended last: done, dead, cancelled or expired. Only as many as the queue keeps."""
        items = await self._queues[queue].history(limit)
        kept = (await self._queues[queue].statistics()).history
        return History(kept=kept, items=[Ended(**asdict(item)) for item in items])

    async def groups(self, queue: QueueName, limit: GroupLimit = 10) -> LargestGroups:
        """List the groups with the most items, the largest first."""
        largest = await self._queues[queue].groups(limit)
        groups = [GroupFigures(**group._asdict()) for group in largest.groups]
        return LargestGroups(groups=groups, looked=largest.looked, whole=largest.whole)

    async def settings(self, queue: QueueName) -> StoredSettings:
        """Read what the queue promises: its limits, order, history, size, dead letters and results."""
        return StoredSettings.model_validate(as_value(await self._queues[queue].settings()))

    async def change_settings(self, queue: QueueName, body: ChangeSettings) -> StoredSettings:
        """Change what is named, and leave the rest; null takes away. The settings hold for all programs.

        An order takes away the `concurrency` of groups. After a reply with status 503 or 504 some of what was named
        may have changed: repeat the request.
        """
        return StoredSettings.model_validate(as_value(await change_settings(self._queues[queue], body.named())))

    async def get(self, queue: QueueName, id: ItemId) -> Response:
        """Look up one item in any state."""
        item = await self._queues[queue].get(id)
        if item is None:
            raise NoSuchItem
        return Response(stored(item), media_type="application/json")

    async def result(
        self,
        request: Request,
        queue: QueueName,
        id: ItemId,
        timeout: Annotated[
            float, Query(ge=0, le=WAIT_MAX, description="Seconds to wait until the item has ended.")
        ] = 0.0,
    ) -> Response:
        """Wait until an item has ended, and tell what became of it; `done` comes with what its handler returned.

        After `timeout` the reply tells what the item is then: `queued` or `claimed`; ask again. What was told of an
        item that is done, cancelled or expired never changes.
        """
        waiting = self._queues.with_results(queue).result(id, timeout=timeout)
        return Response(told(await self._wait(request, waiting)), media_type="application/json")

    async def cancel(self, queue: QueueName, id: ItemId) -> Cancelled:
        """Remove one item in any state. The holder of a claimed item is notified, and its claim is lost."""
        found = await self._queues[queue].cancel(id)
        if not found:
            raise NoSuchItem
        return Cancelled.model_validate({"outcome": found.value})

    async def dead_letters(
        self, queue: QueueName, count: Annotated[int, Query(ge=1, le=LETTERS_MAX, description="Letters at most.")] = 50
    ) -> Response:
        """List the oldest dead letters, with their reasons; fewer if they are large."""
        letters = await self._queues[queue].dead_letters(count)
        return Response(f'{{"items": [{", ".join(map(stored, letters))}]}}', media_type="application/json")

    async def redrive(self, queue: QueueName, body: Redrive | None = None) -> Redriven:
        """Queue dead letters again, with no attempts: those named, those of a group, or all."""
        wanted = body or Redrive.model_validate({})
        return Redriven(redriven=await self._queues[queue].redrive(wanted.ids, group=wanted.group))


async def _hung_up(request: Request) -> None:
    """Return when the client has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _outcome(outcome: Receipt | ZkrqError) -> dict[str, object]:
    return pushed(outcome) if isinstance(outcome, Receipt) else describe_error(outcome)
