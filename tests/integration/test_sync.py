"""``zkrq.sync`` on real servers: queues, claims and pushes, from many threads."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import warnings
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

import zkrq
from tests import odd
from tests.harness import HANG
from tests.integration.blocking import take, until
from zkrq import sync
from zkrq.consuming.claims import Verb
from zkrq.sync.portal import Opened, Portal
from zkrq.sync.queue import TAKEN_AT_ONCE


@pytest.fixture
def cluster(connect: Callable[..., sync.Cluster]) -> Generator[sync.Cluster]:
    with connect() as opened:
        yield opened


@pytest.fixture
def queue(cluster: sync.Cluster) -> sync.Queue[Any]:
    return cluster.queue("jobs", retry=zkrq.Retry(backoff=zkrq.constant(0)))


# -- queues and claims -------------------------------------------------------------------------------------------------


def test_an_item_is_pushed_and_acked(cluster: sync.Cluster, queue: sync.Queue[Any]) -> None:
    receipt = queue.push({"to": "ann"}, key="welcome:ann", priority=3)
    assert receipt.replicas == 3
    assert queue.push({"to": "ann"}, key="welcome:ann").duplicate
    assert cluster.queues() == ["jobs"]
    with take(queue) as claim:
        assert (claim.id, claim.item, claim.key) == (receipt.id, {"to": "ann"}, "welcome:ann")
        assert (claim.priority, claim.attempts, claim.failures) == (3, 1, 0)
        assert claim.holds
        assert not claim.lost
        assert claim.deadline > claim.pushed_at
        assert queue.held == 1
        assert cluster.consumers()[claim.owner].claims == {"jobs": 1}
    assert claim.settled is Verb.ACK
    assert not any(queue.size())
    assert queue.pop_one(timeout=0) is None
    assert queue.pop_many(3, timeout=0) == []


def test_a_flow_ends_and_what_follows_it_comes(cluster: sync.Cluster, queue: sync.Queue[Any]) -> None:
    with queue.flow("import") as flow:
        assert flow.push("a").new
        assert len(flow.push_many(item for item in "bc")) == 2
        assert flow.then("report", queue=queue).new
        with pytest.raises(zkrq.ConfigError, match="no queue of this cluster"):
            flow.push("d", queue="jobs")  # pyright: ignore[reportArgumentType]
    for _ in range(3):
        claim = take(queue)
        assert claim.flow
        assert (claim.flow.name, claim.flow.queue) == ("import", "jobs")
        assert claim.flow.status().state is zkrq.FlowState.RUNNING
        claim.ack()
    assert flow.result(timeout=HANG).state is zkrq.FlowState.DONE
    assert take(queue).item == "report"
    with pytest.raises(ZeroDivisionError), queue.flow() as another:
        raise ZeroDivisionError
    assert another.status().state is zkrq.FlowState.CANCELLED


@pytest.mark.parametrize(
    ("error", "raised", "left"),
    [
        (ValueError("bad"), ValueError, (1, 0)),
        (KeyboardInterrupt(), KeyboardInterrupt, (1, 0)),
        (zkrq.RetryLater(0), None, (1, 0)),
        (zkrq.Snooze(0), None, (1, 0)),
        (zkrq.Reject("bad address"), None, (0, 1)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_in_the_body_settles_the_claim(
    queue: sync.Queue[Any], error: BaseException, raised: type[BaseException] | None, left: tuple[int, int]
) -> None:
    queue.push(1)
    if raised is None:
        with take(queue):
            raise error
    else:
        with pytest.raises(raised), take(queue):
            raise error
    until(lambda: (queue.size().ready, queue.size().dead) == left)
    if left == (1, 0):
        is_uncounted = raised is KeyboardInterrupt or isinstance(error, zkrq.Snooze)
        assert take(queue).attempts == (1 if is_uncounted else 2)


def test_a_claim_is_settled_by_its_calls(queue: sync.Queue[Any]) -> None:
    queue.push_many(["ack", "nack", "release", "later", "bury"])
    for claim in queue.pop_many(5, timeout=HANG):
        claim.extend(60)
        match claim.item:
            case "ack":
                claim.ack()
            case "nack":
                claim.nack(3600, "not today")
            case "release":
                claim.release()
            case "later":
                claim.release(3600)
            case _:
                claim.bury("bad")
    assert queue.size() == (1, 2, 0, 1)
    assert [letter.item for letter in queue.dead_letters()] == ["bury"]
    scheduled = queue.peek(state="scheduled")
    assert {item.item: (item.attempts, item.failures) for item in scheduled} == {"nack": (1, 1), "later": (0, 0)}


def test_many_are_acked_together(queue: sync.Queue[Any]) -> None:
    queue.push_many(range(3))
    claims = queue.pop_many(3, timeout=HANG)
    assert queue.cancel(claims[1].id) is zkrq.Cancellation.SIGNALLED
    until(lambda: bool(claims[1].lost))
    assert queue.ack_many(claims) == [claims[1]]


def test_batches_are_settled_together(queue: sync.Queue[Any]) -> None:
    queue.push_many(range(7))
    batches = queue.pop_batches(3, wait=False)
    with next(batches) as batch:
        assert (batch.items, batch[0].item, len(batch[1:])) == ([0, 1, 2], 0, 2)
        batch[1].nack(60)
    with pytest.raises(zkrq.ClaimLost), next(batches) as batch:
        assert queue.cancel(batch[2].id) is zkrq.Cancellation.SIGNALLED
        until(lambda: batch.lost == [batch[2]])
    with next(batches):
        raise zkrq.RetryLater(60)
    assert list(batches) == []
    assert queue.size() == (0, 2, 0, 0)


def test_a_lost_claim_is_reported_where_the_body_ends(queue: sync.Queue[Any]) -> None:
    queue.push(1)
    claim = take(queue)
    with pytest.raises(zkrq.ClaimLost), claim:
        assert queue.cancel(claim.id) is zkrq.Cancellation.SIGNALLED
        until(lambda: claim.lost != "")
    assert not claim.holds


def test_a_loop_ends_by_its_limit_and_hands_back_what_it_has_claimed_ahead(queue: sync.Queue[Any]) -> None:
    queue.push_many(range(10))
    for claim in queue.pop(limit=4, prefetch=3):
        claim.ack()
    for claim in queue.pop(prefetch=5):
        claim.ack()
        break
    until(lambda: queue.size() == (5, 0, 0, 0))
    for claim in queue.pop(wait=False):
        claim.ack()
    assert not any(queue.size())


def test_a_dropped_claim_of_a_loop_comes_again(cluster: sync.Cluster) -> None:
    queue = cluster.queue("short", claim_timeout=0.2)
    queue.push(1)
    attempts: list[int] = []
    for claim in queue.pop(limit=2):  # the loop's next wait is longer than the claim
        attempts.append(claim.attempts)
        del claim
    first, second = attempts
    assert first < second


# -- administration ----------------------------------------------------------------------------------------------------


def test_a_queue_is_administered(cluster: sync.Cluster, queue: sync.Queue[Any]) -> None:
    ids = [receipt.id for receipt in queue.push_many(["a", "b", "c", "d"])]
    assert [item.item for item in queue.peek(2)] == ["a", "b"]
    found = queue.get(ids[2])
    assert found is not None
    assert found.item == "c"
    assert {item.item for item in queue.scan()} == {"a", "b", "c", "d"}
    assert queue.cancel(ids[0]) is zkrq.Cancellation.REMOVED
    queue.pause()
    assert queue.statistics().paused
    assert queue.pop_one(timeout=0) is None
    queue.resume()
    for claim in queue.pop_many(2, timeout=HANG):
        claim.bury("bad")
    assert queue.redrive(ids[1:2]) == 1
    assert queue.discard() == 1
    assert cluster.statistics()["jobs"].sizes == (2, 0, 0, 0)
    assert queue.clear() == 2
    assert cluster.health().ok
    assert len(cluster.view.members) == 3


# -- push_many ---------------------------------------------------------------------------------------------------------


def test_schedules_are_stored(cluster: sync.Cluster, queue: sync.Queue[Any]) -> None:
    schedules = cluster.schedules()
    added = schedules.add(queue, "nightly", 3600, {"kind": "daily"}, priority=2)
    assert schedules.list() == [added] == [schedules.get("jobs", "nightly")]
    assert schedules.change(queue, "nightly", when=60).when == 60
    assert schedules.pause(queue, "nightly").paused
    assert not schedules.resume("jobs", "nightly").paused
    schedules.remove(queue, "nightly")
    assert schedules.get(queue, "nightly") is None


def test_anything_that_is_raised_is_one_failure_and_ends_no_loop(cluster: sync.Cluster) -> None:
    """Also where it is raised on the event loop of the cluster, by a codec."""

    class Exits:
        name = "exits"

        def encode(self, item: Any, /) -> bytes:
            return b"x"

        def decode(self, data: bytes, /) -> Any:
            raise SystemExit(2)

    queue = cluster.queue("odd", retry=zkrq.Retry(max_attempts=1))
    errors = [make("text") for make in odd.CLASSES if make is not GeneratorExit]
    queue.push_many(range(len(errors)))
    for error in errors:
        with contextlib.suppress(BaseException):
            (claim,) = queue.pop_many(1)
            with claim:
                raise error
    assert queue.size() == (0, 0, 0, len(errors))
    unreadable = cluster.queue("unreadable", codec=Exits())
    unreadable.push("x")
    assert unreadable.pop_many(1, timeout=1) == []
    assert (unreadable.dead_letters()[0].reason or "").startswith("cannot be decoded as exits: SystemExit")


@pytest.mark.parametrize("items", [{"to": "ann"}, "abc"])
def test_one_item_in_place_of_many_is_refused(queue: sync.Queue[Any], items: Any) -> None:
    with pytest.raises(zkrq.ConfigError, match="piece by piece"):
        queue.push_many(items)
    assert queue.size().ready == 0


def test_a_generator_runs_in_the_calling_thread(queue: sync.Queue[Any]) -> None:
    threads = set[int]()

    def items() -> Iterator[int]:
        for number in range(1_200):
            threads.add(threading.get_ident())
            yield number

    receipts = queue.push_many(items(), priority=1)
    assert threads == {threading.get_ident()}
    assert len(receipts) == len({receipt.id for receipt in receipts}) == 1_200
    assert receipts[-1] == receipts[1_199]
    assert queue.size().ready == 1_200
    with pytest.raises(IndexError):
        receipts[1_200]


@pytest.mark.parametrize("bad_at", [0, 30, 700])
def test_a_generator_ends_at_a_bad_item(queue: sync.Queue[Any], bad_at: int) -> None:
    taken = iter([*range(bad_at), {1, 2}, *range(5_000)])
    with pytest.raises(zkrq.CodecError) as raised:
        queue.push_many(iter(taken))
    outcomes = raised.value.outcomes
    assert outcomes is not None
    assert len(outcomes) == bad_at
    assert outcomes.errors == []
    assert queue.size().ready == bad_at
    assert next(taken, None) is not None


def test_what_a_generator_yields_before_it_fails_is_pushed(queue: sync.Queue[Any]) -> None:
    def items() -> Iterator[int]:
        yield from range(600)
        raise LookupError("no more rows")

    with pytest.raises(LookupError):
        queue.push_many(items())
    assert queue.size().ready == 600


def test_an_ordered_queue_takes_no_more_of_a_generator_than_its_order_allows(cluster: sync.Cluster) -> None:
    queue = cluster.queue("in-order", groups=zkrq.Groups(ordered=True), max_size=TAKEN_AT_ONCE - 1)
    with pytest.raises(zkrq.QueueFull) as raised:
        queue.push_many(iter(range(2 * TAKEN_AT_ONCE)))
    assert raised.value.outcomes is not None
    assert len(raised.value.outcomes) == TAKEN_AT_ONCE
    assert queue.clear() == TAKEN_AT_ONCE - 1


def test_what_became_of_a_generator_is_told_though_another_thread_closes_the_cluster(
    connect: Callable[..., sync.Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = Portal.call

    def call_and_close(portal: Portal, act: Callable[..., Any]) -> object:
        try:
            return call(portal, act)
        except zkrq.QueueFull:
            portal.close()
            raise

    with connect() as cluster:
        queue = cluster.queue("small", max_size=TAKEN_AT_ONCE + 1)
        monkeypatch.setattr(Portal, "call", call_and_close)
        with pytest.raises(zkrq.QueueFull) as raised:
            queue.push_many(iter(range(2 * TAKEN_AT_ONCE)))
    assert raised.value.outcomes is not None
    assert len(raised.value.outcomes) == 2 * TAKEN_AT_ONCE


def test_items_that_a_full_queue_refuses_are_in_the_outcomes(cluster: sync.Cluster) -> None:
    queue = cluster.queue("small", max_size=700)
    with pytest.raises(zkrq.QueueFull) as raised:
        queue.push_many(iter(range(1_600)))
    outcomes = raised.value.outcomes
    assert outcomes is not None
    assert len(outcomes) == 1_600
    assert len(outcomes.errors) == 900
    assert isinstance(outcomes.outcome(-1), zkrq.QueueFull)
    assert queue.size().ready == 700


# -- threads -----------------------------------------------------------------------------------------------------------


def portals() -> set[threading.Thread]:
    """Threads with an event loop for a cluster; other tests may have some."""
    return {thread for thread in threading.enumerate() if "portal" in thread.name}


def test_threads_share_a_cluster_that_the_first_one_opens(connect: Callable[..., sync.Cluster]) -> None:
    before = portals()
    cluster = connect()
    queue = cluster.queue("jobs")
    assert "not open" in repr(cluster)

    def produce(thread: int) -> None:
        for number in range(20):
            queue.push(thread * 20 + number)

    def consume(_: int) -> list[int]:
        done: list[int] = []
        while claim := queue.pop_one(timeout=0):
            with claim:
                done.append(claim.item)
        return done

    try:
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(produce, range(16)))
            assert queue.size().ready == 320
            done = sorted(item for items in pool.map(consume, range(16)) for item in items)
        assert done == list(range(320))
        assert len(portals() - before) == 1
    finally:
        cluster.close()


def test_closing_ends_what_other_threads_wait_for(connect: Callable[..., sync.Cluster]) -> None:
    with ThreadPoolExecutor(2) as pool, connect() as cluster:
        queue = cluster.queue("jobs")
        queue.push(1)
        claim = take(queue)
        waiting = [pool.submit(queue.pop_one), pool.submit(lambda: list(queue.pop()))]
        until(lambda: all(future.running() for future in waiting))
        cluster.close()
        with pytest.raises(zkrq.Closed):
            waiting[0].result(HANG)
        with suppress(zkrq.Closed):  # if it had not begun
            assert waiting[1].result(HANG) == []  # the loop ends, as the asynchronous one does
    cluster.close()
    for call in (queue.size, claim.ack, lambda: claim.holds, cluster.queues, lambda: queue.push(2), queue.pop):
        with pytest.raises(zkrq.Closed):
            call()


def test_a_second_thread_that_closes_waits_until_it_is_closed() -> None:
    closing, may_end, begins, ended = (threading.Event() for _ in range(4))

    @asynccontextmanager
    async def make() -> AsyncGenerator[Any]:
        yield None
        closing.set()
        await asyncio.to_thread(may_end.wait, HANG)
        ended.set()

    opened = Opened(make)

    def close_too() -> bool:
        begins.set()
        opened.close()
        return ended.is_set()

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(opened.close)
        assert closing.wait(HANG)
        second = pool.submit(close_too)
        assert begins.wait(HANG)
        time.sleep(0.05)  # if it does not wait, it has returned by now
        may_end.set()
        assert second.result(HANG)
        first.result(HANG)
    opened.close()


def test_threads_that_wait_for_the_opening_get_its_error(connect: Callable[..., sync.Cluster]) -> None:
    cluster = connect(found=False)
    queue = cluster.queue("jobs")
    with ThreadPoolExecutor(4) as pool:
        errors = [future.exception(HANG) for future in [pool.submit(queue.push, 1) for _ in range(4)]]
    assert all(isinstance(error, zkrq.ConfigError) for error in errors), errors
    with connect():
        pass  # founds it
    assert queue.push(1).replicas == 3  # the next call tries again
    cluster.close()


def test_a_call_on_the_clusters_own_loop_is_refused(connect: Callable[..., sync.Cluster]) -> None:
    errors: list[Exception] = []

    def on_event(event: zkrq.Event) -> None:
        try:
            queue.size()
        except Exception as error:
            errors.append(error)

    cluster = connect(on_event=on_event)
    queue = cluster.queue("jobs")
    with cluster:  # founding the namespace is an event
        until(lambda: errors != [])
    assert {type(error) for error in errors} == {zkrq.WrongLoop}


# -- errors ------------------------------------------------------------------------------------------------------------


def test_errors_are_those_of_the_asynchronous_calls(cluster: sync.Cluster, queue: sync.Queue[Any]) -> None:
    with pytest.raises(zkrq.CodecError):
        queue.push({1, 2})
    with pytest.raises(zkrq.ConfigError):
        queue.push(1, priority=10)
    with pytest.raises(zkrq.ConfigError):
        queue.pop(limit=-1)
    with pytest.raises(zkrq.ConfigError):
        cluster.queue("no such name")
    with pytest.raises(zkrq.ConfigError):
        cluster.queue("jobs", claim_timeout=0)
    queue.size()
    with pytest.raises(zkrq.ConfigError):
        cluster.queue("jobs", max_size=3).size()
    with pytest.raises(zkrq.PayloadTooLarge):
        cluster.queue("narrow", max_payload_bytes=3).push("long")
    with pytest.raises(zkrq.ConfigError):
        sync.connect([], "127.0.0.1:1")


def test_a_queue_that_was_declared_needs_no_options(cluster: sync.Cluster) -> None:
    declared = cluster.queue("declared", codec=zkrq.RAW, max_size=7)
    declared.push(b"one")
    same = cluster.queue("declared")
    same.push(b"two")
    assert take(same).item == b"one"
    with pytest.raises(zkrq.ConfigError, match="max_size=7, not 8"):
        cluster.queue("declared", max_size=8).size()


def test_embedded_servers_end_with_the_cluster() -> None:
    with sync.embedded(2) as cluster:
        assert cluster.queue("jobs").push(1).replicas == 2
    with pytest.raises(zkrq.Closed):
        cluster.health()


def test_a_blocking_call_on_an_event_loop_is_warned_of(queue: sync.Queue[Any]) -> None:
    async def block() -> None:
        queue.push(1)

    with pytest.warns(RuntimeWarning, match=r"asyncio\.to_thread") as caught:
        asyncio.run(block())
    assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(asyncio.to_thread(queue.push, 2))
        queue.push(3)
