"""Items that are pushed inside a transaction: on real databases and real Redis servers."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

import zkrq
from tests import odd
from tests.harness import drain, in_process, new_namespace, settled, take, until
from tests.levels import Later, later_release
from zkrq import local
from zkrq.base import clock
from zkrq.client.inner import client_of
from zkrq.operations.kinds import Text
from zkrq.operations.operation import Parameter
from zkrq.operations.push import PUSH
from zkrq.outbox import rows
from zkrq.outbox.forwarding import Forwarded
from zkrq.outbox.sqlalchemy import Forwarder, Inbox, define_tables, push, push_async

pytestmark = pytest.mark.anyio


class Some(NamedTuple):
    """A claim as an inbox sees it."""

    queue: str = "jobs"
    id: str = "x"
    token: tuple[int, int] = (1, 1)


SOME = Some()

ROWS = sa.text("SELECT id, queue, leased_by, failure FROM zkrq_outbox ORDER BY created_us, id")


@pytest.fixture
async def cluster(servers: local.Servers) -> AsyncGenerator[zkrq.Cluster, None]:
    async with in_process(servers, new_namespace()) as cluster:
        yield cluster


def left(engine: sa.Engine) -> list[Any]:
    with engine.begin() as connection:
        return list(connection.execute(ROWS).all())


async def test_an_item_is_pushed_if_its_transaction_is_committed_and_only_then(
    engine: sa.Engine, cluster: zkrq.Cluster
) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text("INSERT INTO orders (id) VALUES (1)"))
        push(connection, "jobs", {"order": 1})
    with pytest.raises(ZeroDivisionError), engine.begin() as connection:
        push(connection, "jobs", {"order": 2})
        _ = 1 // 0
    with Session(engine) as session:
        id = push(session, "jobs", {"order": 3}, headers={"by": "session"})
        session.commit()
        push(session, "jobs", {"order": 4})
    assert await Forwarder(engine, cluster).forward() == Forwarded(pushed=2)
    assert await drain(cluster) == [{"order": 1}, {"order": 3}]
    assert left(engine) == []
    assert await cluster.queue("jobs").get(id) is None


async def test_options_and_codecs_reach_the_queue(engine: sa.Engine, cluster: zkrq.Cluster) -> None:
    raw = cluster.queue("raw", codec=zkrq.RAW)
    with engine.begin() as connection:
        push(connection, "jobs", 1, id="own", key="k", priority=7, group="tenant", headers={"a": "b"})
        push(connection, "digests", 1, key="ann", key_window=timedelta(minutes=1))
        push(connection, "digests", 2, key="ann", key_window=60)
        push(connection, "jobs", 2, delay=timedelta(hours=1), ttl=7200)
        push(connection, "raw", b"\x00\xff", codec=zkrq.RAW)
    await Forwarder(engine, cluster, codecs={"raw": zkrq.RAW}).forward()
    jobs = cluster.queue("jobs")
    claim = await take(jobs)
    assert (claim.item, claim.id, claim.key, claim.priority, claim.group) == (1, "own", "k", 7, "tenant")
    assert claim.headers == {"a": "b"}
    await claim.ack()
    (waiting,) = [item async for item in jobs.scan("scheduled")]
    assert waiting.seconds_left is not None
    assert waiting.expires_in is not None
    assert 3500 < waiting.seconds_left <= 3600 < 7100 < waiting.expires_in <= 7200
    assert (await take(raw)).item == b"\x00\xff"
    assert [item.item for item in await cluster.queue("digests").peek()] == [1]


async def test_bad_input_is_refused_where_it_is_written(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        for bad in (
            {"priority": 10},
            {"key": ""},
            {"id": "x" * 200},
            {"ttl": 1, "delay": 2},
            {"group": ""},
            {"key_window": 9},
        ):
            with pytest.raises(zkrq.ConfigError):
                push(connection, "jobs", 1, **bad)  # pyright: ignore[reportArgumentType]
        with pytest.raises(TypeError, match="'countdown': use 'delay'"):
            push(connection, "jobs", 1, countdown=9)  # pyright: ignore[reportCallIssue]
        with pytest.raises(zkrq.ConfigError, match="at is"):
            push(connection, "jobs", 1, at=datetime(9000, 1, 1, tzinfo=UTC))
        with pytest.raises(zkrq.ConfigError):
            push(connection, "no queue\n", 1)
        with pytest.raises(zkrq.ConfigError, match="use another one in an outbox"):
            push(connection, "jobs", 1, id=zkrq.new_id())
        with pytest.raises(zkrq.CodecError):
            push(connection, "jobs", object())
        with pytest.raises(zkrq.PayloadTooLarge):
            push(connection, "jobs", "x" * rows.MAX_PAYLOAD)
    assert left(engine) == []


def test_both_outboxes_take_the_options_of_a_push() -> None:
    assert get_type_hints(rows.OutboxOptions).keys() == PUSH.defaults.keys()


async def test_what_a_row_keeps_are_options_of_a_push(engine: sa.Engine, cluster: zkrq.Cluster) -> None:
    given: dict[str, Any] = {
        "id": "own",
        "key": "k",
        "replace": True,
        "at_latest": 7200,
        "group": "tenant",
        "at": clock.now() + timedelta(hours=1),
        "priority": 7,
        "ttl": 7200,
        "headers": {"a": "b"},
        "task": "welcome",
    }
    assert PUSH.defaults.keys() - given.keys() == {"delay", "key_window"}, "which exclude `at` and `replace`"
    with engine.begin() as connection:
        push(connection, "jobs", 1, **given)
        (options,) = connection.execute(sa.text("SELECT options FROM zkrq_outbox")).scalars()
    arguments = rows.Row("own", "jobs", "", options).arguments()
    assert set(arguments) - {"delay"} == set(given) - {"at"}
    assert await Forwarder(engine, cluster).forward() == Forwarded(pushed=1)


@pytest.mark.parametrize("is_committed", [True, False])
async def test_a_flow_is_begun_by_an_item_of_the_transaction(
    engine: sa.Engine, cluster: zkrq.Cluster, is_committed: bool
) -> None:
    """Its maker dies half-way, and goes on when the item comes again."""
    makers, parts, reports = (cluster.queue(f"{name}-{is_committed}") for name in ("makers", "parts", "reports"))
    with engine.connect() as connection:
        push(connection, makers.name, ["a", "b", "c"])
        connection.commit() if is_committed else connection.rollback()
    assert await Forwarder(engine, cluster).forward() == Forwarded(pushed=int(is_committed))
    for most in (2, 3) if is_committed else ():
        claim = await take(makers)
        flow = await parts.flow(claim.id).begin()
        await flow.then("report", queue=reports, id=f"{claim.id}.report")
        for part in claim.item[:most]:
            await flow.push(part, id=f"{claim.id}.{part}")
        if most == 3:
            await flow.seal()
        await (claim.ack() if most == 3 else claim.nack(delay=0))
    for _ in range(3 if is_committed else 0):
        await (await take(parts)).ack()
    assert [claim.item for claim in await reports.pop_many(9, timeout=5 if is_committed else 0)] == ["report"][
        : int(is_committed)
    ]


async def test_an_option_that_is_added_to_the_table_is_kept(engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    colour = Parameter("colour", Text(10), "Of the item.")
    monkeypatch.setattr(rows, "PUSH", replace(PUSH, parameters=(*PUSH.parameters, colour)))
    with engine.begin() as connection:
        push(connection, "jobs", 1, colour="red")  # pyright: ignore[reportCallIssue]
        (options,) = connection.execute(sa.text("SELECT options FROM zkrq_outbox")).scalars()
        connection.execute(sa.text("DELETE FROM zkrq_outbox"))
    assert rows.Row("x", "jobs", "", options).arguments() == {"id": "x", "colour": "red"}


async def test_a_row_may_wait_for_longer_than_an_id_of_zkrqs_own_is_taken(
    engine: sa.Engine,
) -> None:
    """Its clock, an hour ahead of when the row was written: an id with a time in it would be refused as late."""
    with engine.begin() as connection:
        push(connection, "jobs", "an hour old")
    async with zkrq.testing.cluster() as cluster:
        await cluster.clock.advance(3600)
        assert await Forwarder(engine, cluster).forward() == Forwarded(pushed=1)
        assert await drain(cluster) == ["an hour old"]


async def test_many_forwarders_push_each_row_once(engine: sa.Engine, cluster: zkrq.Cluster) -> None:
    with engine.begin() as connection:
        for number in range(250):
            push(connection, "jobs", number)
    done = await asyncio.gather(*(Forwarder(engine, cluster).forward() for _ in range(4)))
    assert sum(each.pushed for each in done) == 250
    assert sorted(await drain(cluster)) == list(range(250))  # pyright: ignore[reportArgumentType]
    assert left(engine) == []


@pytest.mark.parametrize("statement", ["UPDATE", "DELETE"])
async def test_a_transaction_that_the_database_ends_is_repeated(
    engine: sa.Engine, cluster: zkrq.Cluster, statement: str
) -> None:
    """As it ends one of two that wait for each other: the rows do not stay until their lease is over."""
    with engine.begin() as connection:
        push(connection, "jobs", 1)
        push(connection, "jobs", 2)
    ended = list[str]()

    def end(_: object, __: object, text: str, *more: object) -> None:
        if text.startswith(statement) and len(ended) < 2:
            ended.append(text)
            raise OperationalError(text, {}, RuntimeError("deadlock detected"))

    event.listen(engine, "before_cursor_execute", end)
    assert await Forwarder(engine, cluster).forward() == Forwarded(pushed=2)
    assert len(ended) == 2
    assert left(engine) == []
    assert sorted(await drain(cluster)) == [1, 2]  # pyright: ignore[reportArgumentType]


async def test_a_forwarder_that_dies_after_its_push_costs_no_second_item(
    engine: sa.Engine, cluster: zkrq.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one pushes the row again when the lease is over, whether the item was handled meanwhile or not."""
    with engine.begin() as connection:
        push(connection, "jobs", "handled")
        push(connection, "jobs", "waiting")

    def die(*_: object, **__: object) -> None:
        raise SystemError("dies")

    with monkeypatch.context() as patch:
        patch.setattr("zkrq.outbox.forwarding.settle", die)
        with pytest.raises(SystemError):
            await Forwarder(engine, cluster).forward()
    claim = await take(cluster.queue("jobs"))
    assert claim.item == "handled"
    await claim.ack()
    assert await Forwarder(engine, cluster).forward() == Forwarded(), "they are leased"
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE zkrq_outbox SET leased_until_us = 1"))  # two minutes later
    assert await Forwarder(engine, cluster).forward() == Forwarded(pushed=2)
    assert await drain(cluster) == ["waiting"]


async def test_a_full_queue_leaves_its_rows_and_stops_no_other(engine: sa.Engine, cluster: zkrq.Cluster) -> None:
    cluster.queue("small", max_size=1)
    with engine.begin() as connection:
        for number in range(rows.BATCH + 1):
            push(connection, "small", number)
        push(connection, "jobs", "behind them")
    forwarder = Forwarder(engine, cluster)
    assert await forwarder.forward() == Forwarded(pushed=2, left=rows.BATCH)
    assert await drain(cluster) == ["behind them"]
    assert {row.leased_by for row in left(engine)} == {""}


async def test_a_row_that_no_queue_can_take_is_kept_with_its_reason(
    engine: sa.Engine, cluster: zkrq.Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.queue("tiny", max_payload_bytes=3)
    with engine.begin() as connection:
        id = push(connection, "tiny", "too large")
        late = push(connection, "jobs", "late", ttl=60)
        connection.execute(
            sa.text("UPDATE zkrq_outbox SET options = :o WHERE id = :id"), {"o": '{"ends_us": 1}', "id": late}
        )
        push(connection, "jobs", "fine")
    assert await Forwarder(engine, cluster).forward() == Forwarded(pushed=1, failed=2)
    kept = {row.id: row.failure for row in left(engine)}
    assert "max_payload_bytes is 3" in kept[id]
    assert "ttl ended" in kept[late]
    assert f"item {id} of the outbox cannot be pushed" in caplog.text
    assert await Forwarder(engine, cluster).forward() == Forwarded(), "it is not tried again"


@pytest.mark.parametrize("is_told", [True, False], ids=["its program says so", "an operator says so"])
async def test_a_row_that_contradicts_the_order_of_its_queue_is_kept_with_its_reason(
    engine: sa.Engine, cluster: zkrq.Cluster, is_told: bool
) -> None:
    ordered = zkrq.Groups(ordered=True)
    queue = cluster.queue("orders", groups=ordered if is_told else None)
    await queue.set_groups(ordered)
    with engine.begin() as connection:
        refused = {push(connection, "orders", "late", group="g", delay=60)}
        refused.add(push(connection, "orders", "urgent", group="g", priority=5))
        push(connection, "orders", "fine", group="g")
    assert await Forwarder(engine, cluster).forward() == Forwarded(pushed=1, failed=2)
    assert {row.id for row in left(engine)} == refused
    assert all("would contradict" in row.failure for row in left(engine))
    assert await Forwarder(engine, cluster).forward() == Forwarded(), "they are not tried again"


class Bare:
    """A codec that raises what it likes, as it may."""

    name = "bare"

    def encode(self, item: Any, /) -> bytes:
        return str(item).encode()

    def decode(self, data: bytes, /) -> Any:
        return {"known": 1}[data.decode()]


async def test_a_row_that_raises_an_error_of_its_own_stops_no_other(
    engine: sa.Engine, cluster: zkrq.Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    codec = Bare()
    with engine.begin() as connection:
        unknown = push(connection, "bare", "unknown", codec=codec)
        later = push(connection, "jobs", "of a later release")
        connection.execute(
            sa.text("UPDATE zkrq_outbox SET options = :o WHERE id = :id"), {"o": '{"unheard_of": 1}', "id": later}
        )
        push(connection, "jobs", "fine")
    forwarder = Forwarder(engine, cluster, codecs={"bare": codec})
    assert await forwarder.forward() == Forwarded(pushed=1, failed=1, left=1)
    assert {row.id: row.leased_by for row in left(engine)} == {unknown: "", later: ""}
    assert {row.id: row.failure for row in left(engine)} == {unknown: "KeyError: 'unknown'", later: None}
    assert f"item {unknown} of the outbox cannot be pushed" in caplog.text


class Odd:
    """A codec that raises errors, when it decodes or when it encodes again."""

    name = "odd"

    def __init__(self, errors: list[BaseException], *, decoding: bool) -> None:
        self._errors = errors
        self._decoding = decoding

    def encode(self, item: int, /) -> bytes:
        if not self._decoding and item < len(self._errors):
            raise self._errors[item]
        return str(item).encode()

    def decode(self, data: bytes, /) -> int:
        if self._decoding and (item := int(data)) < len(self._errors):
            raise self._errors[item]
        return int(data)


@pytest.mark.parametrize("decoding", [True, False])
async def test_a_codec_may_raise_anything(
    engine: sa.Engine, cluster: zkrq.Cluster, decoding: bool, unheard: None
) -> None:
    """Each such row is kept with a reason; the others leave."""
    chance = random.Random(47)
    errors = [make(text) for make in odd.CLASSES for text in ("text", "a\0b", "caf\udce9")]
    errors += [odd.some(chance, odd.CLASSES) for _ in range(20)]
    good = [len(errors) + number for number in range(20)]
    with engine.begin() as connection:
        numbers = {push(connection, "odd", number): number for number in (*range(len(errors)), *good)}
    forwarder = Forwarder(engine, cluster, codecs={"odd": Odd(errors, decoding=decoding)})
    assert await forwarder.forward() == Forwarded(pushed=len(good), failed=len(errors))
    assert await forwarder.forward() == Forwarded(), "nothing is tried again"
    kept = {numbers[row.id]: row.failure for row in left(engine)}
    assert sorted(kept) == list(range(len(errors)))
    assert all(kept.values())
    assert await drain(cluster, "odd") == good


@pytest.mark.parametrize("column", ["payload", "options"])
async def test_a_row_that_cannot_be_read_stops_no_other(
    engine: sa.Engine, cluster: zkrq.Cluster, column: str, caplog: pytest.LogCaptureFixture
) -> None:
    values = ["*", "caf\u00e9", "{", "5", "null", '{"ends_us": "soon"}', "[" * 2_000]
    with engine.begin() as connection:
        damaged = {push(connection, "jobs", number): value for number, value in enumerate(values)}
        for id, value in damaged.items():
            connection.execute(sa.text(f"UPDATE zkrq_outbox SET {column} = :v WHERE id = :id"), {"v": value, "id": id})
        push(connection, "jobs", "fine")
    found = await Forwarder(engine, cluster).forward()
    assert (found.pushed, found.failed + found.left) == (1, len(values))
    assert await drain(cluster) == ["fine"]
    assert {row.id: row.leased_by for row in left(engine)} == dict.fromkeys(damaged, "")


async def test_what_waits_for_its_level_is_pushed_when_that_is_raised(
    engine: sa.Engine, servers: local.Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zkrq.outbox.forwarding.RETRY_SECONDS", 0.01)
    plain = zkrq.Queue[Any].push

    async def gated(queue: zkrq.Queue[Any], item: Any, **options: Any) -> zkrq.Receipt:
        client_of(cluster).shards.placement.check(Later.THING)
        return await plain(queue, item, **options)

    monkeypatch.setattr(zkrq.Queue, "push", gated)
    with later_release():
        async with in_process(servers, new_namespace()) as cluster:
            with engine.begin() as connection:
                push(connection, "jobs", "new")
            forwarder = Forwarder(engine, cluster)
            assert await forwarder.forward() == Forwarded(left=1)
            await cluster.upgrade()
            await asyncio.sleep(0.02)
            assert await forwarder.forward() == Forwarded(pushed=1)
            assert await drain(cluster) == ["new"]


async def test_it_forwards_by_itself_while_servers_and_the_database_come_and_go(
    engine: sa.Engine, cluster: zkrq.Cluster, servers: local.Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zkrq.outbox.forwarding.RETRY_SECONDS", 0.1)
    async with Forwarder(engine, cluster) as forwarder:
        with engine.begin() as connection:
            connection.execute(sa.text("ALTER TABLE zkrq_outbox RENAME TO away"))
        forwarder.wake()
        await asyncio.sleep(0.2)
        with engine.begin() as connection:
            connection.execute(sa.text("ALTER TABLE away RENAME TO zkrq_outbox"))
        await servers.redis[0].kill()
        for number in range(20):
            with engine.begin() as connection:
                push(connection, "jobs", number)
            forwarder.wake()
        await until(lambda: left(engine) == [])
    assert await drain(cluster) == list(range(20))


async def test_an_asynchronous_engine_of_sqlite(tmp_path: Path, cluster: zkrq.Cluster) -> None:
    pytest.importorskip("aiosqlite")
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/shop.db")
    metadata = sa.MetaData()
    define_tables(metadata)
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    async with engine.begin() as connection:
        await push_async(connection, "jobs", "from an asynchronous one")
    assert await Forwarder(engine, cluster).forward() == Forwarded(pushed=1)
    await engine.dispose()
    assert await drain(cluster) == ["from an asynchronous one"]


# -- the inbox ---------------------------------------------------------------------------------------------------------


async def test_what_was_committed_is_not_done_again(engine: sa.Engine, cluster: zkrq.Cluster) -> None:
    """A handler commits and dies before its ack; and one is rolled back, and then done."""
    await cluster.queue("jobs").push({"order": 1})

    async def handle(*, fail: bool) -> bool:
        claim = await take(cluster.queue("jobs"))
        try:
            with engine.begin() as connection:
                if not Inbox("mailer", connection).first(claim):
                    await claim.ack()
                    return False
                connection.execute(sa.text("INSERT INTO orders (id, sent) VALUES (:id, 1)"), {"id": claim.attempts})
                if fail:
                    raise ZeroDivisionError
        finally:
            if claim.holds:
                await claim.release()
        return True

    with pytest.raises(ZeroDivisionError):
        await handle(fail=True)
    assert await handle(fail=False)
    assert not await handle(fail=False)
    with engine.begin() as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM orders")).scalar() == 1
        another = Inbox("another", connection)
        assert another.first(SOME)
        assert another.first(SOME, key="a second effect")
        another.forget(timedelta(days=1))
        assert not another.first(SOME)
        another.forget(-1.0)
        assert another.first(SOME)


async def test_an_older_holder_of_a_claim_changes_nothing(engine: sa.Engine, cluster: zkrq.Cluster) -> None:
    queue = cluster.queue("jobs")
    await queue.push("payment", key="account-7")
    first = await take(queue)
    await first.release()
    second = await take(queue)
    assert second.token > first.token
    with engine.begin() as connection:
        inbox = Inbox("payments", connection)
        assert inbox.fence(first)
        assert inbox.fence(second)
        assert inbox.fence(second), "its own retry"
        assert not inbox.fence(first)
        assert inbox.fence(first, key="another effect")
        assert inbox.first(second)
        many = [Some(token=token) for token in ((1, 9), (1, 10), (2, 1), (10, 1))]
        assert all(inbox.fence(claim) for claim in many)
        assert not any(inbox.fence(claim) for claim in many[:-1])
    await second.ack()


async def test_two_handlers_of_one_item_at_the_same_time(postgresql: str, cluster: zkrq.Cluster) -> None:
    """The second one waits for the first transaction, and then fails or finds the item done: never both."""
    engine = sa.create_engine(postgresql)
    metadata = sa.MetaData()
    define_tables(metadata)
    metadata.create_all(engine)
    try:
        with engine.connect() as one:
            assert Inbox("twins", one).first(SOME)

            def other() -> bool:
                with engine.begin() as connection:
                    return Inbox("twins", connection).first(SOME)

            second = asyncio.create_task(asyncio.to_thread(other))
            await settled(lambda: _waits(engine))
            one.commit()
            with pytest.raises(IntegrityError):
                await second
            assert not other()
    finally:
        metadata.drop_all(engine)
        engine.dispose()


async def _waits(engine: sa.Engine) -> bool:
    with engine.connect() as connection:
        return bool(connection.execute(sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")).scalar())


def test_the_statements_for_migrations_make_the_tables_that_sqlalchemy_knows(tmp_path: Path) -> None:
    """Both define the same columns: by SQLite's own report."""
    by_hand = sqlite3.connect(tmp_path / "by_hand.db")
    for statement in rows.CREATE:
        by_hand.execute(statement)
    metadata = sa.MetaData()
    define_tables(metadata)
    engine = sa.create_engine(f"sqlite:///{tmp_path}/by_alchemy.db")
    metadata.create_all(engine)
    with engine.connect() as connection:
        for table in "zkrq_outbox", "zkrq_inbox":
            report = f"PRAGMA table_info({table})"
            assert by_hand.execute(report).fetchall() == [tuple(row) for row in connection.execute(sa.text(report))]
    by_hand.close()
    engine.dispose()
