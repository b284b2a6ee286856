"""The scripts of catch-up, recovery and scrub: one server's items are copied to another, and differences are found.

The other server is another database of the same Redis: it has the same clock, so that times can be compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from typing import NamedTuple, TypeVar, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.lua.connection import Refused, ScriptFailed
from tests.lua.contents import PAUSE, Contents, ids_of
from tests.lua.entries import BUNDLE, WINDOW_MS, Applied, Decided, Put, joined, packed_item
from tests.lua.one_server import GENERATION, OneServer, put_and_claim
from zkrq import local
from zkrq.protocol import calls, copying
from zkrq.protocol.copying import QueueCopy, copy_items, queues_at
from zkrq.protocol.records import Bundle, ItemRecord, State, Version, fresh
from zkrq.protocol.replies import Answer
from zkrq.protocol.scripts import SCRIPTS
from zkrq.protocol.steps import Ask, Operation, Place
from zkrq.protocol.view import Life, ServerId

KIB = 1024
BYTES_MAX = 1024 * KIB
"""Payloads in one reply."""

TABLE = len(joined(b""))
"""Bytes beside a payload that is alone."""

PUSHED_AT_MS = int(time.time() * 1000)

T = TypeVar("T")


SOURCE, TARGET = ServerId("source"), ServerId("target")


def carried_out(operation: Operation[T], **servers: OneServer) -> T:
    """What an operation returns that only asks these servers."""
    answers: dict[ServerId, Answer] | None = None
    try:
        while True:
            step = operation.send(answers)
            assert isinstance(step, Ask)
            answers = {id: servers[id].answer(step.call, servers[id].epoch) for id in step.lives}
    except StopIteration as stop:
        return cast("T", stop.value)


def place(id: ServerId) -> Place:
    return Place(id, Life("", GENERATION), 1)


def copy(source: OneServer, target: OneServer) -> int:
    """As catch-up and recovery do it; returns how many items came."""
    counts: list[int] = []

    def copied(count: int) -> Operation[None]:
        counts.append(count)
        yield from ()

    operation = QueueCopy(source.queue).go_on(place(SOURCE), place(TARGET), copied)
    carried_out(operation, source=source, target=target)
    return sum(counts)


def another(server: OneServer) -> OneServer:
    """Another server, empty, and enrolled."""
    other = OneServer(server.host, server.port, database=1)
    other.command("FLUSHDB")
    other.enrol()
    return other


@pytest.fixture
def other(server: OneServer) -> Generator[OneServer, None, None]:
    with another(server) as other:
        yield other


def one_of_each(server: OneServer) -> dict[str, Decided]:
    """Items called by their state; returns the claim."""
    server.settle(put_and_claim(server, "gone").only.settle("ack"))
    server.settle(put_and_claim(server, Put("dead", b"D", priority=2)).only.settle("bury", 0, "why"))
    claimed = put_and_claim(server, Put("claimed", b"C", priority=9))
    server.put(Put("ready", b"R", priority=3), Put("scheduled", b"S", delay_ms=60_000))
    return claimed.decided


STATES = ("gone", "dead", "claimed", "ready", "scheduled")


def status(call: Callable[[], object]) -> tuple[str, tuple[object, ...]]:
    with pytest.raises(Refused) as refused:
        call()
    return refused.value.status, refused.value.body


# -- any history, copied -------------------------------------------------------------------------------------------

IDS = tuple("abcdefgh")
OWNERS = ("ann", "bob")
VERBS = ("ack", "nack", "release", "bury", "extend")


class Step(NamedTuple):
    """One call of a client, or a change of the view."""

    name: str
    ids: tuple[str, ...] = ()
    state: State = State.QUEUED
    owner: str = ""
    verb: str = ""
    ms: int = 0
    many: int = 0


SIZES = {BUNDLE: 3, f"{BUNDLE}0": 5}
"""Bundles, and their numbers of items."""
some_ids = st.lists(st.sampled_from((*IDS, *SIZES)), min_size=1, max_size=5).map(tuple)
owners = st.sampled_from(OWNERS)
counts = st.integers(1, 4)
steps = st.one_of(
    st.builds(Step, st.just("put"), ids=some_ids, ms=st.sampled_from([0, 0, 1, 60_000])),
    st.builds(Step, st.just("claim"), owner=owners, ms=st.sampled_from([1, 60_000, 60_000]), many=counts),
    st.builds(Step, st.just("settle"), verb=st.sampled_from(VERBS), ms=st.sampled_from([0, 60_000]), many=counts),
    st.builds(Step, st.just("push"), ids=some_ids, ms=st.sampled_from([0, 0, 60_000]), many=st.integers(0, 3)),
    st.builds(Step, st.just("pause"), state=st.sampled_from([State.PAUSED, State.GONE])),
    st.builds(Step, st.just("decision without its push"), ids=some_ids),
    st.builds(Step, st.just("clear"), ms=st.sampled_from([0, WINDOW_MS]), many=st.integers(1, 2)),
    st.builds(Step, st.just("fence"), owner=owners),
    st.builds(Step, st.just("view")),
)
histories = st.lists(steps, max_size=25)


KEY_OF = dict(zip(IDS, ("", "", "", "", "k1", "k1", "k2", "k2"), strict=True))
TTL_OF = dict(zip(IDS, (None, None, 3_600_000, 50, None, 3_600_000, None, 50), strict=True))


def item(id: str, delay_ms: int) -> Put:
    """The push of this id, always with the same key and time to live."""
    if id in SIZES:
        return Put(id, [bytes([at]) * at for at in range(SIZES[id])], delay_ms, 5, PUSHED_AT_MS)
    return Put(id, id.encode(), delay_ms, IDS.index(id), PUSHED_AT_MS, KEY_OF[id], TTL_OF[id])


class Player:
    """Plays a history on one server.  Epochs go up by two, so that no two servers decide under the same."""

    def __init__(self, server: OneServer, epoch: int) -> None:
        self.server = server
        self.server.seal(epoch)
        self.server.epoch = epoch
        self._claims: list[tuple[Decided, int]] = []

    def play(self, history: list[Step]) -> None:
        for step in history:
            with suppress(Refused):  # an owner that was fenced
                self._play(step)

    def _play(self, step: Step) -> None:
        server = self.server
        if step.name == "put":
            if plain := [item(id, step.ms) for id in step.ids if not KEY_OF.get(id)]:
                server.put(*plain)
        elif step.name == "push":
            puts = [item(id, step.ms) for id in step.ids if id in IDS]
            puts += [put for id in step.ids if id in SIZES for put in self._pushed_again(id, step.many)]
            if puts:
                server.push(*puts, max_size=step.many * 3, again=step.many % 2)
        elif step.name == "pause":
            server.pause(step.state)
        elif step.name == "claim":
            claimed = server.claim(step.owner, step.many, lease_ms=step.ms)
            self._claims += ((claimed.decided[bundle], position) for bundle, position in claimed.places.values())
        elif step.name == "settle":
            claims = self._claims[-step.many :]
            if claims:
                server.settle(*(decided.settle(step.verb, step.ms, "why", [position]) for decided, position in claims))
        elif step.name == "decision without its push":
            for id in dict.fromkeys(id for id in step.ids if id in IDS):
                server.apply(Applied(id, self._claimed_by_eve(id), 60_000))
        elif step.name == "clear":
            server.clear(step.many, put_window_ms=step.ms, trim=1)
        elif step.name == "fence":
            server.fence(step.owner)
        else:
            server.epoch += 2
            server.seal(server.epoch)

    def _pushed_again(self, bundle: str, count: int) -> list[Put]:
        """Some items of a bundle, one by one."""
        return [
            Put(calls.item_id(bundle, at), bytes([at]) * at, 0, 5, PUSHED_AT_MS)
            for at in range(count % (SIZES[bundle] + 1))
        ]

    def _claimed_by_eve(self, id: str) -> bytes:
        return packed_item(
            Version(self.server.epoch, 2),
            State.CLAIMED,
            pushed_at_ms=PUSHED_AT_MS,
            due_us=self.server.epoch,  # what is decided at another moment names another one
            token="eve/1",
            key=KEY_OF[id],
            ttl_ms=TTL_OF[id] or 0,
        )


class Pair(NamedTuple):
    """Two servers, for all examples of a test."""

    one: OneServer
    two: OneServer

    def reset(self) -> tuple[Player, Player]:
        self.one.reset()
        self.two.command("FLUSHDB")
        self.two.epoch = 1
        self.two.enrol()
        return Player(self.one, 1), Player(self.two, 2)

    def agree_on_the_view(self) -> None:
        for server in self:
            server.epoch = max(self.one.epoch, self.two.epoch)


@pytest.fixture(scope="module")
def pair(private_redis: local.LocalRedis) -> Generator[Pair, None, None]:
    host, port = private_redis.host, private_redis.port
    with OneServer(host, port) as one, OneServer(host, port, database=1) as two:
        yield Pair(one, two)


def buried(contents: Contents) -> set[bytes]:
    """Version and id of every tombstone, without when it was removed."""
    return {entry[16:24] + entry[28:] for entry in contents.tombstones}


def stands_for(entry: bytes, bundles: Mapping[str, Bundle]) -> bool:
    """Whether a tombstone is that of the record that is there, and not of an earlier one of the id."""
    bundle = bundles[entry[8:].decode()]
    return not bundle.is_alive and bundle.version == (
        int.from_bytes(entry[:4], "little"),
        int.from_bytes(entry[4:8], "little"),
    )


def merged(one: Contents, two: Contents) -> dict[str, bytes]:
    """Per bundle the greatest version."""
    records = dict(one.packed)
    for id, packed in two.packed.items():
        if id not in records or two.bundles[id].version > one.bundles[id].version:
            records[id] = packed
    return records


@given(histories)
def test_copy_is_what_the_source_is(pair: Pair, history: list[Step]) -> None:
    """Catch-up (4): records with payloads and tombstones, indexes by state with the time that is left, the owners."""
    player, _ = pair.reset()
    player.play(history)
    pair.agree_on_the_view()
    began_us = pair.one.now_us()
    progress = [
        max(1, sum(state in "QRCDP" for state in bundle.states)) for bundle in pair.one.contents().bundles.values()
    ]
    assert copy(pair.one, pair.two) == sum(progress), "a tombstone counts as one"
    took_us = pair.two.now_us() - began_us
    source, target = pair.one.contents(), pair.two.contents()
    assert (target.packed, target.payloads, target.notes) == (source.packed, source.payloads, source.notes)
    assert sorted(target.faults) == sorted(source.faults)
    assert buried(target) == {entry for entry in buried(source) if stands_for(entry, source.bundles)}
    assert (target.keys, target.expiring.keys()) == (source.keys, source.expiring.keys())
    later = [moment_us(target, id) - moment_us(source, id) for id in source.living()]
    later += [abs(target.expiring[id]) - abs(at) for id, at in source.expiring.items()]
    assert all(0 <= us <= took_us for us in later), later
    assert max(later, default=0) - min(later, default=0) <= 2, "all count from the same time"
    assert_metadata_alike(pair.one, pair.two, took_us)


def moment_us(contents: Contents, id: str) -> float:
    """Of a claim, what the record says: a server that leads since then may give it longer."""
    record = contents.records[id]
    if record.state is not State.CLAIMED:
        return contents.moment_us(id)
    return record.deadline_us + contents.shifts[calls.bundle_and_position(id)[0]]


def assert_metadata_alike(one: OneServer, two: OneServer, apart_us: float) -> None:
    ours, theirs = one.metadata(), two.metadata()
    assert theirs.floor_ms == ours.floor_ms
    assert theirs.items <= ours.items, "a tombstone may have several entries where it was decided"
    assert {id: seq for id, (seq, _) in theirs.owners.items()} == {id: seq for id, (seq, _) in ours.owners.items()}
    for owner, (_, ago_ms) in ours.owners.items():
        there_ms = theirs.owners[owner][1]
        assert (there_ms < 0) == (ago_ms < 0)
        assert abs(there_ms - ago_ms) <= apart_us / 1000 + 100


@given(histories, histories)
@example(  # some items of a bundle were pushed again here, and all of them are there, by a greater version
    [Step("put", ("a",)), Step("push", (BUNDLE,), many=1)],
    [Step("put", (BUNDLE,)), Step("claim", owner="ann", ms=1, many=1)],
)
def test_copies_both_ways_give_the_greatest_versions(pair: Pair, history: list[Step], another: list[Step]) -> None:
    """Recovery: per item the greatest version wins, and a payload is had wherever anybody has it."""
    for player, steps in zip(pair.reset(), (history, another), strict=True):
        # One push, which both servers have: what is put twice under one id has the same delay.
        player.play([step._replace(ms=0) if step.name == "put" else step for step in steps])
    pair.agree_on_the_view()
    before = [server.contents() for server in pair]
    records = merged(*before)
    payloads = {**before[0].payloads, **before[1].payloads}
    known = [server.metadata() for server in pair]
    copy(pair.one, pair.two)
    copy(pair.two, pair.one)
    # A removed item's payload counts as well, once the copy from the other server has shown that the item lives: the
    # second copy carries what its source had left.
    left = [{**before[1].left_payloads, **before[0].left_payloads}, before[1].left_payloads]
    for server, own_left in zip(pair, left, strict=True):
        contents = server.contents()
        assert contents.packed == records
        living = contents.living()
        had = {**own_left, **payloads}
        assert contents.payloads == {id: payload for id, payload in had.items() if id in living}
        assert {fault for fault in contents.faults if "payload: None" not in fault} == set()
        metadata = server.metadata()
        assert metadata.floor_ms == max(each.floor_ms for each in known)
        assert {owner: seq for owner, (seq, _) in metadata.owners.items()} == {
            owner: max(each.owners.get(owner, (0, 0))[0] for each in known) for each in known for owner in each.owners
        }


@given(histories, st.integers(1, 3))
def test_copied_again_nothing_changes(pair: Pair, history: list[Step], times: int) -> None:
    """Rule 1: copying may be repeated, interrupted, and done twice at the same time."""
    player, _ = pair.reset()
    player.play(history)
    pair.agree_on_the_view()
    copy(pair.one, pair.two)
    before = pair.two.contents()
    for _ in range(times):
        copy(pair.one, pair.two)
    assert pair.two.contents() == before


def test_each_item_stands_in_the_copy_where_it_stood(server: OneServer, other: OneServer) -> None:
    one_of_each(server)
    assert copy(server, other) == len(STATES)
    contents = other.contents()
    assert {id: contents.homes(id) for id in STATES} == {"gone": set[str](), **{id: {id} for id in STATES[1:]}}
    assert contents.payloads == {"dead": b"D", "claimed": b"C", "ready": b"R", "scheduled": b"S"}
    assert contents.faults == []
    assert other.queues() == {"q"}


def test_copy_keeps_the_order(server: OneServer, other: OneServer) -> None:
    """Order: pages come in no order, and a batch of pushes lies microseconds apart."""
    ids = server.put_numbered(1_500)
    copy(server, other)
    assert [id for _ in range(6) for id in other.claim(count=250).ids] == ids


def test_copied_claim_is_its_holders(server: OneServer, other: OneServer) -> None:
    claim = put_and_claim(server, "a").only
    copy(server, other)
    assert other.claim("bob").ids == []
    assert other.settle(claim.settle("ack")).outcomes == [1]


def test_copied_removal_keeps_a_late_push_out(server: OneServer, other: OneServer) -> None:
    """Rule 8: catch-up copies tombstones."""
    server.settle(put_and_claim(server, "a").only.settle("ack"))
    copy(server, other)
    other.put("a")
    assert other.claim().ids == []


def test_copied_request_of_a_consumer_is_known(server: OneServer, other: OneServer) -> None:
    """Rule 6: repeated, it is given the same items; an earlier one is refused."""
    server.put("a", "b")
    claimed = server.claim("ann", 1, seq=7)
    copy(server, other)
    assert other.claim("ann", 1, seq=7).ids == claimed.ids
    assert status(lambda: other.claim("ann", 1, seq=6))[0] == "OUTDATED"
    assert other.claim("ann", 1, seq=8).ids == ["b"]


def test_waiting_consumers_hear_of_what_is_copied(server: OneServer, other: OneServer) -> None:
    server.put("a")
    with other.listen("here") as listener:
        other.claim(waiter="here")
        copy(server, other)
        assert listener.heard() == other.key("ready")


def test_queue_without_items_is_copied(server: OneServer, other: OneServer) -> None:
    """An empty queue has owners, and a name, too."""
    server.install(5, {"ann": (3, -1)})
    assert copy(server, other) == 0
    assert (other.queues(), other.owners()) == ({"q"}, {"ann"})


def test_names_of_queues_are_sorted(server: OneServer) -> None:
    for name in ("q2", "größe", "q10"):
        server.queue = name
        server.put("a")
    assert carried_out(queues_at(place(SOURCE)), source=server) == ["größe", "q10", "q2"]


# -- page ----------------------------------------------------------------------------------------------------------


def all_pages(server: OneServer, count: int = 200, meanwhile: Callable[[], object] = lambda: None) -> list[str]:
    """Every id of every page; ``meanwhile`` is called between two pages."""
    ids: list[str] = []
    cursor = b"0"
    while True:
        cursor, page = server.page(cursor, count)
        ids += [*page.found, *page.left_out]
        if cursor == b"0":
            return ids
        meanwhile()


def test_page_tells_what_read_tells(server: OneServer) -> None:
    one_of_each(server)
    clock = server.metadata().clock
    cursor, page = server.page(clock=clock)
    assert cursor == b"0"
    assert set(page.found) == set(STATES)
    living = {id: copy for id, copy in page.found.items() if id != "gone"}
    assert server.read_some(*living, clock=clock) == (living, [])
    gone = page.found["gone"]
    assert server.read_some("gone").found["gone"]._replace(since=gone.since) == gone
    records = server.contents().records
    assert {id: copy.record for id, copy in page.found.items()} == records


def test_copies_count_from_the_time_that_is_named(server: OneServer) -> None:
    one_of_each(server)
    contents = server.contents()
    clock = server.metadata().clock - 1_000_000
    _, page = server.page(clock=clock)
    for id in STATES[1:]:
        assert page.found[id].left_ms == pytest.approx((contents.moment_us(id) - clock) / 1000, abs=0.0011)


def test_copies_count_from_now_unless_a_time_is_named(server: OneServer) -> None:
    one_of_each(server)
    contents = server.contents()
    before = server.now_us()
    _, page = server.page()
    after = server.now_us()
    for id in STATES[1:]:
        left_us = page.found[id].left_ms * 1000
        assert contents.moment_us(id) - after - 1 <= left_us <= contents.moment_us(id) - before + 1


def test_installed_copies_count_from_the_time_that_is_named(server: OneServer) -> None:
    server.apply(Applied("a", packed_item(Version(1, 2), State.DEAD), -1.5), clock=1_700_000_000_000_000)
    assert server.contents().dead == {"a": 1_700_000_000_000_000 - 1_500}


def test_empty_queue_is_one_empty_page(server: OneServer) -> None:
    assert server.page() == (b"0", ({}, []))


def test_page_is_about_as_long_as_asked(server: OneServer) -> None:
    """Large pages would block the server; the records of small queues come at once."""
    server.put_numbered(3_000)
    _, page = server.page(count=200)
    assert 200 <= len(page.found) < 300


@pytest.mark.parametrize(
    "count", [pytest.param(50, marks=pytest.mark.chaos), 200, pytest.param(1_000, marks=pytest.mark.chaos)]
)
def test_pages_visit_whoever_stays_while_the_queue_grows(server: OneServer, count: int) -> None:
    """Catch-up (4): the first page is read when the learner is given every write; what was there before is copied."""
    staying = server.put_numbered(1_500)
    come = 0

    def others_come() -> None:
        nonlocal come
        if come < 8_000:
            server.put(*(Put(f"later{come + n}") for n in range(500)))
            come += 500

    ids = all_pages(server, count, others_come)
    assert come >= 500
    assert set(staying) <= set(ids)


@pytest.mark.parametrize(
    "count", [pytest.param(50, marks=pytest.mark.chaos), 200, pytest.param(1_000, marks=pytest.mark.chaos)]
)
def test_pages_visit_whoever_stays_while_the_queue_shrinks(server: OneServer, count: int) -> None:
    """Tombstones are dropped meanwhile, so that the hash is made smaller between two pages."""
    for start in range(0, 20_000, 500):
        server.put(*(Put(f"other{start + n}", priority=9) for n in range(500)))
    staying = server.put_numbered(1_500)

    def others_go() -> None:
        for _ in range(5):
            claimed = server.claim(count=500)
            if claimed.handed and not set(claimed.handed) & set(staying):
                server.settle(*claimed.settle("ack"), put_window_ms=0)

    ids = all_pages(server, count, others_go)
    assert server.metadata().items < 10_000, "else this shows nothing"
    assert set(staying) <= set(ids)


def test_pages_visit_whoever_stays_while_others_come_and_go(server: OneServer) -> None:
    staying = server.put_numbered(2_500)
    come = 0

    def others_come_and_go() -> None:
        nonlocal come
        server.put(*(Put(f"other{come + n}", priority=9) for n in range(400)))
        come += 400
        for _ in range(2):
            server.settle(*server.claim(count=200).settle("ack"), put_window_ms=0)

    assert set(staying) <= set(all_pages(server, 100, others_come_and_go))
    assert come > 4_000
    assert server.contents().ids(State.QUEUED) == set(staying)


# -- the limit of bytes --------------------------------------------------------------------------------------------


def test_payloads_beyond_the_limit_are_named(server: OneServer) -> None:
    """One reply must neither block the server nor fill the client's memory."""
    large = bytes(600 * KIB)
    server.put(*(Put(id, large) for id in "abc"))
    assert server.read_some("a", "b", "c")[1] == ["b", "c"]
    assert server.read_some("b", "c")[1] == ["c"]
    _, page = server.page()
    assert (len(page.found), len(page.left_out)) == (1, 2)
    assert {*page.found, *page.left_out} == set("abc")


def test_payload_larger_than_the_limit_comes_alone(server: OneServer) -> None:
    server.put(Put("a", bytes(3 * BYTES_MAX)))
    for copies in (server.read_some("a"), server.page()[1]):
        assert (set(copies.found), copies.left_out) == ({"a"}, [])
        assert copies.found["a"].payload == bytes(3 * BYTES_MAX)


@pytest.mark.parametrize(
    ("sizes", "left_out"),
    [
        ((512 * KIB - TABLE, 512 * KIB - TABLE), []),  # exactly the limit
        ((512 * KIB - TABLE, 512 * KIB - TABLE, 1), ["2"]),
        ((1, BYTES_MAX - TABLE), ["1"]),
        ((BYTES_MAX - 2 * TABLE, 0), []),
        ((2 * BYTES_MAX, 2 * BYTES_MAX), ["1"]),
        ((2 * BYTES_MAX, 1), ["1"]),
        ((0, 2 * BYTES_MAX), ["1"]),
    ],
)
def test_limit_of_bytes(server: OneServer, sizes: tuple[int, ...], left_out: list[str]) -> None:
    ids = [str(n) for n in range(len(sizes))]
    server.put(*(Put(id, bytes(size)) for id, size in zip(ids, sizes, strict=True)))
    copies = server.read_some(*ids)
    assert copies.left_out == left_out
    assert [*copies.found, *copies.left_out] == ids


def test_items_without_payload_are_never_left_out(server: OneServer) -> None:
    """Tombstones, and decisions whose push has not come: there is nothing to wait for."""
    server.put(Put("large", bytes(2 * BYTES_MAX)))
    server.settle(put_and_claim(server, Put("gone", priority=9)).only.settle("ack"))
    server.apply(Applied("bare", packed_item(Version(1, 2), State.CLAIMED, token="ann/1")))
    copies = server.read_some("large", "gone", "bare", "unknown")
    assert {id: copy.payload is None for id, copy in copies.found.items()} == {
        "large": False,
        "gone": True,
        "bare": True,
    }
    assert copies.left_out == []


LIMIT = 1_000


@given(st.lists(st.integers(0, 2 * LIMIT), min_size=1, max_size=30))
def test_every_reply_keeps_to_the_limit_and_goes_on(pair: Pair, sizes: list[int]) -> None:
    pair.reset()
    server, left = pair.one, [str(n) for n in range(len(sizes))]
    server.limits["BYTES_MAX"] = LIMIT
    try:
        server.put(*(Put(id, bytes(size)) for id, size in zip(left, sizes, strict=True)))
        while left:
            found, left_out = server.read_some(*left)
            assert found, "no call is in vain"
            assert {*found, *left_out} == set(left)
            assert (
                sum(len(copy.payload or b"") for copy in found.values()) <= LIMIT
                or len([copy for copy in found.values() if copy.payload]) == 1
            )
            left = left_out
    finally:
        server.limits.clear()


def test_large_payloads_are_copied(server: OneServer, other: OneServer) -> None:
    payloads = {str(n): bytes([n]) * 600 * KIB for n in range(7)} | {"huge": bytes(3 * BYTES_MAX)}
    for id, payload in payloads.items():
        server.put(Put(id, payload))
    assert copy(server, other) == len(payloads)
    assert other.contents().payloads == payloads


def test_items_are_read_and_copied_by_their_ids(server: OneServer, other: OneServer) -> None:
    """As many as there are, in as many calls as their payloads need; unknown ones are left out."""
    ids = server.put_numbered(2 * copying.READ_MAX + 1)
    server.put(*(Put(f"large{n}", bytes(600 * KIB)) for n in range(3)))
    large = [f"large{n}".encode() for n in range(3)]
    asked = [id.encode() for id in ids] + large
    carried_out(copy_items(place(SOURCE), place(TARGET), "q", [*asked, b"unknown"]), source=server, target=other)
    assert other.contents().records == server.contents().records
    assert other.contents().payloads == server.contents().payloads


def test_copied_live_item_leaves_the_payload_of_a_tombstone(server: OneServer, other: OneServer) -> None:
    """The target knows of an ack that the source has not heard of.  The producer's clock was ahead, so the item seems
    to be pushed after its removal; but it is the same life, and only the target may have its bytes."""
    pushed_at_ms = int(time.time() * 1000) + WINDOW_MS // 2
    for each in (server, other):
        each.put(Put("a", b"bytes", pushed_at_ms=pushed_at_ms))
    claim = server.claim().only
    assert other.apply(claim.apply()) == ([], [])
    other.settle(claim.settle("ack"))
    server.epoch = other.epoch = 2
    server.fence("ann")
    server.command("HDEL", server.key("payloads"), "a")
    carried_out(copy_items(place(SOURCE), place(TARGET), "q", [b"a"]), source=server, target=other)
    assert other.contents().payloads == {"a": b"bytes"}


# -- metadata and install ------------------------------------------------------------------------------------------


def test_metadata_of_an_unknown_queue(server: OneServer) -> None:
    before = server.now_us()
    items, clock, floor_ms, owners = server.metadata()
    assert (items, floor_ms, owners) == (0, 0, {})
    assert before <= clock <= server.now_us()


def test_standing_counts_tombstones_too(server: OneServer) -> None:
    one_of_each(server)
    assert server.metadata().items == len(STATES)


def test_standing_names_last_requests_and_fenced_owners(server: OneServer) -> None:
    server.claim("ann", seq=3)
    server.claim("ann", seq=5)
    server.claim("bob", seq=1)
    server.fence("bob")
    server.fence("eve")  # never claimed here
    time.sleep(0.02)
    owners = server.metadata().owners
    assert owners.keys() == {"ann", "bob", "eve"}
    assert owners["ann"] == (5, -1)
    assert [owners[name][0] for name in ("bob", "eve")] == [1, 0]
    assert all(20 <= owners[name][1] < 20_000 for name in ("bob", "eve"))


def test_standing_names_the_floor(server: OneServer) -> None:
    server.settle(put_and_claim(server, "a").only.settle("ack"), put_window_ms=0)
    after_the_push = 1  # the floor is the millisecond after it, which may not have come
    assert server.now_ms() - 20_000 < server.metadata().floor_ms <= server.now_ms() + after_the_push


def test_installing_names_the_queue_and_the_time(server: OneServer) -> None:
    assert server.queues() == set()
    before = server.now_us()
    assert before <= server.install() <= server.now_us()
    assert server.queues() == {"q"}
    assert server.key_names() == {"server", "queues"}


@pytest.mark.parametrize(("held", "given", "left"), [(0, 7, 7), (7, 9, 9), (9, 7, 9), (9, 10, 10), (10, 9, 10)])
def test_greater_number_and_floor_win(server: OneServer, held: int, given: int, left: int) -> None:
    """They are compared as numbers."""
    server.install(held, {"ann": (held, -1)})
    server.install(given, {"ann": (given, -1)})
    metadata = server.metadata()
    assert (metadata.floor_ms, metadata.owners) == (left, {"ann": (left, -1)})


def test_large_numbers_stay_exact(server: OneServer) -> None:
    floor_ms, seq = 1_800_000_000_123, 2**31 + 1
    server.install(floor_ms, {"ann": (seq, -1)})
    assert (server.metadata().floor_ms, server.metadata().owners["ann"][0]) == (floor_ms, seq)


def test_puts_from_before_an_installed_floor_are_refused(server: OneServer) -> None:
    """Tombstones: the source may have dropped those of what was removed before then."""
    now_ms = server.now_ms()
    server.install(now_ms - 1000)
    assert server.put(Put("old", pushed_at_ms=now_ms - 1001)) == [1]
    assert server.put(Put("new", pushed_at_ms=now_ms - 1000)) == []


def test_installed_owner_is_known(server: OneServer) -> None:
    server.install(0, {"ann": (7, -1)})
    assert server.owners() == {"ann"}
    assert status(lambda: server.claim("ann", seq=6))[0] == "OUTDATED"
    assert server.claim("ann", seq=8).ids == []


def test_installed_fence_refuses(server: OneServer) -> None:
    """Claims: a dead owner's late requests are refused by every server that may become the primary."""
    server.install(0, {"ann": (7, 100), "eve": (0, 0)})
    assert status(lambda: server.claim("ann", seq=8))[0] == "FENCED"
    assert status(lambda: server.claim("eve", seq=1))[0] == "FENCED"
    assert server.owners() == {"ann"}, "who never claimed here has nothing to be dealt with"


def test_fenced_owners_keep_their_age(server: OneServer) -> None:
    server.install(0, {"ann": (7, 300_000)})
    assert 300_000 <= server.metadata().owners["ann"][1] < 320_000


def test_fenced_here_already_is_fenced_since_then(server: OneServer) -> None:
    server.fence("ann")
    server.install(0, {"ann": (7, 300_000)})
    seq, ago_ms = server.metadata().owners["ann"]
    assert seq == 7
    assert 0 <= ago_ms < 20_000


def test_who_is_fenced_here_stays_fenced(server: OneServer) -> None:
    server.fence("ann")
    server.install(0, {"ann": (7, -1)})
    assert server.metadata().owners["ann"][1] >= 0


def test_old_fences_are_forgotten_with_the_next(server: OneServer) -> None:
    """Bounded in memory: an installed one is no younger than it was."""
    server.install(0, {"ann": (0, 700_000), "bob": (0, 500_000)})
    server.fence("eve")
    assert server.metadata().owners.keys() == {"bob", "eve"}


def test_installing_again_changes_nothing(server: OneServer) -> None:
    known = {"ann": (7, 5_000), "bob": (3, -1)}
    server.install(9, known)
    keys = [server.key(name) for name in ("owners", "fenced_owners", "lead")]
    before = server.pipeline(*(("DUMP", key) for key in keys))
    server.install(9, known)
    assert server.pipeline(*(("DUMP", key) for key in keys)) == before


# -- heads and compare ---------------------------------------------------------------------------------------------

HEAD = 9


def all_heads(server: OneServer, count: int = 500) -> dict[str, bytes]:
    heads: dict[str, bytes] = {}
    cursor = b"0"
    while True:
        cursor, page = server.heads(cursor, count)
        heads |= page
        if cursor == b"0":
            return heads


def test_heads_are_how_the_records_begin(server: OneServer) -> None:
    one_of_each(server)
    assert all_heads(server) == {id: packed[:HEAD] for id, packed in server.contents().packed.items()}


def test_heads_leave_out_expired_tombstones(server: OneServer) -> None:
    """Servers drop them at different times: affirmed, they would never go.  A pause's own record never expires."""
    for id in ("fresh", "old"):
        server.settle(put_and_claim(server, id).only.settle("ack"))
    server.age("old", 3 * WINDOW_MS)
    server.pause()
    server.resume()
    server.age(PAUSE, 3 * WINDOW_MS)
    assert set(server.heads()[1]) == {"fresh", PAUSE}


def test_heads_of_many_items_come_in_pages(server: OneServer) -> None:
    ids = server.put_numbered(3_000)
    cursor, page = server.heads(count=500)
    assert cursor != b"0"
    assert 500 <= len(page) < 700
    assert set(all_heads(server)) == set(ids)


def test_copy_compares_equal(server: OneServer, other: OneServer) -> None:
    """Tombstones have no payload and are equal all the same."""
    one_of_each(server)
    copy(server, other)
    assert other.compare(all_heads(server)) == ([], [])
    assert server.compare(all_heads(other)) == ([], [])


@given(histories, histories)
def test_compare_finds_exactly_what_differs(pair: Pair, history: list[Step], another: list[Step]) -> None:
    for player, steps in zip(pair.reset(), (history, another), strict=True):
        player.play(steps)
    pair.agree_on_the_view()
    here, there = (server.contents() for server in pair)
    heads = all_heads(pair.two)
    unknown, different = pair.one.compare(heads) if heads else ([], [])
    ids = list(heads)
    assert {ids[position - 1] for position in unknown} == there.bundles.keys() - here.bundles.keys()
    lacking = here.living() - here.payloads.keys()
    assert {ids[position - 1] for position in different} == {
        id
        for id, bundle in here.bundles.items()
        if id in there.bundles and (bundle.version != there.bundles[id].version or lacking & {*ids_of(id, bundle)})
    }


Answers = tuple[list[int], list[int]]
"""Positions of what is unknown, and of what is known otherwise."""


def head(epoch: int, n: int) -> bytes:
    return packed_item(Version(epoch, n), State.QUEUED)[:HEAD]


COMPARED: list[tuple[dict[str, bytes], Answers]] = [
    ({"unknown": head(0, 1)}, ([1], [])),
    ({"ready": head(0, 1)}, ([], [])),
    ({"ready": head(1, 2)}, ([], [1])),  # newer there
    ({"claimed": head(0, 1)}, ([], [1])),  # newer here
    ({"claimed": head(1, 2)}, ([], [])),
    ({"gone": head(1, 3)}, ([], [])),
    ({"gone": head(1, 2)}, ([], [1])),
    ({"dead": head(1, 3)}, ([], [])),
    ({"ready": b""}, ([], [1])),
]


@pytest.mark.parametrize(("there", "answer"), COMPARED)
def test_compare(server: OneServer, there: Mapping[str, bytes], answer: Answers) -> None:
    one_of_each(server)
    assert server.compare(there) == answer


def test_compare_answers_by_position(server: OneServer) -> None:
    server.put("a", "b", "c")
    queued, dead = head(0, 1), head(1, 3)
    there = {"x": queued, "a": queued, "b": dead, "y": queued, "c": dead}
    assert server.compare(there) == ([1, 4], [3, 5])


@pytest.mark.parametrize("state", [State.QUEUED, State.CLAIMED, State.DEAD])
def test_lack_of_a_payload_is_a_difference(server: OneServer, state: State) -> None:
    """Rule 2: the item lives here, and could not be handed out."""
    server.apply(Applied("a", packed_item(Version(1, 2), state, token="ann/1"), 60_000))
    assert server.compare({"a": head(1, 2)}) == ([], [1])
    server.apply(Applied("a", packed_item(Version(1, 2), state, token="ann/1"), 60_000, b"p"), payloads=True)
    assert server.compare({"a": head(1, 2)}) == ([], [])


def test_comparing_changes_nothing(server: OneServer) -> None:
    one_of_each(server)
    before = server.contents()
    server.compare({"unknown": head(0, 1), "ready": b""})
    all_heads(server)
    assert server.contents() == before


def test_1000_heads_are_compared_at_once(server: OneServer) -> None:
    """A page may be larger than asked for."""
    server.put_numbered(1_000)
    heads = all_heads(server)
    assert server.compare(heads) == ([], [])
    server.reset()
    assert server.compare(heads) == (list(range(1, 1_001)), [])


# -- affirm --------------------------------------------------------------------------------------------------------


def affirmed(record: ItemRecord, epoch: int) -> ItemRecord:
    return record._replace(version=Version(epoch, record.version.n + 1))


def test_affirmed_items_are_what_they_were_under_this_epoch(server: OneServer) -> None:
    """Scrub: whatever other servers may know of it, this is greater."""
    one_of_each(server)
    before = server.contents()
    server.epoch = 4
    decided = server.affirm(*STATES)
    after = server.contents()
    assert set(decided) == set(STATES)
    for id in STATES:
        expected = affirmed(before.records[id], 4)
        if expected.state is State.QUEUED:
            expected = expected._replace(due_us=before.moment_us(id))
        assert after.records[id] == decided[id].record == expected
    assert after.faults == []
    indexes = ("ready", "scheduled", "claimed", "dead", "payloads")
    assert {name: getattr(after, name) for name in indexes} == {name: getattr(before, name) for name in indexes}


def test_affirmed_items_come_to_another_server_as_they_are(server: OneServer, other: OneServer) -> None:
    """What it does not know, knows otherwise, or knows as something newer of an earlier epoch."""
    one_of_each(server)
    later = packed_item(Version(1, 99), State.DEAD)
    other.apply(Applied("ready", later), Applied("gone", later, 0, b"p"), Applied("claimed", later))
    server.epoch = other.epoch = 2
    began_us = server.now_us()
    decided = server.affirm(*STATES)
    payloads = server.contents().payloads
    for id, each in decided.items():
        other.apply(each.apply(payloads.get(id, b"")), payloads=True)
    took_us = other.now_us() - began_us
    source, target = server.contents(), other.contents()
    assert (target.packed, target.payloads) == (source.packed, source.payloads)
    assert target.faults == []
    for id in STATES[1:]:
        assert -1_000 <= target.moment_us(id) - source.moment_us(id) <= took_us
    assert other.compare(all_heads(server)) == ([], [])


@pytest.mark.parametrize("verb", VERBS)
def test_affirmed_claim_is_its_holders(server: OneServer, verb: str) -> None:
    """Rule 6: a claim is known by its token, and by a version no older than the one named."""
    claim = put_and_claim(server, "a").only
    server.epoch = 3
    server.affirm("a")
    server.affirm("a")
    assert server.claim("bob").ids == []
    assert server.settle(claim.settle(verb, 60_000)).outcomes == [1]


def test_affirmed_claim_is_not_another_ones(server: OneServer) -> None:
    claim = put_and_claim(server, "a").only
    server.affirm("a")
    call = claim.settle("ack")._replace(token="bob/1")
    assert server.settle(call).outcomes == [0]


def test_affirmed_claim_keeps_its_deadline(server: OneServer) -> None:
    put_and_claim(server, "a", lease_ms=50_000)
    before = server.contents().claimed
    time.sleep(0.01)
    decided = server.affirm("a")["a"]
    assert server.contents().claimed == before
    assert decided.bundle.rows[0].lease_ms == 50_000
    assert 30_000 < decided.left_ms <= 49_990


def test_affirmed_item_that_has_become_due_is_ready(server: OneServer) -> None:
    server.put(Put("a", delay_ms=1))
    time.sleep(0.005)
    assert server.affirm("a")["a"].left_ms < 0
    assert server.contents().homes("a") == {"ready"}
    assert server.contents().faults == []
    assert server.claim().ids == ["a"]


def test_affirmed_items_keep_their_order(server: OneServer) -> None:
    ids = server.put_numbered(200)
    server.affirm(*reversed(ids))
    assert server.claim(count=200).ids == ids


def test_affirmed_tombstone_stays(server: OneServer) -> None:
    """Rule 8: under its new version; the entry of the old one does not take it along."""
    server.settle(put_and_claim(server, "a").only.settle("ack"))
    server.epoch = 2
    assert server.affirm("a")["a"].record.state is State.GONE
    assert server.contents().faults == []
    server.put("a")
    assert server.claim().ids == []


def test_affirmed_tombstone_is_dropped_in_the_end(server: OneServer) -> None:
    server.settle(put_and_claim(server, "a").only.settle("ack"))
    server.affirm("a")
    for id in ("b", "c"):
        time.sleep(0.002)  # it is pushed after what was dropped
        server.settle(put_and_claim(server, id).only.settle("ack"), put_window_ms=0)
    assert server.contents().records == {}
    assert server.contents().tombstones == []


def test_unknown_items_are_not_affirmed(server: OneServer) -> None:
    server.put("a")
    assert set(server.affirm("unknown", "a", "never")) == {"a"}
    assert set(server.contents().records) == {"a"}
    assert server.affirm("unknown") == server.affirm() == {}


def test_item_named_twice_is_affirmed_once(server: OneServer) -> None:
    server.put("a", "b")
    decided = server.affirm("a", "b", "a", "a")
    assert {id: each.record.version for id, each in decided.items()} == {"a": Version(1, 2), "b": Version(1, 2)}
    assert server.contents().records["a"].version == Version(1, 2)


def test_affirming_mends_indexes(server: OneServer) -> None:
    """Every prefix of a script's writes is safe; a key that was lost by hand is none."""
    one_of_each(server)
    server.pipeline(*(("DEL", server.key(name)) for name in ("ready", "scheduled", "claimed", "dead")))
    server.affirm(*STATES)
    assert server.contents().faults == []


def test_item_without_payload_is_affirmed(server: OneServer) -> None:
    """Its holder may still be at it."""
    server.apply(Applied("a", packed_item(Version(1, 2), State.CLAIMED, token="ann/1", lease_ms=9), 60_000))
    record = server.affirm("a")["a"].record
    assert (record.version, record.state, record.token) == (Version(1, 3), State.CLAIMED, "ann/1")


def test_1000_items_are_affirmed_at_once(server: OneServer) -> None:
    ids = server.put_numbered(1_000)
    assert set(server.affirm(*ids)) == set(ids)
    assert server.contents().faults == []


# -- wipe ----------------------------------------------------------------------------------------------------------


def fill_every_key(server: OneServer) -> None:
    one_of_each(server)
    server.fence("zoe")
    server.push(Put("keyed", b"K", key="k", ttl_ms=60_000))
    server.put(Put("first", group="g"), Put("second", group="g"))
    server.command("ZADD", server.key("waiting"), server.now_ms(), "eve")
    server.command("HSET", server.key("reports"), "entry", "a report")
    server.command("ZADD", server.key("recent"), server.now_us(), "entry")
    server.command("HSET", server.key("aside"), "bundle", "what is left of it")


def keys_of(server: OneServer) -> set[str]:
    """Names of the keys of this queue."""
    return {name.decode() for name in cast("list[bytes]", server.command("KEYS", server.key("*")))}


def test_wiping_knows_every_key() -> None:
    assert set(SCRIPTS["wipe"].keys) == {name for script in SCRIPTS.values() for name in script.keys}


def test_wiped_queue_is_gone(server: OneServer) -> None:
    """Catch-up (2)."""
    fill_every_key(server)
    assert {name.rpartition(":")[2] for name in keys_of(server)} == set(SCRIPTS["wipe"].keys) - {"server", "queues"}
    server.wipe()
    assert keys_of(server) == set()
    assert server.queues() == set()
    assert server.key_names() == {"server"}
    assert server.metadata()[::2] == (0, 0)


def test_other_queues_stay(server: OneServer) -> None:
    fill_every_key(server)
    for name in ("q2", "q:q", "other"):
        server.queue = name
        fill_every_key(server)
    before, metadata = server.contents(), server.metadata()
    server.queue = "q"
    server.wipe()
    assert server.queues() == {"q2", "q:q", "other"}
    server.queue = "other"
    assert server.contents() == before
    assert server.metadata().owners.keys() == metadata.owners.keys()
    assert len(keys_of(server)) == len(SCRIPTS["wipe"].keys) - 2


def test_wiping_again_is_ok(server: OneServer) -> None:
    fill_every_key(server)
    server.wipe()
    server.wipe()
    assert server.key_names() == {"server"}


def test_wiped_queue_begins_anew(server: OneServer) -> None:
    """Neither tombstones, nor the floor, nor numbers of requests are left."""
    server.settle(put_and_claim(server, "a").only.settle("ack"), put_window_ms=0)
    server.install(server.now_ms(), {"ann": (99, 0)})
    server.wipe()
    server.put(Put("a", pushed_at_ms=server.now_ms() - 1_000))
    assert server.claim("ann", seq=1).ids == ["a"]


def test_late_wipe_is_stale(server: OneServer) -> None:
    """Rule 10: the learner has adopted a later epoch by then."""
    fill_every_key(server)
    before = server.contents()
    server.seal(2)
    assert status(lambda: server.wipe()) == ("STALE", (b"2",))
    assert server.contents() == before
    server.epoch = 2
    assert server.queues() == {"q"}


@pytest.mark.parametrize("generation", ["g0", "g2", ""])
def test_wipe_of_another_life_is_refused(server: OneServer, generation: str) -> None:
    """Rule 10: a late duplicate can never wipe a newer life, nor an older one."""
    fill_every_key(server)
    before = server.contents()
    assert status(lambda: server.wipe(generation=generation, epoch=9)) == ("NOTINSYNC", (b"g1",))
    assert server.contents() == before


def test_server_that_was_flushed_has_nothing_to_wipe(server: OneServer) -> None:
    server.command("FLUSHALL")
    assert status(lambda: server.wipe()) == ("NOTINSYNC", (b"",))
    assert server.key_names() == set()


# -- enrol ---------------------------------------------------------------------------------------------------------


def enrolment(server: OneServer) -> object:
    return server.command("HMGET", "{t}:server", "generation", "epoch", "name")


def test_late_enrolment_is_refused(server: OneServer) -> None:
    """A server that was flushed meanwhile has no generation left to compare: only time tells a late duplicate."""
    server.command("FLUSHALL")
    late = server.now_us() - 10_001_000
    assert status(lambda: server.enrol("g2", clock=late, window_ms=10_000)) == ("LATE", ())
    assert server.key_names() == set()
    server.enrol("g2", clock=server.now_us() - 5_000_000, window_ms=10_000)


def test_enrolment_is_in_time_by_the_servers_clock_alone(server: OneServer) -> None:
    """A clock that was set back meanwhile does no harm."""
    server.enrol("g2", "g1", clock=server.now_us() + 60_000_000, window_ms=1)
    assert enrolment(server) == [b"g2", b"1", b"redis-1"]


@pytest.mark.parametrize(("generation", "expected"), [("g1", ""), ("g2", "g1"), ("g2", "g0")])
def test_late_enrolment_is_refused_whatever_it_says(server: OneServer, generation: str, expected: str) -> None:
    before = enrolment(server)
    assert status(lambda: server.enrol(generation, expected, clock=1, window_ms=1))[0] == "LATE"
    assert enrolment(server) == before


def test_server_that_has_seen_a_later_epoch_is_not_enrolled(server: OneServer) -> None:
    """The view that says so is not the present one; or ZooKeeper has lost data."""
    server.seal(10)
    assert status(lambda: server.enrol("g2", "g1", epoch=9)) == ("STALE", (b"10",))
    assert enrolment(server) == [b"g1", b"10", b"redis-1"]
    server.enrol("g2", "g1", epoch=10)
    assert enrolment(server) == [b"g2", b"10", b"redis-1"]


def test_server_of_another_generation_is_not_enrolled(server: OneServer) -> None:
    """Rule 10."""
    assert status(lambda: server.enrol("g3", "g0", holding=1)) == ("MISMATCH", (b"g1",))
    assert status(lambda: server.enrol("g3", "", holding=1)) == ("MISMATCH", (b"g1",))
    assert enrolment(server) == [b"g1", b"1", b"redis-1"]


def test_flushed_server_is_of_another_generation(server: OneServer) -> None:
    server.command("FLUSHALL")
    assert status(lambda: server.enrol("g2", "g1")) == ("MISMATCH", (b"",))
    assert server.key_names() == set()


def test_server_with_items_is_enrolled_only_where_that_is_expected(server: OneServer) -> None:
    """Founding takes over nothing silently; who catches up wipes afterwards, who recovers has merged before."""
    one_of_each(server)
    before = server.contents()
    assert status(lambda: server.enrol("g2", "g1", holding=0)) == ("HOLDSDATA", ())
    assert enrolment(server) == [b"g1", b"1", b"redis-1"]
    server.enrol("g2", "g1", holding=1)
    assert enrolment(server) == [b"g2", b"1", b"redis-1"]
    assert server.contents() == before


def test_nobody_believes_what_a_server_holds_under_another_generation(server: OneServer) -> None:
    one_of_each(server)
    server.enrol("g2", "g1", holding=1)
    assert status(lambda: server.page()) == ("NOTINSYNC", (b"g2",))
    assert status(lambda: server.claim()) == ("NOTINSYNC", (b"g2",))


@pytest.mark.parametrize("holding", [0, 1])
def test_enrolment_repeated_is_ok(server: OneServer, holding: int) -> None:
    """Also when items have come meanwhile, and a later epoch."""
    server.enrol("g2", "g1", holding=holding)
    server.put(Put("a", b"p", pushed_at_ms=PUSHED_AT_MS), generation="g2")
    server.seal(5, "g2")
    server.enrol("g2", "g1", holding=holding)
    assert enrolment(server) == [b"g2", b"5", b"redis-1"]


def test_enrolment_in_the_same_life_gives_another_name(server: OneServer) -> None:
    server.enrol("g2", "g1", name="redis-9")
    server.enrol("g2", "g1", name="redis-10")
    assert enrolment(server) == [b"g2", b"1", b"redis-10"]


def test_emptied_server_is_enrolled(server: OneServer) -> None:
    one_of_each(server)
    server.wipe()
    server.enrol("g2", "g1", holding=0)


# -- reserve -------------------------------------------------------------------------------------------------------


def wait_until_free(hold_ms: int) -> None:
    time.sleep((hold_ms + 2) / 1000)


def test_reserved_server_is_taken(server: OneServer) -> None:
    server.reserve("one", 10_000)
    name, (left_ms,) = status(lambda: server.reserve("two", 10_000))
    assert name == "TAKEN"
    assert isinstance(left_ms, int)
    assert 5_000 < left_ms <= 10_000


def test_reservation_is_kept_by_who_has_it(server: OneServer) -> None:
    """From each time on when it asks."""
    server.reserve("one", 60)
    time.sleep(0.04)
    server.reserve("one", 60_000)
    time.sleep(0.04)
    assert status(lambda: server.reserve("two", 60_000))[0] == "TAKEN"


def test_reservation_ends_by_itself(server: OneServer) -> None:
    server.reserve("one", 20)
    wait_until_free(20)
    server.reserve("two", 10_000)
    assert status(lambda: server.reserve("one", 10_000))[0] == "TAKEN"


def test_who_is_refused_leaves_the_reservation_as_it_is(server: OneServer) -> None:
    server.reserve("one", 10_000)
    before = server.command("HGETALL", "{t}:server")
    status(lambda: server.reserve("two", 10_000))
    assert server.command("HGETALL", "{t}:server") == before


def test_clock_that_was_set_back_reserves_nothing_for_ever(server: OneServer) -> None:
    """Longer than anybody asks for it: nobody else may be kept out until that clock has caught up."""
    server.reserve("one", 3_600_000)
    server.reserve("two", 10_000)


def test_server_without_generation_is_reserved_and_gets_none(server: OneServer) -> None:
    """Catch-up: it is reserved before it is enrolled."""
    server.command("FLUSHALL")
    server.reserve("one")
    assert status(lambda: server.reserve("two"))[0] == "TAKEN"
    assert server.command("HMGET", "{t}:server", "generation", "epoch", "name") == [None, None, None]
    assert status(lambda: server.seal(1)) == ("NOTINSYNC", (b"",))
    server.enrol("g2", "")
    assert status(lambda: server.reserve("two"))[0] == "TAKEN"


def test_reserving_changes_neither_life_nor_epoch(server: OneServer) -> None:
    one_of_each(server)
    before, contents = enrolment(server), server.contents()
    server.ask(calls.Reserve("one", 10_000), epoch=99, generation="g9")
    assert enrolment(server) == before
    assert server.contents() == contents


# -- memory --------------------------------------------------------------------------------------------------------


def test_full_server_is_compared_copied_and_wiped(server: OneServer) -> None:
    """Memory pressure: nobody is evicted for it, and a full server may be one that is to be wiped."""
    one_of_each(server)
    server.command("CONFIG", "SET", "maxmemory", 1)
    try:
        with pytest.raises(ScriptFailed, match=r"^OOM"):
            server.put("a")
        assert set(server.page()[1].found) == set(server.read_some(*STATES).found) == set(STATES)
        assert server.compare(all_heads(server)) == ([], [])
        assert set(server.affirm("ready")) == {"ready"}
        server.install(1, {"bob": (1, 0)})
        server.reserve("one")
        server.enrol("g2", "g1", holding=1)
        server.wipe(generation="g2")
        assert server.key_names() == {"server"}
    finally:
        server.command("CONFIG", "SET", "maxmemory", 0)


# -- carrying unfinished pushes on -------------------------------------------------------------------------------------


def forward(server: OneServer, *items: str, clock: int | None = None, window_ms: int = 10_000) -> dict[str, Decided]:
    given = [Applied(id, fresh(0, OLD_MS), 0, b"payload") for id in items]
    return server.forward(*given, clock=clock, window_ms=window_ms)


OLD_MS = 1_700_000_000_000


def test_unknown_items_are_carried_on_under_the_present_epoch(server: OneServer) -> None:
    server.epoch = 7
    decided = forward(server, "i", "i", "j")
    assert {id: record.record.version for id, record in decided.items()} == {"i": (7, 2), "j": (7, 2)}
    assert set(server.claim().handed) == {"i", "j"}


def test_what_is_known_also_as_a_tombstone_is_left_alone(server: OneServer) -> None:
    server.put("queued")
    server.settle(*(claimed.settle("ack") for claimed in put_and_claim(server, "gone").decided.values()))
    before = server.contents()
    assert forward(server, "queued", "gone") == {}
    assert server.contents() == before


def test_nothing_is_carried_on_late(server: OneServer) -> None:
    """Whoever was stopped between judging and deciding: meanwhile it may have been done, acked and forgotten."""
    with pytest.raises(Refused, match="LATE"):
        forward(server, "i", clock=time.time_ns() // 1000 - 11_000_000)
    assert server.contents().records == {}


def test_nothing_from_before_a_dropped_tombstone_is_carried_on(server: OneServer) -> None:
    server.command("HSET", server.key("lead"), "floor_ms", OLD_MS + 1)
    assert forward(server, "i") == {}


def test_a_page_of_large_items_reads_no_more_than_it_sends(server: OneServer) -> None:
    server.looks = False
    for n in range(40):
        server.put(Put(f"i{n}", bytes(512 * KIB - TABLE)))
    server.command("CONFIG", "RESETSTAT")
    server.page()
    stats = cast("bytes", server.command("INFO", "commandstats")).decode()
    assert f"cmdstat_hget:calls={2}," in stats
