"""Encrypted items: what servers see of them, changed keys, bytes that somebody has changed."""

from __future__ import annotations

import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import zkrq
import zkrq.testing
from tests.harness import drain, take
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
