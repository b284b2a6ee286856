"""Adding, draining and removing a shard while what it takes is away: the operator's client, or ZooKeeper."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

import zkrq
from tests.harness import HANG, take
from zkrq.base import clock
from zkrq.base.settings import Settings
from zkrq.client.inner import client_of
from zkrq.client.resharding import Resharding
from zkrq.client.shards import MAP
from zkrq.coordination.coordinator import Versioned
from zkrq.coordination.memory import MemoryCoordinator
from zkrq.protocol import calls
from zkrq.protocol.records import State
from zkrq.protocol.shards import FIRST, ShardName, ShardState
from zkrq.testing import Servers, servers

pytestmark = pytest.mark.anyio

SERVERS = 2


class Died(Exception):
    """The operator's client is no more."""


def let_die(operator: zkrq.Cluster, at: int, *, written: bool, patch: pytest.MonkeyPatch) -> None:
    """Let a client die at one of its changes of the shard map: before it is written, or afterwards."""
    coordinator = client_of(operator).coordinator
    swap, changes = coordinator.swap, itertools.count()

    async def dying(
        register: str, data: bytes, expected: int, *, given: tuple[str, int] | None = None
    ) -> Versioned | None:
        if register != MAP or next(changes) != at:
            return await swap(register, data, expected, given=given)
        if written:
            await swap(register, data, expected)
        raise Died

    patch.setattr(coordinator, "swap", dying)


@pytest.mark.parametrize("written", [False, True], ids=["before it is written", "after it is written"])
@pytest.mark.parametrize(
    ("verb", "change"), [("add", "joined"), ("add", "opened"), ("drain", "drained"), ("remove", "closed")]
)
async def test_what_an_operator_leaves_in_the_middle_another_one_ends(
    own: Servers, monkeypatch: pytest.MonkeyPatch, verb: str, change: str, written: bool
) -> None:
    """Meanwhile every plain push is accepted, and an id exists once."""
    steps: Mapping[str, Callable[[zkrq.Cluster], Awaitable[None]]] = {
        "add": lambda cluster: cluster.add_shard("b", own.urls("redis-2")),
        "drain": lambda cluster: cluster.drain_shard("b"),
        "remove": lambda cluster: cluster.remove_shard("b", force=True),
    }
    async with own.connect(first=1) as other:
        queue = other.queue("jobs")
        assert (await queue.push("x", id="mine")).new
        ended = list(itertools.takewhile(lambda step: step != verb, steps))
        for step in ended:
            await steps[step](other)
        async with own.connect(first=1) as operator:
            let_die(operator, int(change == "opened"), written=written, patch=monkeypatch)
            with pytest.raises(Died):
                await steps[verb](operator)
        for step in [step for step in steps if step not in ended]:
            before = await queue.size()
            for _ in range(5):
                await queue.push("plain")
            assert not (await queue.push("x", id="mine")).new
            assert (await queue.size()).ready == before.ready + 5
            if step == "remove":
                await queue.clear()
            await steps[step](other)
        assert list(other.shards) == [FIRST]
        assert await queue.push("plain")


async def test_a_shard_is_not_removed_while_it_is_the_home_of_a_flow(own: Servers) -> None:
    """Nothing of it may be there: its members, and what is held for it, are in queues that are at home elsewhere."""
    async with own.connect(first=1) as cluster:
        await cluster.add_shard("b", own.urls("redis-2"))
        shards = client_of(cluster).shards
        homes = {f"q{number}": (await shards.home(f"q{number}")).name for number in range(30)}
        there, here = (next(name for name in homes if homes[name] == shard) for shard in ("b", FIRST))
        elsewhere = cluster.queue(here)
        async with cluster.queue(there).flow() as flow:
            await flow.push("member", queue=elsewhere)
            await flow.then("report", queue=elsewhere)
        await cluster.drain_shard("b")
        with pytest.raises(
            zkrq.ConfigError, match=rf"queue '{there}', of which 1 flow\(s\) have not ended: `zkrq flows`"
        ):
            await cluster.remove_shard("b")
        await (await take(elsewhere)).ack()
        assert (await flow.result(timeout=HANG)).state is zkrq.FlowState.DONE
        assert (await take(elsewhere)).item == "report"
        with pytest.raises(zkrq.ConfigError, match="it has been draining for"):
            await cluster.remove_shard("b")


@pytest.mark.parametrize(("verb", "at"), [("add", 0), ("drain", 0), ("drain", 1), ("remove", 0), ("remove", 1)])
async def test_an_operator_who_was_stalled_leaves_another_shard_of_that_name_alone(
    own: Servers, monkeypatch: pytest.MonkeyPatch, verb: str, at: int
) -> None:
    """Which was entered into the map meanwhile, and has no view yet: opened, it would have every push fail."""
    async with own.connect(first=1) as other, own.connect(first=1) as operator:
        await other.add_shard("b", own.urls("redis-2"))
        if verb != "drain":
            await other.drain_shard("b")
        coordinator = client_of(operator).coordinator
        swap, changes = coordinator.swap, itertools.count()

        async def stalling(
            register: str, data: bytes, expected: int, *, given: tuple[str, int] | None = None
        ) -> Versioned | None:
            if register == MAP and next(changes) == at:
                if verb == "drain" and at == 0:
                    await other.drain_shard("b")
                await other.remove_shard("b", force=True)
                own.kill("redis-2")
                with pytest.raises(zkrq.Unavailable):
                    await other.add_shard("b", own.urls("redis-2"))
            return await swap(register, data, expected, given=given)

        monkeypatch.setattr(coordinator, "swap", stalling)
        steps = {
            "add": lambda: operator.add_shard("b", own.urls("redis-2")),
            "drain": lambda: operator.drain_shard("b"),
            "remove": lambda: operator.remove_shard("b", force=True),
        }
        with pytest.raises(zkrq.ConfigError, match="there is another one of that name now"):
            await steps[verb]()
        assert other.shards["b"].state == "joining"
        assert client_of(operator).shards.map == client_of(other).shards.map
        for _ in range(9):
            assert await operator.queue("jobs").push("x")


async def test_a_removal_that_was_written_but_not_reported(own: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    async with own.connect(first=1) as other:
        await other.add_shard("b", own.urls("redis-2"))
        await other.drain_shard("b")
        async with own.connect(first=1) as operator:
            let_die(operator, 1, written=True, patch=monkeypatch)
            with pytest.raises(Died):
                await operator.remove_shard("b", force=True)
        with pytest.raises(zkrq.ConfigError, match="there is no shard 'b'"):
            await other.remove_shard("b", force=True)
        assert await other.queue("jobs").push("x", id="mine")


@pytest.mark.parametrize("verb", ["add", "drain"])
@pytest.mark.parametrize("is_late", [False, True], ids=["before", "at the same time"])
async def test_a_shard_whose_removal_has_begun_is_not_used_again(
    own: Servers, monkeypatch: pytest.MonkeyPatch, verb: str, is_late: bool
) -> None:
    """Its view has ended, but the map still names it: the removal is repeated, whatever others made of the map."""
    async with own.connect(first=1) as other, own.connect(first=1) as operator:
        await other.add_shard("b", own.urls("redis-2"))
        await other.drain_shard("b")

        async def remove_and_die() -> None:
            let_die(operator, 1, written=False, patch=monkeypatch)
            with pytest.raises(Died):
                await operator.remove_shard("b", force=True)

        steps = {"add": lambda: other.add_shard("b", own.urls("redis-2")), "drain": lambda: other.drain_shard("b")}
        if is_late:
            let_die(operator, 0, written=True, patch=monkeypatch)
            with pytest.raises(Died):
                await operator.remove_shard("b", force=True)
            monkeypatch.undo()
            coordinator = client_of(other).coordinator
            swap, changes = coordinator.swap, itertools.count()

            async def end_and_swap(
                register: str, data: bytes, expected: int, *, given: tuple[str, int] | None = None
            ) -> Versioned | None:
                if register == MAP and next(changes) == 0:
                    let_die(operator, 0, written=False, patch=monkeypatch)
                    with pytest.raises(Died):
                        await operator.remove_shard("b", force=True)
                return await swap(register, data, expected, given=given)

            monkeypatch.setattr(coordinator, "swap", end_and_swap)
            with pytest.raises(zkrq.Unavailable):
                await steps[verb]()
            assert client_of(other).shards.map.shards[ShardName("b")].state is ShardState.JOINING
        else:
            await remove_and_die()
        with pytest.raises(zkrq.ConfigError, match="remove it again, and then add it"):
            await steps[verb]()
        await other.remove_shard("b", force=True)
        assert list(other.shards) == [FIRST]
        for _ in range(9):
            assert await other.queue("jobs").push("x")


async def test_a_removal_ends_a_drain_that_was_left_in_the_middle(
    own: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The map says that the shard drains, and its servers have not heard of it."""
    async with own.connect(first=1) as other:
        await other.add_shard("b", own.urls("redis-2"))
        async with own.connect(first=1) as operator:
            let_die(operator, 0, written=True, patch=monkeypatch)
            with pytest.raises(Died):
                await operator.drain_shard("b")
        with pytest.raises(zkrq.ConfigError, match="it has been draining for 0 s"):
            await other.remove_shard("b")
        await other.remove_shard("b", force=True)
        assert list(other.shards) == [FIRST]


async def test_a_shard_that_was_removed_takes_no_push_for_another_one_of_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that hears of both changes at once, and has not left the former one yet."""
    async with servers(3) as own, own.connect(first=1) as late, own.connect(first=1) as operator:
        await operator.add_shard("b", own.urls("redis-2"))
        known = client_of(late).shards
        await known.open_missing()
        assert ShardName("b") in known.placement.targets

        async def not_yet() -> None:
            pass

        monkeypatch.setattr(known, "_open_missing", not_yet)
        await operator.drain_shard("b")
        await operator.remove_shard("b", force=True)
        await operator.add_shard("b", own.urls("redis-3"))
        await known.refresh()
        assert ShardName("b") in known.open
        assert ShardName("b") not in known.placement.targets
        monkeypatch.undo()
        await known.open_missing()
        assert known.placement.targets[ShardName("b")].replicas is known.open[ShardName("b")].replicas
        assert known.open[ShardName("b")].view.servers.keys() == {"redis-3"}


async def test_a_program_whose_clock_is_wrong_removes_no_shard(own: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its clock, the shard has been draining for long enough."""
    async with own.connect(first=1) as cluster:
        await cluster.add_shard("b", own.urls("redis-2"))
        await cluster.drain_shard("b")
        monkeypatch.setattr(clock, "now_us", lambda: own.clock.now_us() + 3_600_000_000)
        with pytest.raises(zkrq.ConfigError, match=r"redis-1 is 3600\.\d s behind .*nothing was changed"):
            await cluster.remove_shard("b")
        assert ShardName("b") in cluster.shards
        await cluster.remove_shard("b", force=True)


async def test_who_tries_to_remove_a_shard_until_it_is_empty_does_not_keep_claims_from_expiring(own: Servers) -> None:
    """Each change of the view gives them another lease, and this one is extended by nobody."""
    async with own.connect(first=1) as cluster, own.connect(first=1) as other:
        await cluster.add_shard("b", own.urls("redis-2"))
        queue = cluster.queue("jobs")
        while not await cluster.shard_sizes("b"):
            await queue.push("x")
        await other.queue("others").pop_one(timeout=0)
        (owner,) = await other.consumers()
        shard, resharding = client_of(other).shards.open[ShardName("b")], client_of(cluster).shards
        request = calls.Claim("jobs", owner, 1, 1, 10_000, "", 0, State.GONE.value, 0, 0)
        assert (await shard.replicas.decide(request)).reply.handed, "which no process knows of"
        await cluster.drain_shard("b")
        known, view = resharding.map, shard.view
        async with asyncio.TaskGroup() as group:
            emptying = group.create_task(all_of(queue))
            for _ in range(2):
                with pytest.raises(zkrq.ConfigError, match="queue 'jobs' has 1 item"):
                    await other.remove_shard("b", force=True)
                await own.clock.advance(4)
            assert (resharding.map, shard.view) == (known, view)
            await own.clock.advance(4)
            await other.remove_shard("b", force=True)
            emptying.cancel()


async def all_of(queue: zkrq.Queue[Any]) -> None:
    async for claim in queue.pop():
        await claim.ack()


@pytest.mark.parametrize("is_back", [True, False])
async def test_a_shard_that_was_founded_and_never_opened(
    own: Servers, monkeypatch: pytest.MonkeyPatch, is_back: bool
) -> None:
    """It has no items, so it is in nobody's way while it is away, and is removed without its servers."""
    async with own.connect(first=1) as other:
        queue = other.queue("jobs")
        async with own.connect(first=1) as operator:
            let_die(operator, 1, written=False, patch=monkeypatch)
            with pytest.raises(Died):
                await operator.add_shard("b", own.urls("redis-2"))
        own.kill("redis-2")
        async with own.connect(first=1) as late:
            assert late.shards["b"].state == "joining"
            assert (late.health().ok, (await late.queue("jobs").statistics()).away) == (True, ())
            for queue in (other.queue("jobs"), late.queue("jobs")):
                await queue.push("x")
                await queue.pause()
                await queue.resume()
                assert await queue.clear() == 1
            with pytest.raises(zkrq.ConfigError, match="add it again, or remove it"):
                await late.drain_shard("b")
            if is_back:
                own.start("redis-2")
                await late.add_shard("b", own.urls("redis-2"))
                assert late.shards["b"].state == "open"
            else:
                await late.remove_shard("b")
                assert list(late.shards) == [FIRST]


def given(own: Servers, b: str = "redis-2") -> zkrq.Cluster:
    """A client that founds a namespace, and was given the servers of two shards."""
    settings = Settings(found=True)
    hub, dial = own._hub, own._dial  # pyright: ignore[reportPrivateUsage]
    shards = {ShardName("b"): own.urls(b)}
    return zkrq.Cluster(own.urls("redis-1"), MemoryCoordinator(hub), settings, dial=dial, shards=shards)


async def test_a_namespace_is_not_founded_with_a_shard_that_does_not_answer_and_clients_open_without_it(
    own: Servers,
) -> None:
    """Who founds it is told.  Who comes later is not kept out, and adds the shard as soon as it answers."""
    own.kill("redis-2")
    with pytest.raises(zkrq.Unavailable, match="redis-2"):
        await given(own).open()
    async with given(own) as late, own.connect(first=1) as other:
        await own.clock.advance(5)
        assert (late.shards["b"].state, late.shards["b"].view) == ("joining", None)
        assert "redis-2" in str(late.shards["b"].away)
        assert "redis-2" in str(late.health().trouble)
        assert other.health().ok
        assert (await late.queue("jobs").push("x")).new
        assert (await late.queue("jobs").size()).ready == 1
        with pytest.raises(zkrq.Unavailable, match="redis-2"):
            await client_of(late).resharding.add_begun()  # as `zkrq.found` does
        own.start("redis-2")
        await own.clock.advance(20)
        assert [cluster.shards["b"].state for cluster in (late, other)] == ["open", "open"]
        assert late.health().ok


async def test_a_client_opens_though_the_shard_that_it_was_given_is_another_one(own: Servers) -> None:
    """Its servers belong to the first shard already, which only the founder is told."""
    async with own.connect(first=1) as cluster:
        settings = Settings(found=True)
        hub, dial = own._hub, own._dial  # pyright: ignore[reportPrivateUsage]
        wrong = {ShardName("b"): {"x": "redis://redis-1"}}
        with pytest.raises(zkrq.ConfigError, match="x is server redis-1 of shard main"):
            await zkrq.Cluster(own.urls("redis-1"), MemoryCoordinator(hub), settings, dial=dial, shards=wrong).open()
        assert list(cluster.shards) == [FIRST], "nothing was written"
        async with given(own) as late:
            assert late.shards["b"].state == "open"


async def test_a_client_that_was_stalled_adds_no_shard_that_was_there_and_removed(
    own: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was given the shard, and looked at the map when there was none yet."""
    check = Resharding._check_strangers  # pyright: ignore[reportPrivateUsage]
    stalled = given(own)

    async def check_and_stall(self: Resharding, *args: Any) -> None:
        await check(self, *args)
        if self is client_of(stalled).resharding:
            async with given(own) as quick:
                await quick.queue("jobs").set_history(1)  # so that something is left on its server
                await quick.drain_shard("b")
                await quick.remove_shard("b", force=True)

    monkeypatch.setattr(Resharding, "_check_strangers", check_and_stall)
    async with stalled:
        assert list(stalled.shards) == [FIRST]
        assert stalled.health().ok


async def test_a_client_opens_though_an_open_shard_that_it_was_given_is_away(own: Servers) -> None:
    async with given(own):
        pass
    own.kill("redis-2")
    async with given(own) as late:
        assert (late.shards["b"].state, late.shards["b"].view) == ("open", None)
        assert "shard b is away" in str(late.health().trouble)
        assert (await late.queue("jobs").push("x")).new


async def test_a_shard_that_came_back_empty_is_recovered_by_a_client_that_never_had_it(own: Servers) -> None:
    async with own.connect(first=1) as cluster:
        await cluster.add_shard("b", own.urls("redis-2"))
        own.kill("redis-2")
        own.start("redis-2", wipe=True)
        async with own.connect(first=1) as late:
            assert late.shards["b"].away
            recovering = asyncio.ensure_future(late.recover(["redis-2"]))
            await own.clock.advance(60)
            await recovering
            assert late.shards["b"].away is None
            while not await late.shard_sizes("b"):
                await late.queue("jobs").push("x")
            with pytest.raises(zkrq.ConfigError, match="nothing to recover"):
                await late.recover(["redis-2"])


async def test_a_queue_without_a_home_gets_its_first_id_while_zookeeper_is_away(own: Servers) -> None:
    """Only that push waits for ZooKeeper: a home that is known is enough for the others, and plain items need none."""
    async with own.connect(first=1) as cluster:
        await cluster.add_shard("b", own.urls("redis-2"))
        known, new = cluster.queue("known"), cluster.queue("new")
        await known.push("x", id="first")
        coordinator = client_of(cluster).coordinator
        cluster.servers._hub.suspend(coordinator)  # type: ignore[arg-type]  # pyright: ignore
        pushing = asyncio.ensure_future(new.push("x", id="mine"))
        assert await new.push("plain")
        assert (await known.push("x", id="second")).new
        await cluster.clock.advance(15)
        with pytest.raises(zkrq.Unavailable):
            await pushing
        cluster.servers._hub.resume(coordinator)  # type: ignore[arg-type]  # pyright: ignore
        assert (await new.push("x", id="mine")).new
        assert await new.size() == (2, 0, 0, 0)
