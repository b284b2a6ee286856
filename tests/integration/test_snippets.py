"""The snippets of README and docs do what they say: those that are no whole programs, each with what it presumes.

Programs run in test_documentation.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Iterable
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import orm

import zkrq
import zkrq.testing
from tests.behaviour.helpers import is_empty
from tests.harness import HANG, new_namespace, settled, take, until
from tests.integration import pool_jobs
from tests.integration.snippet_runs import ELSEWHERE, HERE, on, runs
from tests.snippets import blocks, execute, snippet
from zkrq import local
from zkrq.outbox.sqlalchemy import Inbox, define_tables

pytestmark = pytest.mark.anyio


def test_each_is_run_somewhere() -> None:
    for path in Path(__file__).parent.glob("test_snippets*.py"):
        import_module(f"tests.integration.{path.stem}")
    known = [*HERE, *ELSEWHERE]
    for block in blocks():
        if not block.runnable:
            named = [each for each in known if each[0] == block.page and block.opening.startswith(each[1])]
            assert len(named) == 1, f"{block.page}, line {block.line}: {named or 'not run'}"


@runs("shards.md", "await cluster.add_shard(")
async def test_a_shard_is_added(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    async with zkrq.testing.servers(6) as own, own.connect(first=3) as cluster:
        emails = cluster.queue("emails")
        await execute(code.replace("10.0.0.", "redis-"), cluster=cluster, emails=emails)
        assert capsys.readouterr().out == "b open is here\nmain open is here\n"
        assert await emails.size() == (1, 0, 0, 0)


@runs("shards.md", "await cluster.drain_shard(")
async def test_a_shard_is_drained_and_removed(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    async with zkrq.testing.servers(2) as own, own.connect(first=1) as cluster:
        await cluster.add_shard("b", own.urls("redis-2"))
        emails = cluster.queue("emails")
        while not await cluster.shard_sizes("b"):
            await emails.push("x")

        async def sleep(seconds: float) -> None:
            await emails.clear()
            await cluster.clock.advance(400)

        await execute(code, cluster=cluster, asyncio=SimpleNamespace(sleep=sleep))
        assert "'emails': Sizes(ready=" in capsys.readouterr().out
        assert list(cluster.shards) == ["main"]


@pytest.fixture
async def cluster() -> AsyncGenerator[zkrq.testing.TestCluster]:
    async with zkrq.testing.cluster() as cluster:
        yield cluster


@runs("groups.md", 'emails = cluster.queue("emails", groups=zkrq.Groups(concurrency')
async def test_each_group_is_limited(cluster: zkrq.Cluster, code: str) -> None:
    await execute(code, cluster=cluster, zkrq=zkrq)
    told = await cluster.queue("emails").statistics()
    assert (told.group_limits, told.groups) == (zkrq.Groups(), 1)


@runs("groups.md", 'emails = cluster.queue("emails", groups=zkrq.Groups(rate')
async def test_each_group_has_a_rate(cluster: zkrq.Cluster, code: str) -> None:
    await execute(code, cluster=cluster, zkrq=zkrq)
    told = await cluster.queue("emails").statistics()
    assert (told.group_limits, told.groups) == (zkrq.Groups(ordered=True, rate=(50, 1.0)), 1)


@runs("groups.md", "digests = zkrq.Limits(")
async def test_a_single_group_is_limited(cluster: zkrq.Cluster, code: str) -> None:
    await execute(code, cluster=cluster, zkrq=zkrq)
    told = await cluster.queue("emails").statistics()
    assert told.group_limits == zkrq.Groups(5, named={"large": zkrq.Limits(50)})
    largest = (await cluster.queue("emails").groups()).groups
    assert {group.name for group in largest} == {"digest", "welcome"}


@runs("groups.md", 'emails = cluster.queue("emails", limits')
async def test_a_queue_is_limited(cluster: zkrq.Cluster, code: str, capsys: pytest.CaptureFixture[str]) -> None:
    await execute(code, cluster=cluster, zkrq=zkrq)
    assert capsys.readouterr().out == "100 at once, 50 in 1 s\n"
    assert await cluster.queue("emails").limits() == zkrq.Limits()


async def handled(worker: zkrq.Worker, seen: list[Any], count: int) -> None:
    """Run a worker until its handler has seen so many items."""
    async with worker:
        await until(lambda: len(seen) >= count)


# -- outbox, encryption ------------------------------------------------------------------------------------------------


@runs("outbox.md", "from zkrq.outbox.sqlalchemy")
async def test_an_item_of_a_transaction_of_sqlalchemy(
    code: str, cluster: zkrq.testing.TestCluster, tmp_path: Path
) -> None:
    engine, metadata = sa.create_engine(f"sqlite:///{tmp_path}/shop.db"), sa.MetaData()
    sa.Table("orders", metadata, sa.Column("id", sa.Integer, primary_key=True), sa.Column("sent", sa.Integer))
    order = orm.registry(metadata=metadata).map_imperatively(Order, metadata.tables["orders"]).class_()
    emails = cluster.queue("emails")
    seen: list[Any] = []

    async def work(_: object) -> None:
        claim = await take(emails)
        handling = snippet("outbox.md", "async with claim:")
        await execute(handling, claim=claim, engine=engine, Inbox=names["Inbox"], text=sa.text)
        seen.append((claim.item, claim.key))

    names = {"metadata": metadata, "engine": engine, "Session": orm.Session, "order": order, "cluster": cluster}
    importing, defining, writing, forwarding = code.split("\n\n")
    names = await execute(f"{importing}\n{defining}", **names)
    metadata.create_all(engine)
    names = await execute(writing, **names)
    await execute(forwarding, **names, worker=SimpleNamespace(run=work))
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT id, sent FROM orders")).all() == [(1, 1)]
    engine.dispose()
    assert seen == [({"order": 1}, "order:1")]


class Order:
    """What a program keeps of an order."""

    id: int


@runs("outbox.md", "async with claim:")
async def test_effects_are_committed_once(code: str, cluster: zkrq.testing.TestCluster, tmp_path: Path) -> None:
    engine, metadata = sa.create_engine(f"sqlite:///{tmp_path}/shop.db"), sa.MetaData()
    define_tables(metadata)
    sa.Table("orders", metadata, sa.Column("id", sa.Integer, primary_key=True), sa.Column("sent", sa.Integer))
    metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(sa.text("INSERT INTO orders VALUES (7, 0)"))
    await cluster.queue("jobs").push({"order": 7})
    await execute(code, claim=await take(cluster.queue("jobs")), engine=engine, Inbox=Inbox, text=sa.text)
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT sent FROM orders")).scalar() == 1
    engine.dispose()


@runs("security.md", 'keys = ["nJx0')
async def test_a_queue_is_encrypted(code: str, cluster: zkrq.testing.TestCluster) -> None:
    keys = repr([zkrq.typed.new_key(), zkrq.typed.new_key()])
    written = code.splitlines()
    names = await execute("\n".join([f"keys = {keys}", *written[1:]]), zkrq=zkrq, cluster=cluster)
    await names["orders"].push("a secret")
    assert (await take(names["orders"])).item == "a secret"


# -- README, guide -----------------------------------------------------------------------------------------------------


@runs("README.md", "async with zkrq.connect(")
async def test_a_client_founds_the_namespace(code: str, servers: local.Servers) -> None:
    seen: list[bool] = []
    code = on(servers, new_namespace(), code).replace("    ...\n", "    seen.append(cluster.health().ok)\n")
    await execute(code, zkrq=zkrq, seen=seen)
    assert seen == [True]


@runs("guide.md", 'emails = cluster.queue("emails", claim_timeout=30')
async def test_the_calls_of_a_queue(code: str, cluster: zkrq.testing.TestCluster) -> None:
    """Paragraph by paragraph: each finds what it is about."""
    using, looking, pausing, dying = code.replace("    ...\n", "    break\n").split("\n\n")
    reports: zkrq.Queue[Any] = cluster.queue("reports")
    await reports.push("a report")
    names = {"zkrq": zkrq, "cluster": cluster, "reports": reports, "datetime": datetime, "UTC": UTC}

    names = await execute(using, **names)
    assert (names["receipt"].duplicate, names["receipt"].done) == (False, False)
    assert [claim.item for claim in (*names["claims"], names["claim"])] == [{"to": "eve@example.org"}, "a report"]
    assert (names["lost"], names["sizes"].scheduled, names["removed"]) == ([], 2, 1)
    emails: zkrq.Queue[Any] = names["emails"]
    assert not any(await emails.size())

    names["receipt"] = await emails.push("for a look")
    names = await execute(looking, **names)
    assert names["item"].item == "for a look"
    assert not any(await emails.size()), "cancelled"

    names = await execute(pausing, **names)
    assert not (await emails.statistics()).paused

    for number in range(2):
        await emails.push(number)
        await (await take(emails)).bury("bad")
    names = await execute(dying, **names)
    assert names["letter"].reason == "bad"
    assert await emails.size() == (1, 0, 0, 0), "one queued again, one removed"


@runs("guide.md", 'await cluster.broadcast("prices"')
async def test_a_message_is_broadcast(code: str, cluster: zkrq.testing.TestCluster) -> None:
    sending, listening = code.split("\n\n")
    heard: list[Any] = []
    code = listening.replace("...", "heard.append(message)")
    listener = asyncio.create_task(execute(code, cluster=cluster, heard=heard))
    while not heard:
        await execute(sending, cluster=cluster)
        await asyncio.sleep(0)
    assert heard[0] == {"changed": ["tea"]}
    listener.cancel()
    await asyncio.wait([listener])


@runs("workers.md", "await emails.work(")
async def test_workers_and_schedules(code: str, cluster: zkrq.testing.TestCluster) -> None:
    emails, reports = cluster.queue("emails"), cluster.queue("reports")
    seen: list[Any] = []

    async def send(item: Any) -> None:
        seen.append(item)

    names = {"zkrq": zkrq, "cluster": cluster, "emails": emails, "reports": reports, "send": send, "render": send}
    one, several, recurring = code.split("\n\n")
    for piece, queues in ((one, (emails,)), (several, (emails, reports))):
        seen.clear()
        for queue in queues:
            await queue.push(queue.name)
        running = asyncio.create_task(execute(piece, **names))
        await until(lambda: len(seen) == len(queues))  # noqa: B023
        running.cancel()
        await asyncio.wait([running], timeout=HANG)
        assert running.cancelled()
        assert {*seen} == {queue.name for queue in queues}
    await execute(recurring.replace("0 7 * * 1-5", "* * * * *"), **names)
    await cluster.clock.advance(60)
    async with asyncio.timeout(HANG):
        pushed = {(await take(emails)).item["to"] for _ in range(2)}
    assert pushed == {"ops@example.org", "all@example.org"}


@runs("workers.md", 'await emails.push({"to": "ann@example.org"}, task="welcome")')
async def test_tasks_by_name(code: str, cluster: zkrq.testing.TestCluster) -> None:
    emails, seen = cluster.queue("emails"), list[Any]()

    async def send_welcome(item: Any) -> None:
        seen.append(("welcome", item["to"]))

    def send_digest(item: Any) -> None:
        seen.append(("digest", item))

    await emails.push(1, task="digest")
    handlers = {"send_welcome": send_welcome, "send_digest": send_digest}
    running = asyncio.create_task(execute(code, zkrq=zkrq, emails=emails, **handlers))
    await until(lambda: len(seen) == 2)
    running.cancel()
    await asyncio.wait([running], timeout=HANG)
    assert {*seen} == {("digest", 1), ("welcome", "ann@example.org")}


@runs("results.md", "async def convert(book")
async def test_progress(code: str, cluster: zkrq.testing.TestCluster, capsys: pytest.CaptureFixture[str]) -> None:
    books, waits = cluster.queue("books"), asyncio.Event()
    names: dict[str, Any] = {"zkrq": zkrq, "books": books, "pages": range(1, 31)}

    async def convert_page(page: int) -> None:
        if page == 13:
            await waits.wait()

    defining, reading = code.split("\n\n")
    handler = (await execute(defining, convert_page=convert_page, **names))["convert"]
    id = (await books.push("a book")).id
    working = asyncio.create_task(books.work(handler))
    await settled(lambda: has_sizes(books, 0, 0, 1, 0))
    await cluster.clock.advance(1)
    await settled(lambda: has_progress(books, id))
    await execute(reading, id=id, **names)
    assert capsys.readouterr().out == "40 %, page 12 of 30\n"
    waits.set()
    working.cancel()
    await asyncio.wait([working])


async def has_progress(queue: zkrq.Queue[Any], id: str) -> bool:
    item = await queue.get(id)
    return bool(item and item.progress and item.progress.fraction == 0.4)


@runs("results.md", 'emails = cluster.queue("emails", history=1000)')
async def test_history(code: str, cluster: zkrq.testing.TestCluster, capsys: pytest.CaptureFixture[str]) -> None:
    emails = cluster.queue("emails", history=1000)
    first, last = [(await emails.push({"to": name})).id for name in ("ann", "bob")]
    owners = list[str]()
    for _ in range(2):
        claim = await take(emails)
        owners.append(claim.owner)
        await cluster.clock.advance(2)
        await claim.ack()
    await execute(code, cluster=cluster)
    told = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [(line[0], line[1]) for line in told] == [(last, "done"), (first, "done")]
    assert all(line[-2:] == [owner, "1"] for line, owner in zip(told, reversed(owners), strict=True))


@runs("workers.md", "schedules = cluster.schedules()")
async def test_schedules_at_run_time(
    code: str, cluster: zkrq.testing.TestCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    emails = cluster.queue("emails")
    report = cluster.every(60, emails, {"to": "ops@example.org"}, name="report")
    await settled(lambda: has_schedules(cluster, 1))
    await execute(code, cluster=cluster, emails=emails)
    assert capsys.readouterr().out.startswith("emails digest every 3600 s 20")
    await until(lambda: "paused" in repr(report))
    await execute('await schedules.resume("emails", "report")', schedules=cluster.schedules())
    await cluster.clock.advance(60)
    assert (await take(emails)).item == {"to": "ops@example.org"}


async def has_schedules(cluster: zkrq.Cluster, count: int) -> bool:
    return len(await cluster.schedules().list()) == count


@runs("guide.md", "async for claim in emails.pop():")
async def test_the_loop_of_a_consumer(code: str, cluster: zkrq.testing.TestCluster) -> None:
    emails, sent = cluster.queue("emails"), list[Any]()
    await emails.push_many(["ann", "bob"])

    async def send(item: Any) -> None:
        sent.append(item)

    running = asyncio.create_task(execute(code, emails=emails, send=send))
    await settled(lambda: is_empty(emails))
    running.cancel()
    await asyncio.wait([running], timeout=HANG)
    assert sent == ["ann", "bob"]


@runs("guide.md", "async for batch in emails.pop_batches(")
async def test_a_batch_with_verdicts(code: str, cluster: zkrq.testing.TestCluster) -> None:
    emails, sent = cluster.queue("emails"), list[list[Any]]()
    await emails.push_many([{"to": "ann"}, {}, {"to": "bob"}])

    async def send_all(items: list[Any]) -> None:
        sent.append(items)

    running = asyncio.create_task(execute(code, emails=emails, send_all=send_all))
    await until(lambda: bool(sent))
    await settled(lambda: has_sizes(emails, 0, 0, 0, 1))
    running.cancel()
    await asyncio.wait([running], timeout=HANG)
    assert sent == [[{"to": "ann"}, {}, {"to": "bob"}]]


async def has_sizes(queue: zkrq.Queue[Any], *sizes: int) -> bool:
    return await queue.size() == sizes


@runs("workers.md", "async def insert(items, batch):")
async def test_a_handler_of_batches(code: str, cluster: zkrq.testing.TestCluster) -> None:
    emails, inserted = cluster.queue("emails"), list[str]()
    receipts = await emails.push_many([{"to": "ann"}, {}, {"to": "bob"}])

    async def insert_many(ids: Iterable[str]) -> None:
        inserted.extend(ids)

    database = SimpleNamespace(insert_many=insert_many)
    known = await execute(code, zkrq=zkrq, emails=emails, database=database)
    async with known["worker"]:
        await settled(lambda: has_sizes(emails, 0, 0, 0, 1))
    assert inserted == [receipts[0].id, receipts[2].id]


@runs("guide.md", "id = zkrq.new_id()")
async def test_a_push_is_repeated_until_it_is_known(code: str, cluster: zkrq.testing.TestCluster) -> None:
    emails, tries = cluster.queue("emails"), 0

    async def push(item: Any, *, id: str) -> None:
        nonlocal tries
        tries += 1
        await emails.push(item, id=id)
        if tries < 3:
            raise zkrq.OutcomeUnknown(ids=(id,))

    async def sleep(seconds: float) -> None: ...

    names = {"emails": SimpleNamespace(push=push), "asyncio": SimpleNamespace(sleep=sleep)}
    await execute(code, zkrq=zkrq, **names)
    assert (tries, await emails.size()) == (3, (1, 0, 0, 0))


@runs("workers.md", "@contextlib.asynccontextmanager")
async def test_a_worker_that_needs_a_pool(code: str, cluster: zkrq.testing.TestCluster) -> None:
    life: list[Any] = []

    @contextlib.asynccontextmanager
    async def connection_pool() -> AsyncGenerator[str]:
        life.append("opened")
        yield "pool"
        life.append("closed")

    def sender(pool: str) -> Callable[[Any], None]:
        return lambda item: life.append((pool, item))

    known = await execute(code, zkrq=zkrq, contextlib=contextlib, connection_pool=connection_pool, Sender=sender)
    await cluster.queue("emails").push("x")
    async with known["worker"](cluster) as worker:
        await handled(worker, life, 2)
    assert life == ["opened", ("pool", "x"), "closed"]


@runs("applications.md", "# queues.py")
async def test_views_and_scripts_without_an_event_loop(
    code: str, servers: local.Servers, founded: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = on(servers, founded, code).replace("timeout=5", "timeout=0")
    known = await execute(code)
    try:
        request = SimpleNamespace(POST={"address": "ann@example.org"})
        await asyncio.to_thread(known["view"], request)
        await asyncio.to_thread(known["script"])
        assert not any(await asyncio.to_thread(known["emails"].size))
    finally:
        await asyncio.to_thread(known["cluster"].close)
    assert capsys.readouterr().out == "sending to ann@example.org\n"


# -- other pages -------------------------------------------------------------------------------------------------------


@runs("migrating.md", "# zkrq: jobs.py")
async def test_a_job_of_arq_as_a_worker(code: str, cluster: zkrq.testing.TestCluster) -> None:
    known = await execute(code, zkrq=zkrq, cluster=cluster)
    assert await cluster.queue("emails").size() == (0, 1, 0, 0)
    async with known["worker"](cluster):
        await cluster.clock.advance(60)
        await settled(lambda: is_empty(cluster.queue("emails")))


@runs("workers.md", "worker = zkrq.Worker(concurrency=8, pool=")
async def test_handlers_in_processes(code: str, cluster: zkrq.testing.TestCluster) -> None:
    images = cluster.queue("images", results=zkrq.Results())
    names = await execute(code, zkrq=zkrq, cluster=cluster, shrink=pool_jobs.echo)
    async with names["worker"]:
        receipt = await images.push("photo")
        assert (await receipt.result(timeout=HANG)).get() == "photo"


@runs("workers.md", "async def ship_order(order, claim):")
async def test_steps_and_saved_states(code: str, cluster: zkrq.testing.TestCluster) -> None:
    calls = list[str]()

    class Page:
        number = 7

    async def charge(order: str) -> str:
        calls.append(order)
        return "receipt"

    async def mail(receipt: str, idempotency_key: str) -> str:
        calls.append(receipt)
        return idempotency_key

    async def insert(page: Page) -> None:
        calls.append(f"page {page.number}")

    def pages(job: str, after: int) -> list[Page]:
        return [] if after == 7 else [Page()]

    known = await execute(code, charge=charge, mail=mail, insert=insert, pages=pages)
    for name in ("ship_order", "import_rows"):
        queue = cluster.queue(name)
        await queue.push("order")
        for _ in range(2):
            claim = await take(queue)
            await known[name](claim.item, claim)
            await claim.nack(0)
    assert calls == ["order", "receipt", "page 7"]


@runs("workers.md", "emails = cluster.queue(")
async def test_retries(code: str, cluster: zkrq.testing.TestCluster) -> None:
    emails: zkrq.Queue[str] = (await execute(code, zkrq=zkrq, cluster=cluster))["emails"]
    await emails.push("x")
    async with zkrq.Worker().add(emails, fails):
        await cluster.clock.advance(3600)
    assert (await emails.size()).dead == 1


async def fails(item: str) -> None:
    raise RuntimeError(item)


@runs("applications.md", "import httpx")
async def test_a_test_of_fastapi(code: str, cluster: zkrq.testing.TestCluster) -> None:
    pytest.importorskip("fastapi")
    app = (await execute(snippet("applications.md", "from contextlib")))["app"]
    await (await execute(code, app=app, pytest=pytest))["test_sign_up"](cluster)


@runs("observability.md", "metrics = zkrq.prometheus.instrument(")
async def test_metrics(code: str, cluster: zkrq.testing.TestCluster) -> None:
    from prometheus_client import REGISTRY

    metrics = (await execute(code, zkrq=zkrq, cluster=cluster))["metrics"]
    try:
        await cluster.queue("emails").push("x")
        assert b'zkrq_pushes_total{cluster="zkrq",outcome="pushed",queue="emails"} 1.0' in await metrics.expose()
    finally:
        REGISTRY.unregister(metrics)


@runs("observability.md", "for each in await queue.figures(")
async def test_figures(code: str, cluster: zkrq.testing.TestCluster, capsys: pytest.CaptureFixture[str]) -> None:
    await (await pushed_and_taken(cluster)).ack()
    await cluster.clock.advance(10)
    await execute(code, queue=cluster.queue("emails"))
    assert sum(int(line.split()[2]) for line in capsys.readouterr().out.splitlines()) == 1


@runs("observability.md", "zkrq.opentelemetry.instrument(")
async def test_traces(code: str, cluster: zkrq.testing.TestCluster) -> None:
    from opentelemetry.sdk.trace import TracerProvider

    provider = TracerProvider()
    await execute(code.replace("(cluster)", "(cluster, provider)"), zkrq=zkrq, cluster=cluster, provider=provider)
    assert {*(await pushed_and_taken(cluster)).headers} == {"traceparent"}


async def pushed_and_taken(cluster: zkrq.Cluster) -> zkrq.Claim[Any]:
    await cluster.queue("emails").push("x")
    return await take(cluster.queue("emails"))


@runs("observability.md", "class Stamp(zkrq.Observer)")
async def test_an_observer(code: str, cluster: zkrq.testing.TestCluster, caplog: pytest.LogCaptureFixture) -> None:
    paged: list[zkrq.Event] = []
    known = await execute(
        code,
        zkrq=zkrq,
        cluster=cluster,
        current_request=lambda: "request-7",
        audit=logging.getLogger("audit"),
        page_the_operator=paged.append,
    )
    assert (await pushed_and_taken(cluster)).headers == {"request": "request-7"}
    with pytest.raises(zkrq.CodecError):
        await cluster.queue("emails").push(object())
    assert [record.name for record in caplog.records if "not pushed into emails" in record.message] == ["audit"]
    cluster.servers.kill("redis-1")
    await cluster.queue("emails").push("y")
    assert [type(event) for event in paged] == [zkrq.ServerEvicted]
    known["stop"]()
    await cluster.queue("later").push("z")
    assert (await take(cluster.queue("later"))).headers == {}


@runs("guide.md", 'receipt = await emails.push({"to": "ann@example.org"}, key="digest:ann"')
async def test_one_of_a_key_in_a_time(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    async with zkrq.testing.cluster() as cluster:
        emails = cluster.queue("emails")
        first = (await execute(code, emails=emails))["receipt"]
        assert first.new
        await (await take(emails)).ack()
        assert (await execute(code, emails=emails))["receipt"].id == first.id
    assert capsys.readouterr().out == f"{first.id} is the last digest, which was sent\n"
