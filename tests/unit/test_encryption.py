"""Encrypted items: what servers see of them, changed keys, bytes that somebody has changed."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import zkrq
import zkrq.testing
from tests.harness import drain, take
from zkrq.base.codecs import Place
from zkrq.base.ids import new_id
from zkrq.client.queue import push_encoded
from zkrq.typed import Encrypted, new_key

OLD, NEW = new_key(), new_key()
SECRET = {"card": "4111 1111 1111 1111"}


def test_nothing_of_an_item_is_left_to_read_and_no_two_are_alike() -> None:
    codec = Encrypted(zkrq.JSON, [OLD])
    one, two = codec.encode(SECRET), codec.encode(SECRET)
    assert one != two
    assert b"4111" not in one + two
    assert codec.decode(one) == codec.decode(two) == SECRET
    assert OLD not in repr(codec)


@given(st.binary(), st.data())
def test_any_changed_byte_is_noticed(item: bytes, data: st.DataObject) -> None:
    codec = Encrypted(zkrq.RAW, [OLD])
    encrypted = codec.encode(item)
    assert codec.decode(encrypted) == item
    place = data.draw(st.integers(0, len(encrypted) - 1))
    changed = bytearray(encrypted)
    changed[place] ^= data.draw(st.integers(1, 255))
    for broken in (bytes(changed), encrypted[:place]):
        with pytest.raises(zkrq.CodecError):
            codec.decode(broken)


def test_a_key_is_changed_without_a_gap() -> None:
    steps = [Encrypted(zkrq.JSON, keys) for keys in ([OLD], [OLD, NEW], [NEW, OLD], [NEW])]
    for one, next_one in pairwise(steps):  # processes of two steps run at the same time
        assert next_one.decode(one.encode(1)) == one.decode(next_one.encode(1)) == 1
    with pytest.raises(zkrq.CodecError, match=r"encrypted with key \w{16}; this process has \w{16}: give it that one"):
        steps[3].decode(steps[0].encode(SECRET))


def test_keys_that_are_read_for_each_item() -> None:
    keys = [OLD]
    codec = Encrypted(zkrq.JSON, lambda: keys)
    old = codec.encode(1)
    keys.insert(0, NEW)
    assert codec.decode(old) == 1
    assert Encrypted(zkrq.JSON, [NEW]).decode(codec.encode(2)) == 2


def test_plain_items_are_taken_only_if_that_is_said() -> None:
    plain = zkrq.JSON.encode(SECRET)
    assert Encrypted(zkrq.JSON, [OLD], accept_plain=True).decode(plain) == SECRET
    with pytest.raises(zkrq.CodecError, match="not encrypted"):
        Encrypted(zkrq.JSON, [OLD]).decode(plain)


@pytest.mark.parametrize("keys", [[], "A" * 44, ["short"], [b"x" * 31], [None], ["ä" * 32]], ids=repr)
def test_bad_keys_are_refused_and_not_quoted(keys: object) -> None:
    with pytest.raises(zkrq.ConfigError, match="key") as caught:
        Encrypted(zkrq.JSON, keys)  # pyright: ignore[reportArgumentType]
    assert "short" not in str(caught.value)
    assert OLD not in str(caught.value)


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    with pytest.raises(zkrq.ConfigError, match=r"zkrq\[encryption\]"):
        Encrypted(zkrq.JSON, [OLD])


@pytest.mark.anyio
async def test_a_queue_of_encrypted_items() -> None:
    async with zkrq.testing.cluster() as cluster:
        queue = cluster.queue("secrets", codec=Encrypted(zkrq.JSON, [OLD]))
        assert cluster.queue("secrets", codec=Encrypted(zkrq.JSON, [OLD])) is queue
        with pytest.raises(zkrq.ConfigError):
            cluster.queue("secrets", codec=Encrypted(zkrq.JSON, [NEW]))
        await queue.push(SECRET)
        (item,) = [item async for item in queue.scan("ready")]
        assert b"4111" not in item.payload
        assert (await take(queue)).item == SECRET
        await queue.push_many([1, 2, 3])
        assert await drain(cluster, "secrets") == [1, 2, 3]


# -- bound to their place ----------------------------------------------------------------------------------------------

HERE = Place("shop", "orders", "r1")


def codec(**options: Any) -> Encrypted[Any]:
    return Encrypted(zkrq.JSON, [OLD], **options)


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        (Place("shop", "orders", "r2"), "for queue orders of shop, id r1, .* pushed under another id"),
        (Place("shop", "payouts", "r1"), r"if you moved it, give accept_from=\['shop/orders'\]"),
        (Place("shop2", "orders", "r1"), "for queue orders of shop, id r1, and somebody copied it here"),
        (Place("shop", "topic orders"), "somebody copied it here"),
        (None, "give the codec to that queue"),
    ],
    ids=repr,
)
def test_bytes_are_worth_nothing_in_another_place(place: Place | None, reason: str) -> None:
    encrypted = codec().at(HERE).encode(SECRET)
    assert codec().at(HERE).decode(encrypted) == SECRET
    with pytest.raises(zkrq.CodecError, match=reason):
        (codec() if place is None else codec().at(place)).decode(encrypted)


def test_an_id_that_zkrq_made_is_not_bound_to() -> None:
    """An import gives such an item another id."""
    encrypted = codec().at(HERE._replace(id=new_id())).encode(SECRET)
    for id in ("", new_id(), "imported:1"):
        assert codec().at(HERE._replace(id=id)).decode(encrypted) == SECRET


@pytest.mark.parametrize("accepted", ["orders", "shop/orders"])
def test_what_an_operator_moved_is_accepted_under_any_id(accepted: str) -> None:
    encrypted = codec().at(HERE).encode(SECRET)
    there = codec(accept_from=[accepted]).at(Place("shop", "payouts", "moved:orders:r1:0"))
    assert there.decode(encrypted) == SECRET
    if accepted == "orders":  # of this cluster only
        with pytest.raises(zkrq.CodecError):
            there.at(Place("shop2", "payouts")).decode(encrypted)
    with pytest.raises(zkrq.CodecError, match="somebody copied it here"):
        there.decode(codec().at(HERE._replace(queue="refunds")).encode(SECRET))
    with pytest.raises(zkrq.ConfigError, match="accept_from: a list"):
        codec(accept_from=accepted)


def test_items_of_the_former_format_are_read_until_that_is_switched_off() -> None:
    former = codec().encode(SECRET)
    assert codec().at(HERE).decode(former) == SECRET
    assert codec(accept_unplaced=False).decode(former) == SECRET  # of an outbox
    with pytest.raises(zkrq.CodecError, match="accept_unplaced"):
        codec(accept_unplaced=False).at(HERE).decode(former)


@given(st.data())
def test_any_changed_byte_of_the_place_is_noticed(data: st.DataObject) -> None:
    encrypted = bytearray(codec().at(HERE).encode(SECRET))
    place = data.draw(st.integers(0, len(encrypted) - 1))
    encrypted[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(zkrq.CodecError):
        codec().at(HERE).decode(bytes(encrypted))


@pytest.mark.anyio
async def test_who_reaches_the_servers_can_copy_no_encrypted_item() -> None:
    """Into another queue, or under another id; its own id stays good, wherever the item is read."""
    async with zkrq.testing.cluster() as cluster:
        refunds = cluster.queue("refunds", codec=codec())
        await refunds.push(SECRET, id="r1", headers={"by": "ann"})
        stolen = await refunds.get("r1")
        assert stolen
        assert stolen.item == SECRET
        assert [item.item async for item in refunds.find(header=("by", "ann"))] == [SECRET]
        claim = await take(refunds)
        assert claim.item == SECRET
        await claim.ack()
        payouts = cluster.queue("payouts", codec=codec())
        for queue, id in ((payouts, "r1"), (refunds, "r2")):
            await push_encoded(queue, stolen.payload, id=id, priority=0)
            assert await queue.pop_many(1, timeout=0.2) == []
            letter = await queue.get(id)
            assert letter
            assert letter.state == "dead"
            assert "somebody copied it here" in (letter.reason or "")


@pytest.mark.anyio
async def test_a_message_of_one_topic_cannot_be_sent_to_another() -> None:
    async with zkrq.testing.cluster() as cluster, cluster.listen("prices", codec=codec()) as prices:
        stolen = codec().at(Place(cluster.namespace, "topic rates")).encode("stolen")
        await cluster.broadcast("prices", stolen, codec=zkrq.RAW)
        await cluster.broadcast("prices", "good", codec=codec())
        assert await anext(prices) == "good"
