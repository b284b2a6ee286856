"""Next steps for operators of servers and shards, that need no server of their own: each is done, and leads on."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager, suppress

import pytest

import zkrq
import zkrq.testing
from tests.advice.registry import leads_out_of

pytestmark = pytest.mark.anyio


@pytest.fixture
async def servers() -> AsyncGenerator[zkrq.testing.Servers]:
    async with zkrq.testing.servers(6) as servers:
        yield servers


@pytest.fixture
async def cluster(servers: zkrq.testing.Servers) -> AsyncGenerator[zkrq.testing.TestCluster]:
    async with servers.connect(first=3) as cluster:
        yield cluster


@contextmanager
def refused(text: str) -> Generator[None]:
    """What is done here is refused, with this step."""
    with pytest.raises(zkrq.ZkrqError) as raised:
        yield
    assert text in str(raised.value), raised.value


@leads_out_of(
    "protocol/shards.py", "takes pushes: drain it first", "is the only one that takes pushes: add another one"
)
@leads_out_of("protocol/shards.py", "replace its servers instead")
@leads_out_of("client/cluster.py", "in shard {}: use another name")
async def test_shards(servers: zkrq.testing.Servers, cluster: zkrq.testing.TestCluster) -> None:
    with refused("is the only one that takes pushes: add another one first"):
        await cluster.drain_shard("main")
    await cluster.add_shard("b", servers.urls("redis-4", "redis-5"))
    await cluster.drain_shard("main")
    await cluster.add_shard("main", servers.urls("redis-1", "redis-2", "redis-3"))
    with refused("shard b takes pushes: drain it first"):
        await cluster.remove_shard("b", force=True)
    with refused("there is a server redis-4 in shard b: use another name"):
        await cluster.rename_server("redis-1", "redis-4")
    await cluster.rename_server("redis-1", "redis-7")
    await cluster.drain_shard("b")
    await cluster.remove_shard("b", force=True)
    with refused("shard main stays as long as its namespace: replace its servers instead"):
        await cluster.remove_shard("main", force=True)
    await cluster.add_server("redis://redis-6", name="redis-6")
    await cluster.remove_server("redis-7")
    assert sorted(cluster.view.members) == ["redis-2", "redis-3", "redis-6"]
    await cluster.queue("jobs").push("x")


@leads_out_of("protocol/view.py", "wait until more are in sync, or add another server first", "use another name")
@leads_out_of("repair/roster.py", "remove that first, or use another name")
async def test_servers(servers: zkrq.testing.Servers, cluster: zkrq.testing.TestCluster) -> None:
    await cluster.queue("jobs").push("x")
    servers.kill("redis-3")
    await cluster.queue("jobs").push("x")
    with refused("wait until more are in sync, or add another server first"):
        await cluster.remove_server("redis-2")
    await cluster.add_server("redis://redis-4", name="redis-4")
    await cluster.remove_server("redis-2")
    with refused("there is a server redis-1: use another name"):
        await cluster.rename_server("redis-4", "redis-1")
    await cluster.rename_server("redis-4", "redis-9")
    with refused("redis-3 is the server at redis://redis-3: remove that first, or use another name"):
        await cluster.add_server("redis://redis-5", name="redis-3")
    await cluster.add_server("redis://redis-5", name="redis-5")
    await cluster.remove_server("redis-3")
    await cluster.add_server("redis://redis-6", name="redis-3")
    assert (await cluster.queue("jobs").push("x")).replicas == 4


@leads_out_of("repair/roster.py", "nothing was changed, retry later")
async def test_a_server_that_may_be_the_last_one(
    servers: zkrq.testing.Servers, cluster: zkrq.testing.TestCluster
) -> None:
    await cluster.queue("jobs").push("kept")
    for name in ("redis-2", "redis-3"):
        servers.kill(name)
    with refused("only 0 other(s) answer; nothing was changed, retry later"):
        await cluster.remove_server("redis-1")
    for name in ("redis-2", "redis-3"):
        servers.start(name)
    while len(cluster.view.members) < 3 or cluster.view.epoch == 1:
        with suppress(zkrq.ZkrqError):
            await cluster.queue("other").push("x")
        await cluster.clock.advance(1)
    await cluster.remove_server("redis-1")
    assert (await cluster.queue("jobs").size()).ready == 1


@leads_out_of("client/cluster.py", "recover one after the other")
@leads_out_of("shards.md", "`zkrq servers recover --shard b redis-5 redis-6`")
@leads_out_of("operations.md", "If one never comes back: `zkrq servers recover --shard")
async def test_two_shards_are_recovered(servers: zkrq.testing.Servers, cluster: zkrq.testing.TestCluster) -> None:
    """One of each never comes back."""
    await cluster.add_shard("b", servers.urls("redis-4", "redis-5", "redis-6"))
    for name in servers.names:
        servers.kill(name)
    for name in ("redis-1", "redis-2", "redis-4", "redis-5"):
        servers.start(name)
    with refused("these servers belong to several shards: recover one after the other"):
        await cluster.recover(["redis-1", "redis-2", "redis-4", "redis-5"])
    await cluster.recover(["redis-1", "redis-2"])
    await cluster.recover(["redis-4", "redis-5"])
    for number in range(20):
        await cluster.queue(f"queue-{number}").push("x", id="a")
