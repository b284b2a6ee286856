"""Checked by pyright in strict mode, never run: users keep their items' types."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict, assert_type

import zkrq


class Email(TypedDict):
    to: str


class EmailCodec:
    name = "email"

    def encode(self, item: Email, /) -> bytes:
        return item["to"].encode()

    def decode(self, data: bytes, /) -> Email:
        return {"to": data.decode()}


async def use(cluster: zkrq.Cluster) -> None:
    emails = cluster.queue("emails", codec=EmailCodec())
    assert_type(emails, zkrq.Queue[Email])
    raw = cluster.queue("raw", codec=zkrq.RAW)
    assert_type(raw, zkrq.Queue[bytes])
    anything = cluster.queue("anything")
    assert_type(anything, zkrq.Queue[Any])
    declared: zkrq.Queue[Email] = cluster.queue("declared")

    receipt = await emails.push({"to": "ann"})
    assert_type(receipt.id, str)
    await emails.push({"to": 1})  # pyright: ignore[reportArgumentType]
    await raw.push("text")  # pyright: ignore[reportArgumentType]
    await emails.push({"to": "ann"}, "id")  # pyright: ignore[reportCallIssue]
    await emails.push({"to": "ann"}, dealy=1)  # pyright: ignore[reportCallIssue]
    await emails.push_many([], countdown=1)  # pyright: ignore[reportCallIssue]

    async for claim in declared.pop():
        assert_type(claim, zkrq.Claim[Email])
        async with claim:
            assert_type(claim.item, Email)
            assert_type(claim.pushed_at, datetime)
            assert_type(await claim.lost, str)
    assert_type(await raw.pop_one(timeout=1), zkrq.Claim[bytes] | None)
    assert_type(await raw.pop_many(3), list[zkrq.Claim[bytes]])
    async for batch in declared.pop_batches(100, within=0.05):
        assert_type(batch, zkrq.Batch[Email])
        async with batch:
            assert_type(batch.items, list[Email])
            assert_type(batch[0], zkrq.Claim[Email])
        assert_type(await batch.ack(), list[zkrq.Claim[Email]])
    sizes = await raw.size()
    assert_type(sizes.ready, int)


async def send(item: Email, claim: zkrq.Claim[Email]) -> None: ...


async def send_all(items: list[Email], batch: zkrq.Batch[Email]) -> None: ...


async def send_numbers(items: list[int]) -> None: ...


def use_a_worker(emails: zkrq.Queue[Email]) -> None:
    worker = zkrq.Worker().add(emails, send).add(emails, send_all, batch=100, within=0.05)
    worker.add(emails, {"welcome": send, "digest": zkrq.Task(send, time_limit=60)}, unknown_after=None, weight=2)
    worker.add(emails, {"welcome": send_numbers})  # pyright: ignore[reportCallIssue, reportArgumentType]
    worker.add(emails, {"welcome": send}, batch=100)  # pyright: ignore[reportCallIssue, reportArgumentType]
    worker.add(emails, send, unknown_after=1)  # pyright: ignore[reportCallIssue, reportArgumentType]
    worker.add(emails, send_all)  # pyright: ignore[reportCallIssue, reportArgumentType]
    worker.add(emails, send_numbers, batch=100)  # pyright: ignore[reportCallIssue, reportArgumentType]
    worker.add(emails, send, within=0.05)  # pyright: ignore[reportCallIssue, reportArgumentType]


def use_in_threads() -> None:
    with zkrq.sync.connect(["redis://a", "redis://b"], "zk", on_event=print) as cluster:
        emails = cluster.queue("emails", codec=EmailCodec())
        assert_type(emails, zkrq.sync.Queue[Email])
        assert_type(cluster.queue("anything"), zkrq.sync.Queue[Any])
        assert_type(emails.push({"to": "ann"}), zkrq.Receipt)
        emails.push({"to": 1})  # pyright: ignore[reportArgumentType]
        for claim in emails.pop():
            with claim:
                assert_type(claim.item, Email)
                assert_type(claim.lost, str)
        for batch in emails.pop_batches(100):
            with batch:
                assert_type(batch.items, list[Email])
                assert_type(batch[0], zkrq.sync.Claim[Email])
        assert_type(emails.pop_one(timeout=1), zkrq.sync.Claim[Email] | None)
        for item in emails.scan():
            assert_type(item, zkrq.Item[Email])
    zkrq.sync.connect(["redis://a"], "zk", nothing=1)  # pyright: ignore[reportCallIssue]
    zkrq.sync.embedded("3")  # pyright: ignore[reportArgumentType]


async def test() -> None:
    async with zkrq.testing.cluster(min_replicas=2, start=datetime.now(UTC), on_event=print) as cluster:
        assert_type(cluster, zkrq.testing.TestCluster)
        await use(cluster)
        await cluster.clock.advance(timedelta(hours=1))
        assert_type(cluster.clock.now(), datetime)
        cluster.servers.kill("redis-1")
        cluster.servers.start("redis-1", wipe=True)
    async with zkrq.testing.servers(2) as servers, servers.connect(description="a") as a, servers.connect() as b:
        assert_type(servers, zkrq.testing.Servers)
        await a.queue("raw", codec=zkrq.RAW).push(b"x")
        b.lose_session()
        await a.add_shard("b", {"redis-2": "redis://redis-2"}, min_replicas=1)
        for shard in a.shards.values():
            assert_type(shard, zkrq.ShardStatus)
            assert_type(shard.view, zkrq.View | None)
        assert_type(await a.shard_sizes("b"), Mapping[str, zkrq.Sizes])
        await a.add_server("redis://a", shard="b")
    zkrq.testing.nothing()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    zkrq.nothing()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


def connected() -> zkrq.Cluster:
    return zkrq.connect(["redis://a", "redis://b"], "zk", on_event=print)
