"""The view as one client knows it: what is read and written in the register, and who is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from functools import partial

import pytest

from tests.unit.by_hand import A, B, C, view_of
from tests.unit.fake_redis import Redis, fleet_of
from zkrq.base.errors import ConfigError, Unavailable
from zkrq.base.events import Event, Events, NotWritable, RegisterWentBack, ViewChanged
from zkrq.coordination.coordinator import VIEW, Versioned
from zkrq.coordination.memory import Hub, MemoryCoordinator
from zkrq.protocol.view import View, accuse, encode, evict, extend
from zkrq.replication.membership import Membership

pytestmark = pytest.mark.anyio

WHOLE = view_of(A, B, C)


class Told:
    """Everything that a membership tells."""

    def __init__(self) -> None:
        self.every: list[View] = []
        self.newer: list[View] = []
        self.events: list[Event] = []

    def clear(self) -> None:
        for told in (self.every, self.newer, self.events):
            told.clear()


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
async def coordinator() -> AsyncGenerator[MemoryCoordinator]:
    async with MemoryCoordinator(Hub()) as coordinator:
        yield coordinator


@pytest.fixture
async def membership(told: Told, coordinator: MemoryCoordinator) -> Membership:
    """A client that knows the whole view, which is in the register."""
    fleet = fleet_of({id: Redis() for id in "abc"}, command_timeout=1.0)
    membership = Membership(coordinator, fleet, namespace="n", events=Events(told.events.append))
    membership.watch_all(told.every.append)
    membership.watch(told.newer.append)
    assert await membership.write(WHOLE, -1) == 0
    membership.begin(WHOLE, 0)
    assert told.newer == told.every == [WHOLE]
    told.clear()
    return membership


async def test_a_change_is_written_and_told(membership: Membership, told: Told) -> None:
    view = await membership.change(WHOLE, partial(evict, failed=[C], now_ms=7))
    assert (view.epoch, view.members.keys()) == (WHOLE.epoch + 1, {A, B})
    assert await membership.read() == (view, 1)
    assert told.every == told.newer == [membership.view] == [view]
    assert told.events == [ViewChanged("n", view.epoch, (A, B), ())]


async def test_a_view_below_min_replicas_is_told_once(membership: Membership, told: Told) -> None:
    view = await membership.change(WHOLE, partial(evict, failed=[B, C], now_ms=7))
    await membership.change(view, partial(extend, server=C, url="redis://c"))
    assert [event for event in told.events if isinstance(event, NotWritable)] == [NotWritable("n", (A,), 2)]


async def test_a_change_that_changes_nothing_is_not_written(membership: Membership, told: Told) -> None:
    assert await membership.change(WHOLE, lambda view, by: replace(view)) is WHOLE
    assert await membership.read() == (WHOLE, 0)
    assert not told.every


async def test_a_change_of_an_old_view_is_not_written(membership: Membership) -> None:
    newer = await membership.change(WHOLE, partial(evict, failed=[C], now_ms=7))
    assert await membership.change(WHOLE, partial(evict, failed=[B], now_ms=7)) is newer
    assert await membership.refresh(WHOLE) is newer


async def test_the_loser_of_a_compare_and_set_goes_on_with_the_view_that_won(
    membership: Membership, told: Told
) -> None:
    won = evict(WHOLE, [A], by="another", now_ms=7)
    await membership.write(won, 0)
    assert await membership.change(WHOLE, partial(evict, failed=[C], now_ms=7)) == won
    assert told.newer == [won]


async def test_changes_are_made_one_after_the_other(membership: Membership) -> None:
    """Many operations that meet the same dead server evict it once."""
    views = await asyncio.gather(*[membership.change(WHOLE, partial(evict, failed=[C], now_ms=7)) for _ in range(5)])
    assert {view.epoch for view in views} == {WHOLE.epoch + 1}


async def test_an_accusation_is_told_to_those_that_watch_all(membership: Membership, told: Told) -> None:
    accusing = accuse(WHOLE, [C], client="another")
    await membership.write(accusing, 0)
    assert await membership.refresh(WHOLE) == accusing
    assert await membership.refresh(WHOLE) == accusing
    assert told.every == [accusing]
    assert not told.newer
    assert not told.events


async def test_a_change_is_made_of_the_latest_accusations(membership: Membership) -> None:
    await membership.write(accuse(WHOLE, [B], client="another"), 0)
    await membership.refresh(WHOLE)
    view = await membership.change(WHOLE, partial(evict, failed=[C], now_ms=7))
    assert view.accusations.keys() == {B}


async def test_watching_ends(membership: Membership) -> None:
    seen: list[View] = []
    with membership.watching(seen.append):
        view = await membership.change(WHOLE, partial(evict, failed=[C], now_ms=7))
    await membership.change(view, partial(extend, server=C, url="redis://c"))
    assert seen == [view]


async def test_a_view_that_went_back_is_reported(membership: Membership) -> None:
    await membership.write(replace(WHOLE, epoch=WHOLE.epoch - 1), 0)
    with pytest.raises(Unavailable, match="went back from epoch 7 to 6: it lost data"):
        await membership.refresh(WHOLE)
    assert membership.view is WHOLE


async def test_a_register_that_holds_no_view_is_reported(
    membership: Membership, coordinator: MemoryCoordinator
) -> None:
    await coordinator.swap(VIEW, b"{}", 0)
    with pytest.raises(ConfigError, match="namespace 'n' in ZooKeeper: the register holds no view"):
        await membership.refresh(WHOLE)


async def test_what_is_written_is_what_is_read(membership: Membership, coordinator: MemoryCoordinator) -> None:
    assert (await coordinator.read(VIEW)).data == encode(WHOLE)
    assert await membership.write(WHOLE, 5) is None, "the register has another version"


async def test_a_view_that_went_back_is_told_once_and_written_over_by_nobody(
    membership: Membership, coordinator: MemoryCoordinator, told: Told
) -> None:
    """Not even where its version is again the one that this client knows.  A later view ends it."""
    before = await coordinator.read(VIEW)
    later = await membership.change(WHOLE, partial(evict, failed=[C], now_ms=7))
    told.clear()
    hub = coordinator._hub  # pyright: ignore[reportPrivateUsage]
    hub.restore({VIEW: before})
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"from epoch 8 to 7: .* recover --older-zookeeper a b`"):
            await membership.refresh(later)
    with pytest.raises(Unavailable, match="went back"):
        await membership.change(later, partial(evict, failed=[B], now_ms=8))
    assert membership.view is later
    assert told.events == [RegisterWentBack("n", "view", 8, 7, membership.went_back.partition("it lost data; ")[2])]
    hub.restore({VIEW: Versioned(encode(replace(later, epoch=1008, by="operator")), 0)})
    assert (await membership.change(later, partial(evict, failed=[B], now_ms=8))).by == "operator"
    assert not membership.went_back


async def test_another_view_of_the_version_that_is_known_is_not_written_over(
    membership: Membership, coordinator: MemoryCoordinator
) -> None:
    """The register went back, and was written again as often, before this client heard of it."""
    other = replace(WHOLE, by="another history")
    coordinator._hub.registers[VIEW] = Versioned(encode(other), 0)  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(Unavailable, match="went back"):
        await membership.change(WHOLE, partial(evict, failed=[C], now_ms=7))
    assert (await coordinator.read(VIEW)).data == encode(other)


async def test_only_an_accusation_is_lost_when_the_view_goes_back(
    membership: Membership, coordinator: MemoryCoordinator
) -> None:
    before = await coordinator.read(VIEW)

    def accusing(view: View, /, *, by: str) -> View:
        return accuse(view, [C], client="me")

    accused = await membership.change(WHOLE, accusing)
    coordinator._hub.restore({VIEW: before})  # pyright: ignore[reportPrivateUsage]
    assert await membership.refresh(accused) == WHOLE
    assert (await membership.change(WHOLE, partial(evict, failed=[C], now_ms=7))).epoch == 8
