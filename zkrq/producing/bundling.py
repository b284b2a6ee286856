"""Make bundles: divide what leaves together into puts of a bundle or of one item.

Servers keep, claim and remove the items of a bundle together, so one of a hundred costs them a hundredth of a push of
its own.  An item with an id, a key, a delay or a life of its own cannot share a record with others: it is alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from zkrq.base import clock
from zkrq.base.ids import new_id_at, new_ids_at
from zkrq.producing.options import PLAIN, Options
from zkrq.producing.receipts import BundleIds
from zkrq.protocol.calls import Put
from zkrq.protocol.payloads import join
from zkrq.protocol.records import BUNDLE_MAX, fresh, in_order, with_end, with_fields
from zkrq.replication.batching import MAX_BATCH, MAX_BATCH_BYTES

T = TypeVar("T")

PUT_BYTES = 60
"""Approximate bytes of a push beside its payload."""

BUNDLE_BYTES = 1 << 14
"""Bytes of payloads in a bundle: a server reads all of them to hand out one.  A larger item is alone."""


class Push:
    """One push that waits for its batch.

    ``id`` is empty until it leaves, unless the caller gave one.  ``made_ms``: when the caller made that id, 0: none.
    """

    __slots__ = ("id", "made_ms", "options", "payload")

    def __init__(self, id: str, made_ms: int, payload: bytes, options: Options) -> None:
        self.id = id
        self.made_ms = made_ms
        self.payload = payload
        self.options = options


def bundles_of(calls: Sequence[Push], ending: str) -> tuple[list[Put], list[Sequence[int]]]:
    """Make the puts of pushes that were gathered, with ids of this ending; and for each put the positions of its
    pushes."""
    puts: list[Put] = []
    groups: list[Sequence[int]] = []
    for members, is_bundle in _in_bundles(calls):
        groups.append(members)
        some = [calls[at] for at in members]
        puts.append(_bundle(some, ending) if is_bundle else put_of(some[0], ending))
    return puts, groups


def puts_of_many(
    payloads: Sequence[bytes], options: Options, ending: str, *, are_alone: bool
) -> tuple[list[Put], list[Sequence[str]]]:
    """Make the puts of many payloads with the same options, in bundles unless they ``are_alone``; and for each put the
    ids of its items."""
    now_ms = clock.now_ms()
    if are_alone or not options.is_plain:
        ids: Sequence[str] = new_ids_at(now_ms, len(payloads))
        if ending:
            ids = [id + ending for id in ids]
        return [_alone(id, now_ms, payload, options) for id, payload in zip(ids, payloads, strict=True)], [
            (id,) for id in ids
        ]
    puts: list[Put] = []
    names: list[Sequence[str]] = []
    for part in _parts(list(map(len, payloads))):
        id, some = new_id_at(now_ms) + ending, payloads[part.start : part.stop]
        if len(some) == 1:
            puts.append(_alone(id, now_ms, some[0], options))
            names.append((id,))
        else:
            puts.append(_together(id, now_ms, some, options))
            names.append(BundleIds(id, len(some)))
    return puts, names


def put_of(call: Push, ending: str = "") -> Put:
    """Make the put of one push; it gets an id of this ending unless it has one."""
    made_ms = call.made_ms
    if not made_ms:
        made_ms = clock.now_ms()
        call.id = new_id_at(made_ms) + ending
    return _alone(call.id, made_ms, call.payload, call.options)


def chunks(payloads: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Divide payloads into batches.  If the next payload is an error, the batch before it is still sent.

    ``_divided`` would do the same, for twice the time of each item.
    """
    chunk: list[bytes] = []
    room = MAX_BATCH_BYTES
    try:
        for payload in payloads:
            room -= PUT_BYTES + len(payload)
            if chunk and (room < 0 or len(chunk) >= MAX_BATCH):
                yield chunk
                chunk, room = [], MAX_BATCH_BYTES - PUT_BYTES - len(payload)
            chunk.append(payload)
    except Exception:  # of the generator or the codec
        if chunk:
            yield chunk
        raise
    if chunk:
        yield chunk


def _divided(parts: Iterable[tuple[T, int, int]], room: int, most: int) -> Iterator[list[T]]:
    """Divide parts, each with its items and bytes, so that at most ``most`` items and ``room`` bytes come together.

    One part may be larger.  Raises as ``chunks`` does.
    """
    some: list[T] = []
    items = size = 0
    try:
        for part, count, length in parts:
            if some and (items + count > most or size + length > room):
                yield some
                some, items, size = [], 0, 0
            some.append(part)
            items, size = items + count, size + length
    except Exception:  # of the generator or the codec
        if some:
            yield some
        raise
    if some:
        yield some


def cut(payloads: Iterable[bytes], beside: int) -> Iterator[list[bytes]]:
    """Divide payloads into the bundles of a named push: the same each time, whatever headers they have.

    ``beside``: bytes of each payload that are not of its item.  Raises as ``chunks`` does.
    """
    return _divided(((payload, 1, len(payload) - beside) for payload in payloads), BUNDLE_BYTES, BUNDLE_MAX)


def named_chunks(payloads: Iterable[bytes], name: str, beside: int) -> Iterator[tuple[list[bytes], list[BundleIds]]]:
    """Divide payloads into batches of whole bundles, with the ids of each bundle.  ``name``: begins the names of these;
    ``beside``: see ``cut``."""
    bundles = ((part, len(part), sum(map(len, part)) + PUT_BYTES * len(part)) for part in cut(payloads, beside))
    numbers = itertools.count()
    for parts in _divided(bundles, MAX_BATCH_BYTES, MAX_BATCH):
        yield [*itertools.chain(*parts)], [BundleIds(f"{name}{next(numbers)}", len(part)) for part in parts]


def puts_of_named(
    payloads: Sequence[bytes], options: Options, names: Sequence[BundleIds], *, are_alone: bool
) -> tuple[list[Put], list[Sequence[str]]]:
    """Make the puts of bundles that have names, or, if they ``are_alone``, of their items; and for each put the ids of
    its items."""
    now_ms, start = clock.now_ms(), 0
    puts: list[Put] = []
    for ids in names:
        some = payloads[start : start + len(ids)]
        start += len(ids)
        if are_alone:
            puts += [_alone(id, now_ms, payload, options) for id, payload in zip(ids, some, strict=True)]
        else:
            puts.append(_together(ids.bundle, now_ms, some, options))
    return puts, [(put.id,) for put in puts] if are_alone else list(names)


def _in_bundles(calls: Sequence[Push]) -> Iterator[tuple[Sequence[int], bool]]:
    """Divide pushes into bundles of one priority, one group and one flow each: the positions of the pushes, and whether
    they are a bundle; otherwise it is one that is alone."""
    together: dict[tuple[int, str | None, bytes], list[int]] = {}
    for at, call in enumerate(calls):
        options = call.options
        if call.made_ms or not (options is PLAIN or options.is_plain):
            yield (at,), False
        else:
            together.setdefault((options.priority, options.group, options.flow), []).append(at)
    for members in together.values():
        for part in _parts([len(calls[at].payload) for at in members]):
            yield members[part.start : part.stop], len(part) > 1


def _parts(sizes: Sequence[int]) -> Iterator[range]:
    """Divide items of these sizes into parts for bundles, of nearly equal numbers."""
    whole = len(sizes)
    most = -(-whole // -(-whole // BUNDLE_MAX))
    start = length = 0
    for at, size in enumerate(sizes):
        length += size
        if at > start and (at - start >= most or length > BUNDLE_BYTES):
            yield range(start, at)
            start, length = at, size
    yield range(start, whole)


def _bundle(calls: Sequence[Push], ending: str) -> Put:
    now_ms = clock.now_ms()
    bundle = new_id_at(now_ms) + ending
    for call, id in zip(calls, BundleIds(bundle, len(calls)), strict=True):
        call.id = id
    return _together(bundle, now_ms, [call.payload for call in calls], calls[0].options)


def _together(bundle: str, made_ms: int, payloads: Sequence[bytes], options: Options) -> Put:
    record = fresh(options.priority, made_ms, size=len(payloads), group=options.group)
    return Put(bundle, with_fields(record, options.fields), join(payloads))


def _alone(id: str, made_ms: int, payload: bytes, options: Options) -> Put:
    priority, delay_ms, key, ttl_ms, _, group, _, ordered, flow, _, at_latest_ms, _, _, _ = options
    due_ms = 0 if delay_ms and options.is_held else delay_ms  # that of what is held begins when it is opened
    record = fresh(priority, made_ms, delay_ms=due_ms, key=key, ttl_ms=ttl_ms, group=group)
    if at_latest_ms:
        record = with_end(record, at_latest_ms)
    if ordered:
        record = in_order(record)
    if flow:
        record = with_fields(record, options.fields)
    return Put(id, record, join((payload,)))
