"""What a client says about lost redundancy: how many servers are in sync, which is not, and what one failure does."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta

import pytest

import zkrq.testing
from tests.every import every
from tests.harness import until
from tests.unit.views import view_of
from zkrq.client.health import ServerHealth, lost_redundancy, place_of
from zkrq.coordination.coordinator import Versioned
from zkrq.protocol.steps import TooFewMembers
from zkrq.protocol.view import Life, ServerId, View
from zkrq.replication.causes import Causes
from zkrq.replication.runner import translate

NOW = datetime(2026, 11, 23, 16, 0, tzinfo=UTC)
SINCE = datetime(2026, 11, 23, 15, 48, tzinfo=UTC)
R1, R2, R3 = map(ServerId, ("redis-1", "redis-2", "redis-3"))


def view(*members: ServerId, needed: int = 2, learners: tuple[ServerId, ...] = ()) -> View:
    def lives(ids: tuple[ServerId, ...]) -> dict[ServerId, Life]:
        return {id: Life(f"run of {id}", "generation") for id in ids}

    urls = {id: f"redis://{id}" for id in (R1, R2, R3)}
    return View(7, lives(members), lives(learners), {}, urls, needed, by="")


def told(view: View, *, shard: str = "", **known: object) -> list[str]:
    servers = {str(id): ServerHealth(place_of(id, view), connected=True) for id in view.servers}
    servers["redis-1"] = servers["redis-1"]._replace(**known)  # type: ignore[arg-type]
    return lost_redundancy(view, servers, NOW, shard)


def test_redundancy_that_is_whole_is_not_mentioned() -> None:
    assert told(view(R1, R2, R3)) == []


@every(
    ("needed", "next"),
    [
        (3, "pushes wait until 3 are"),
        (2, "one more failure stops pushes"),
        (1, "2 more failures stop pushes"),
    ],
)
def test_the_next_failure_is_told(needed: int, next: str) -> None:
    expected = f"2 of 3 servers in sync; redis-1 out since 15:48 UTC; {next}"
    assert told(view(R2, R3, needed=needed), out_since=SINCE) == [expected]


def test_only_what_is_known_is_told() -> None:
    """Of a server that has not been in sync yet there is no time; after half a day the hour alone would mislead."""
    (unknown,) = told(view(R2, R3))
    assert "; redis-1 out; " in unknown
    (yesterday,) = told(view(R2, R3), out_since=SINCE - timedelta(days=1))
    assert "redis-1 out since 2026-11-22 15:48 UTC" in yesterday
    (learner,) = told(view(R2, R3, learners=(R1,)), out_since=SINCE)
    assert "redis-1 being caught up, out since 15:48 UTC" in learner
    (learner,) = told(view(R2, R3, learners=(R1,)))
    assert "redis-1 being caught up; " in learner


def test_a_known_reason_and_the_shard_are_told() -> None:
    reason = "maxmemory-policy is 'allkeys-lru'"
    state, why = told(view(R2, R3), out_since=SINCE, reason=reason, shard="b")
    assert state.startswith("shard b: 2 of 3 servers in sync")
    assert why == "shard b: redis-1 is not brought back: maxmemory-policy is 'allkeys-lru'"


@pytest.mark.anyio
async def test_a_client_warns_of_lost_redundancy_and_then_of_what_stops_pushes() -> None:
    start = datetime(2026, 11, 23, 15, 48, tzinfo=UTC)
    async with zkrq.testing.cluster(start=start) as cluster:
        queue = cluster.queue("jobs")
        await queue.push(1)
        assert cluster.health().warnings == ()
        cluster.servers.kill("redis-1")
        await queue.push(2)
        health = cluster.health()
        expected = "2 of 3 servers in sync; redis-1 out since 15:48 UTC; one more failure stops pushes"
        assert (health.ok, health.trouble, health.warnings[0]) == (True, (), expected)
        assert health.servers["redis-1"].out_since is not None
        await until(lambda: any("refused" in text for text in cluster.health().warnings))
        async with cluster.servers.connect() as late:
            assert late.health().warnings[0] == expected
        cluster.servers.kill("redis-2")
        with pytest.raises((zkrq.NotEnoughReplicas, zkrq.OutcomeUnknown)):
            await queue.push(3)
        health = cluster.health()
        assert (health.ok, health.warnings) == (False, ())
        assert health.trouble[0].startswith("1 of 3 servers in sync; redis-1 out since 15:48 UTC, redis-2 out since ")
        assert health.trouble[0].endswith("; pushes wait until 2 are")
        for name in ("redis-1", "redis-2"):
            cluster.servers.start(name)
        await until(lambda: cluster.health().ok and not cluster.health().warnings)
        assert cluster.health().servers["redis-1"].out_since is None


@pytest.mark.anyio
async def test_the_error_after_a_power_cut_names_the_command_that_ends_it() -> None:
    """Two of three servers are back: a running client names the command, in its errors and its health."""
    async with zkrq.testing.cluster() as cluster:
        queue = cluster.queue("jobs")
        await queue.push(1)
        for name in cluster.servers.names:
            cluster.servers.kill(name)
        await until(lambda: any("refused" in text for text in cluster.health().trouble))
        for name in ("redis-1", "redis-2"):
            cluster.servers.start(name)
        command = "`zkrq servers recover redis-1 redis-2`"
        await until(lambda: any(text.endswith(command) for text in cluster.health().trouble))
        assert not cluster.health().ok
        calls = [asyncio.create_task(call) for call in (queue.push(2), queue.pause())]
        await cluster.clock.advance(20)
        for error in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(error, zkrq.Unavailable | zkrq.OutcomeUnknown)
            assert re.search("redis-3.*" + command, str(error))
        cluster.servers.start("redis-3")
        await until(lambda: cluster.health().ok)
        assert cluster.health().trouble == ()


@pytest.mark.anyio
async def test_the_command_names_the_shard() -> None:
    async with zkrq.testing.servers(4) as own, own.connect(first=2) as cluster:
        await cluster.add_shard("b", own.urls("redis-3", "redis-4"))
        for name in ("redis-3", "redis-4"):
            own.kill(name)
        await until(lambda: any("redis-3" in text for text in cluster.health().trouble))
        own.start("redis-3")
        command = "`zkrq servers recover --shard b redis-3`"
        await until(lambda: any(text.endswith(command) for text in cluster.health().trouble))


@pytest.mark.anyio
async def test_the_cause_of_an_eviction_is_known_with_it() -> None:
    """Before this client, or another one, has tried to bring the server back."""
    known: list[str | None] = []

    def note(event: zkrq.Event) -> None:
        if isinstance(event, zkrq.ServerEvicted):
            known.append(cluster.health().servers[event.server].reason)

    async with zkrq.testing.cluster(on_event=note) as cluster:
        await cluster.queue("jobs").push(1)
        cluster.servers.kill("redis-2")
        cluster.servers.start("redis-2")
        cluster.servers._find("redis-2").redis.maxmemory_policy = "allkeys-lru"  # pyright: ignore[reportPrivateUsage]
        await cluster.queue("jobs").push(2)
    assert known == ["maxmemory-policy is 'allkeys-lru', must be 'noeviction': Redis would drop items"]


@pytest.mark.parametrize(
    ("members", "learners", "needed", "shard", "step"),
    [
        ("abcde", "", 6, "", "`zkrq servers add URL`, then retry"),
        ("abcd", "", 5, "", "bring back e; or `zkrq servers add URL`; then retry"),
        ("abc", "", 4, "", "bring back d or e; or `zkrq servers add URL`; then retry"),
        ("abc", "", 5, "b", "bring back d and e; or `zkrq servers add URL --shard b`; then retry"),
        ("ab", "", 4, "", "bring back 2 of these: c, d, e; or `zkrq servers add URL`; then retry"),
        ("ab", "c", 3, "", "c will be in sync soon; retry"),
        ("abc", "d", 5, "", "bring back e; or `zkrq servers add URL`; then retry"),
        ("ab", "c", 4, "", "bring back d and e; or `zkrq servers add URL`; then retry"),
    ],
)
def test_where_servers_are_missing_the_next_step_names_them(
    members: str, learners: str, needed: int, shard: str, step: str
) -> None:
    """Of those that the view has, whatever this client knows of them."""
    causes = Causes(shard=shard)
    causes.outside[ServerId("e")] = "why"
    error = translate(TooFewMembers(view_of(*members, learners=learners, min_replicas=needed)), causes)
    in_sync = f"{len(members)} server(s) in sync, min_replicas is {needed}"
    assert isinstance(error, zkrq.NotEnoughReplicas)
    assert str(error) == f"{in_sync}; e is not brought back: why; {step}"


@pytest.mark.anyio
async def test_a_known_cause_is_named_instead_of_only_retry_later() -> None:
    """A server that evicts keys is not brought back: the errors of pushes say so, to this client and to new ones."""
    async with zkrq.testing.cluster(min_replicas=3) as cluster:
        queue = cluster.queue("jobs")
        await queue.push(1)
        cluster.servers.kill("redis-2")
        with pytest.raises((zkrq.NotEnoughReplicas, zkrq.OutcomeUnknown)):
            await queue.push(2)
        cluster.servers.start("redis-2")
        cluster.servers._find("redis-2").redis.maxmemory_policy = "allkeys-lru"  # pyright: ignore[reportPrivateUsage]
        cause = "redis-2 is not brought back: maxmemory-policy is 'allkeys-lru', must be 'noeviction'"
        await until(lambda: any(text.startswith(cause) for text in cluster.health().trouble))
        async with cluster.servers.connect() as late:
            assert any(text.startswith(cause) for text in late.health().trouble)
            for client in (cluster, late):
                with pytest.raises(zkrq.NotEnoughReplicas, match=cause) as caught:
                    await client.queue("jobs").push(3)
                assert caught.value.causes[0].startswith(cause)
                assert str(caught.value).startswith("2 server(s) in sync, min_replicas is 3; redis-2")


@pytest.mark.anyio
async def test_a_shard_map_that_cannot_be_read_is_reported_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look tries again while ZooKeeper is away, for hours perhaps."""

    async def fail(register: str) -> Versioned:
        raise zkrq.Unavailable("ZooKeeper does not answer")

    async with zkrq.testing.cluster() as cluster:
        shards = cluster._client.shards  # pyright: ignore[reportPrivateUsage]
        for outages in (1, 2):
            with monkeypatch.context() as away:
                away.setattr(cluster._client.coordinator, "read", fail)  # pyright: ignore[reportPrivateUsage]
                for _ in range(3):
                    await shards.open_missing()
            assert caplog.text.count("the shard map could not be read") == outages
            await shards.open_missing()
