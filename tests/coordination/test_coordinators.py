"""The behaviour of every coordinator; run against each implementation."""

from __future__ import annotations

import asyncio

import pytest

from tests.coordination.conftest import HANG, SESSION_TIMEOUT, Recorder, World
from zkrq.base.errors import Closed, Unavailable
from zkrq.coordination.coordinator import VIEW, Coordinator, SessionState, Versioned, latest

pytestmark = pytest.mark.anyio


def now() -> float:
    return asyncio.get_running_loop().time()


async def until_consumers(coordinator: Coordinator, recorder: Recorder, owners: set[str]) -> None:
    """Look at every notice until exactly these are enrolled."""
    async with asyncio.timeout(HANG):
        while set(await coordinator.consumers()) != owners:
            seen = recorder.consumers
            if set(await coordinator.consumers()) != owners:
                await recorder.until(lambda seen=seen: recorder.consumers > seen)


# -- the register -----------------------------------------------------------------------------------------------------


async def test_register_is_empty_then_created_then_swapped(world: World) -> None:
    async with await world.coordinator() as one:
        assert await one.read(VIEW) == Versioned(None, -1)
        assert await one.swap(VIEW, b"a", -1) == Versioned(b"a", 0)
        assert await one.swap(VIEW, b"b", 0) == Versioned(b"b", 1)
        assert await one.read(VIEW) == Versioned(b"b", 1)


async def test_swap_from_another_version_changes_nothing(world: World) -> None:
    async with await world.coordinator() as one, await world.coordinator() as two:
        assert await one.swap(VIEW, b"early", 0) is None
        await one.swap(VIEW, b"a", -1)
        assert await two.swap(VIEW, b"b", -1) is None
        assert await two.swap(VIEW, b"b", 5) is None
        assert await two.read(VIEW) == Versioned(b"a", 0)


async def test_one_winner_for_each_version(world: World) -> None:
    """Many clients at once: every version is written by exactly one of them, and all see the same history."""
    rounds, clients = 8, [await world.coordinator() for _ in range(6)]
    wins: dict[int, list[bytes]] = {version: [] for version in range(rounds)}

    async def contend(number: int, client: Coordinator) -> None:
        async with client:
            view = await client.read(VIEW)
            while view.version < rounds - 1:
                data = b"%d writes %d" % (number, view.version + 1)
                written = await client.swap(VIEW, data, view.version)
                if written is not None:
                    wins[written.version].append(data)
                view = written or await client.read(VIEW)

    await asyncio.gather(*(contend(number, client) for number, client in enumerate(clients)))
    assert [len(winners) for winners in wins.values()] == [1] * rounds


@pytest.mark.parametrize("expected", [-1, 0])
async def test_lost_reply_to_a_swap_is_recognised_as_won(world: World, expected: int) -> None:
    """Hazard 7: one's own write comes back as NodeExists or BadVersion."""
    async with await world.coordinator() as one, await world.coordinator() as two:
        if expected == 0:
            await one.swap(VIEW, b"first", -1)
        world.lose_reply_to(one, b"mine!")
        assert await one.swap(VIEW, b"mine!", expected) == Versioned(b"mine!", expected + 1)
        assert await two.read(VIEW) == Versioned(b"mine!", expected + 1)


async def test_view_changes_are_told_to_everybody(world: World) -> None:
    async with await world.coordinator() as one, await world.coordinator() as two:
        recorders = [Recorder(one), Recorder(two)]
        for version in range(-1, 3):
            seen = [recorder.views for recorder in recorders]
            assert await one.swap(VIEW, b"%d" % version, version)
            for recorder, before in zip(recorders, seen, strict=True):
                await recorder.until(lambda recorder=recorder, before=before: recorder.views > before)


OTHER = "others/one"


async def test_registers_are_apart(world: World) -> None:
    async with await world.coordinator() as one, await world.coordinator() as two:
        assert await one.swap(OTHER, b"a", -1) == Versioned(b"a", 0)
        assert await two.read(VIEW) == Versioned(None, -1)
        assert await two.swap(VIEW, b"b", -1) == Versioned(b"b", 0)
        assert await one.swap(OTHER, b"c", 0) == Versioned(b"c", 1)
        assert await two.read(OTHER) == Versioned(b"c", 1)


@pytest.mark.parametrize("expected", [-1, 0])
async def test_swap_only_while_another_register_is_unchanged(world: World, expected: int) -> None:
    async with await world.coordinator() as one, await world.coordinator() as two:
        await one.swap(VIEW, b"a", -1)
        if expected == 0:
            await one.swap(OTHER, b"first", -1)
        assert await two.swap(OTHER, b"early", expected, given=(VIEW, 1)) is None
        assert (await one.read(OTHER)).version == expected
        assert await two.swap(OTHER, b"b", expected + 3, given=(VIEW, 0)) is None
        world.lose_reply_to(two, b"b")
        assert await two.swap(OTHER, b"b", expected, given=(VIEW, 0)) == Versioned(b"b", expected + 1)
        assert await one.read(OTHER) == Versioned(b"b", expected + 1)
        await one.swap(VIEW, b"later", 0)
        assert await two.swap(OTHER, b"late", expected + 1, given=(VIEW, 0)) is None
        assert await one.read(OTHER) == Versioned(b"b", expected + 1)


async def test_changes_of_a_register_are_told_to_those_who_follow_it(world: World) -> None:
    """Also of one that is not there yet, and after a cut."""
    async with await world.coordinator() as one, await world.coordinator() as two:
        follower, other = Recorder(two), Recorder(one)
        two.follow(OTHER)
        for version in range(-1, 2):
            seen = follower.changes[OTHER]
            assert await one.swap(OTHER, b"%d" % version, version)
            await follower.until(lambda seen=seen: follower.changes[OTHER] > seen)
        await world.suspend(two)
        assert await one.swap(OTHER, b"meanwhile", 2)
        seen = follower.changes[OTHER]
        await world.resume(two)
        await follower.until(lambda: follower.changes[OTHER] > seen)
        assert not other.changes[OTHER]


# -- the registry -----------------------------------------------------------------------------------------------------


async def test_enrol(world: World) -> None:
    async with await world.coordinator() as one, await world.coordinator() as two:
        recorder = Recorder(two)
        owner = await one.enrol("Æneas on host a")
        assert owner == one.session.id
        assert await one.enrol("Æneas on host a") == owner
        assert await two.consumers() == {owner: "Æneas on host a"}
        await recorder.until(lambda: recorder.consumers > 0)


async def test_later_incarnation_is_another_owner(world: World) -> None:
    """The entry of the one before is taken out, and the new one ends with the session as well."""
    async with await world.coordinator() as two:
        recorder = Recorder(two)
        async with await world.coordinator() as one:
            first = await one.enrol("one")
            for incarnation in (2, 3):
                owner = await one.enrol("one", incarnation)
                assert owner == f"{first}.{incarnation}" == f"{one.session.id}.{incarnation}"
                assert await one.enrol("one", incarnation) == owner
                assert await two.consumers() == {owner: "one"}
        await until_consumers(two, recorder, set())


async def test_lost_reply_to_a_later_enrolment(world: World) -> None:
    async with await world.coordinator() as one:
        await one.enrol("first")
        world.lose_reply_to(one, b"second")
        owner = await one.enrol("second", 2)
        assert await one.consumers() == {owner: "second"}
        assert await one.enrol("after one that never was", 7) == f"{one.session.id}.7"


async def test_lost_reply_to_an_enrolment(world: World) -> None:
    """Hazard 7, 8: the repeated create says that it exists, and no later request suffers."""
    async with await world.coordinator() as one:
        world.lose_reply_to(one, b"the description")
        owner = await one.enrol("the description")
        for _ in range(50):
            assert await one.consumers() == {owner: "the description"}


async def test_consumers_that_are_proved(world: World) -> None:
    async with await world.coordinator() as one, await world.coordinator() as two:
        assert await one.alive(proved=True) == frozenset()
        owner = await two.enrol("two")
        assert await one.alive(proved=True) == {owner}
        assert await one.consumers() == {owner: "two"}


async def test_consumers_vanish_with_their_session(world: World) -> None:
    async with await world.coordinator() as one:
        recorder = Recorder(one)
        async with await world.coordinator() as two:
            owner = await two.enrol("two")
            await until_consumers(one, recorder, {owner})
        await until_consumers(one, recorder, set())


# -- the election -----------------------------------------------------------------------------------------------------


async def test_one_leads_and_the_next_takes_over(world: World) -> None:
    one, two, three = [await world.coordinator() for _ in range(3)]
    recorders = {each: Recorder(each) for each in (one, two, three)}
    async with one:
        await recorders[one].until(lambda: one.leading)
        async with two, three:
            assert [each.leading for each in (one, two, three)] == [True, False, False]
            await world.expire(one)
            await recorders[one].until(lambda: recorders[one].leading == [True, False])
            async with asyncio.timeout(HANG):
                while not (two.leading or three.leading):
                    await asyncio.sleep(0.01)
            assert [each.leading for each in (one, two, three)].count(True) == 1
        await recorders[one].until(lambda: one.leading)
    assert not one.leading


async def test_a_client_that_stands_down_leads_no_more(world: World) -> None:
    """Not in its next session either."""
    one, two, three = [await world.coordinator() for _ in range(3)]
    recorders = {each: Recorder(each) for each in (one, two, three)}
    async with one:
        await recorders[one].until(lambda: one.leading)
        async with two:
            await one.stand_down()
            await recorders[two].until(lambda: two.leading)
            assert recorders[one].leading == [True, False]
        await world.expire(one)
        await recorders[one].until(lambda: one.session.state is SessionState.CONNECTED)
        async with three:
            await recorders[three].until(lambda: three.leading)
        assert recorders[one].leading == [True, False]


# -- the session ------------------------------------------------------------------------------------------------------


async def test_suspended_session_goes_on(world: World) -> None:
    """Calls wait meanwhile; the same session is there again; nobody is told of an end."""
    one = await world.coordinator()
    recorder = Recorder(one)
    async with one, await world.coordinator() as two:
        owner = await one.enrol("one")
        await world.suspend(one)
        await recorder.until_state(SessionState.SUSPENDED)
        waiting = asyncio.create_task(one.read(VIEW))
        assert await two.swap(VIEW, b"new", -1)
        await asyncio.sleep(0.1)
        assert not waiting.done()
        seen = recorder.views
        await world.resume(one)
        assert await waiting == Versioned(b"new", 0)
        await recorder.until_state(SessionState.CONNECTED, 2)
        await recorder.until(lambda: recorder.views > seen)
        assert one.session.id == owner
        assert owner in await two.consumers()
    assert recorder.states == [
        SessionState.CONNECTED,
        SessionState.SUSPENDED,
        SessionState.CONNECTED,
        SessionState.CLOSED,
    ]


async def test_expired_session_is_lost_and_replaced(world: World) -> None:
    """LOST with the old id, then CONNECTED with a new one; what belonged to the old one is gone, and enrols anew."""
    one = await world.coordinator()
    recorder = Recorder(one)
    async with one, await world.coordinator() as two:
        old = await one.enrol("one")
        await world.expire(one)
        await recorder.until_state(SessionState.LOST)
        await recorder.until_state(SessionState.CONNECTED, len(recorder.states) - 1)
        lost = recorder.states.index(SessionState.LOST)
        assert recorder.sessions[lost].id == old
        assert recorder.states[lost + 1] is SessionState.CONNECTED
        new = one.session.id
        assert new != old
        assert await two.consumers() == {}
        assert await one.enrol("one again") == new
        assert await two.consumers() == {new: "one again"}


async def test_cut_off_beyond_the_session_timeout(world: World) -> None:
    """Calls give up in bounded time; the deadline passes before the others hear of the end; then all is new."""
    one = await world.coordinator()
    recorder = Recorder(one)
    async with one, await world.coordinator() as two:
        others = Recorder(two)
        old = await one.enrol("one")
        assert one.valid_until > now()
        await until_consumers(two, others, {old})
        await world.suspend(one)
        async with asyncio.timeout(HANG):
            with pytest.raises(Unavailable):
                await one.read(VIEW)
        await until_consumers(two, others, set())
        assert one.valid_until < now()
        assert one.session.state is SessionState.SUSPENDED
        await world.resume(one)
        await recorder.until_state(SessionState.LOST)
        await recorder.until_state(SessionState.CONNECTED, 2)
        assert one.session.id != old
        await recorder.until(lambda: one.valid_until > now())


async def test_deadline_moves_on_while_connected(world: World) -> None:
    async with await world.coordinator() as one:
        first = one.valid_until
        assert now() < first <= now() + SESSION_TIMEOUT
        async with asyncio.timeout(HANG):
            while one.valid_until <= first:
                await asyncio.sleep(0.05)


async def test_before_the_start_and_after_the_end(world: World) -> None:
    one = await world.coordinator()
    assert one.session.state is SessionState.CONNECTING
    assert one.valid_until < now()
    with pytest.raises(Unavailable):
        await one.read(VIEW)
    async with one:
        await one.read(VIEW)
    assert one.session.state is SessionState.CLOSED
    assert one.valid_until < now()
    for call in (
        one.read(VIEW),
        one.swap(VIEW, b"x", -1),
        one.enrol("x"),
        one.consumers(),
        one.alive(proved=True),
    ):
        with pytest.raises(Closed):
            await call
    with pytest.raises(Closed):
        await one.__aenter__()


async def test_start_that_reaches_nobody(world: World) -> None:
    one = await world.coordinator()
    await world.suspend(one)
    before = asyncio.all_tasks()
    async with asyncio.timeout(HANG):
        with pytest.raises(Unavailable):
            await one.__aenter__()
    assert asyncio.all_tasks() == before
    assert one.session.state is SessionState.CLOSED


async def test_cancelled_start_leaves_nothing(world: World) -> None:
    one = await world.coordinator()
    await world.suspend(one)
    before = asyncio.all_tasks()
    starting = asyncio.create_task(one.__aenter__())
    await asyncio.sleep(0.2)
    starting.cancel()
    await asyncio.wait({starting})
    assert starting.cancelled()
    assert asyncio.all_tasks() == before


async def test_start_that_is_cancelled_at_any_moment_leaves_no_leader_behind(world: World) -> None:
    """A session that it had begun already ends, so the next client leads."""
    for turns in (*range(8), 100, 1_000, 10_000):
        one = await world.coordinator()
        starting = asyncio.create_task(one.__aenter__())
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait({starting})
        if not starting.cancelled():
            await one.__aexit__(None, None, None)
    async with await world.coordinator() as two:
        recorder = Recorder(two)
        async with asyncio.timeout(HANG):
            await recorder.until(lambda: two.leading)


async def test_close_while_calls_wait(world: World) -> None:
    """Hazard 10: closing a session that is cut off is bounded, fails whoever waits, and leaves no task."""
    one = await world.coordinator()
    recorder = Recorder(one)
    before = asyncio.all_tasks()
    await one.__aenter__()
    await world.suspend(one)
    await recorder.until_state(SessionState.SUSPENDED)
    waiting = asyncio.create_task(one.read(VIEW))
    await asyncio.sleep(0)
    async with asyncio.timeout(HANG):
        await one.__aexit__(None, None, None)
    with pytest.raises(Closed):
        await waiting
    left = asyncio.all_tasks() - before
    assert not [task for task in left if "proxy" not in repr(task)]


async def test_entered_and_left_by_different_tasks(world: World) -> None:
    one = await world.coordinator()
    await asyncio.create_task(one.__aenter__())
    assert await one.read(VIEW) == Versioned(None, -1)
    await asyncio.create_task(one.__aexit__(None, None, None))
    assert one.session.state is SessionState.CLOSED


async def test_listener_that_raises_harms_nobody(world: World) -> None:
    class Rude(Recorder):
        def register_changed(self, register: str) -> None:
            raise ValueError("rude")

    async with await world.coordinator() as one:
        Rude(one)
        polite = Recorder(one)
        await one.swap(VIEW, b"a", -1)
        await polite.until(lambda: polite.views == 1)
        await one.swap(VIEW, b"b", 0)
        await polite.until(lambda: polite.views == 2)


# -- introductions ----------------------------------------------------------------------------------------------------


async def test_what_clients_say_of_themselves_ends_with_their_session(world: World) -> None:
    async with await world.coordinator() as one:
        async with await world.coordinator() as two:
            assert await one.clients() == {}
            await one.introduce("Æneas, 0.2.0")
            await two.introduce("two")
            await two.introduce("two")
            said = {one.session.id: "Æneas, 0.2.0", two.session.id: "two"}
            assert await one.clients() == said
            assert await two.clients() == said
            assert await two.enrol("a consumer", 1) in await one.consumers()
            assert await one.clients() == said
        assert await one.clients() == {one.session.id: "Æneas, 0.2.0"}


async def test_what_a_client_says_later_replaces_it(world: World) -> None:
    """Others that have read the former text read the new one."""
    async with await world.coordinator() as one, await world.coordinator() as two:
        for number, text in ((1, "no worker"), (2, "ten slots"), (2, "ten slots"), (3, "none")):
            await one.introduce(text, number)
            assert latest(await two.clients()) == {one.session.id: text}
        assert len(await two.clients()) == 1
        await two.introduce("in another session", 7)
        assert latest(await one.clients()) == {one.session.id: "none", two.session.id: "in another session"}


async def test_a_lost_reply_to_an_introduction_is_repeated(world: World) -> None:
    async with await world.coordinator() as one, await world.coordinator() as two:
        world.lose_reply_to(one, b"myself")
        await one.introduce("myself")
        assert await two.clients() == {one.session.id: "myself"}
