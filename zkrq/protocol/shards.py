"""Define the shard map: which shards a namespace has, and which of them take pushes.

Plain values and functions, without I/O.  A shard is a set of servers with a view of its own; the map names the shards
and says nothing of servers, so it changes only when an operator adds or removes a shard, or a queue gets its first
limit or loses its last.  Without a map there is one.

Two shards never hold the same identity, an id or a key that a caller chose, because all items of a queue that have one
go to the queue's *home*.  Usually that is a hash of its name over the shards of the map, and nothing is stored.  A
change of the shards that the hash is over begins and ends with a change of the map, and between them the map is
*settling*: the homes of the queues that there are, and of those that come, are written into registers, which count more
than the hash for good.  Of a *homed* queue every item goes home, because one server decides about all of its claims:
one with limits, or with groups in order.  The map names these.  A change of the shards goes in this order:

1. The map is settling.  Who knows it registers the home of a queue before it first uses it, in one transaction with a
   look whether the map is still this one.
2. The servers of all shards of the hash are told to refuse pushes that were placed by an older map
   (``View.map_number``).
3. All queues of these shards are listed, on every server that may ever count again, and those whose home the new hash
   would move are registered.
4. The map is changed by compare-and-set, and is not settling any more.

Each part is needed, or one id is pushed to two shards:

* Without the transaction: B finds no register under the settling map, and pauses.  The map changes.  C finds none
  either, and pushes x to where the new hash says.  B writes its choice, by the old hash, and pushes x there.
* Without (2): the map changes, and C places x by the new hash; B knows an older map, and pushes x by the old one.
* Without (3): x was pushed by the old hash before, to a queue without a register.  Pushed again, it goes elsewhere.
* With servers of the views alone in (3): a server that was evicted while the view fell below ``min_replicas`` is
  eligible, so it comes back with what it holds.  It has not heard of (2).  After the queues were listed it takes x from
  a client that has not heard of anything either; that push is pushed again, to where the new hash says; then the server
  comes back with x.
"""

from __future__ import annotations

import enum
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, NewType, TypeVar

from zkrq.protocol.znodes import count, read_object, text

ShardName = NewType("ShardName", str)

FIRST = ShardName("main")
"""The shard with which every namespace is founded.  It is never removed."""

FIRST_VIEW = "view"
"""Register of the first shard's view."""

HOMED_MAX = 1000
"""Queues of which the map keeps every item at home: every client holds them, and reads them with each change."""

NUMBERS_AHEAD = 1000
"""Numbers by which a map that went back is set ahead, so that it is later than any that a client knows."""

T = TypeVar("T")


class ShardState(enum.Enum):
    """Which pushes a shard takes.  Items are claimed from it in every state."""

    JOINING = "joining"
    """None but those of queues whose home it is: the homes of the queues that there are are being written."""
    OPEN = "open"
    DRAINING = "draining"
    """Those of queues whose home it is, and repeated ones that went there first.  No home is chosen here any more, once
    its servers have heard of it."""
    CLOSED = "closed"
    """None: it is looked through for the last time."""


class Entry(NamedTuple):
    """One shard of the map: its state, and the register of its view.

    ``since_ms``: when its servers had heard that it drains, in milliseconds since 1970 by the clock of the client that
    drained it; 0: they have not.
    """

    state: ShardState
    register: str
    since_ms: int = 0

    @property
    def is_leaving(self) -> bool:
        """Whether it drains, and its servers have not heard of it."""
        return self.state is ShardState.DRAINING and not self.since_ms

    @property
    def is_new(self) -> bool:
        """Whether no item was ever pushed to it: only a shard that was drained joins again after it was closed."""
        return self.state is ShardState.JOINING and not self.since_ms


@dataclass(frozen=True, slots=True)
class ShardMap:
    """The shards of a namespace by name.

    ``number`` grows with every change; ``by`` is unique to this map: the nonce of its writer.  ``homed``: the queues
    of which every item goes home, and the number of the map since which they do; servers that ask for that map take
    none elsewhere.  ``unknown``: fields that a later release has added, which stay as they are when the map is written
    again.
    """

    number: int = 0
    shards: Mapping[ShardName, Entry] = field(default_factory=lambda: {FIRST: Entry(ShardState.OPEN, FIRST_VIEW)})
    by: str = ""
    homed: Mapping[str, int] = field(default_factory=dict[str, int])
    unknown: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def shard_with(self, register: str) -> ShardName | None:
        """Return the shard whose view is in this register, None if there is none, or none any more."""
        return next((name for name, entry in self.shards.items() if entry.register == register), None)

    @property
    def open(self) -> Sequence[ShardName]:
        """Names of the shards that take every push, sorted."""
        return sorted(name for name, entry in self.shards.items() if entry.state is ShardState.OPEN)

    @property
    def hashed(self) -> Sequence[ShardName]:
        """Names of the shards over which homes are chosen, sorted: those that are open, and those that drain and whose
        servers have not heard of it yet."""
        return sorted(name for name, entry in self.shards.items() if entry.state is ShardState.OPEN or entry.is_leaving)

    @property
    def is_settling(self) -> bool:
        """Whether ``hashed`` is about to change."""
        return any(entry.state is ShardState.JOINING or entry.is_leaving for entry in self.shards.values())

    @property
    def used(self) -> Mapping[ShardName, Entry]:
        """The shards on which items may be."""
        return {name: entry for name, entry in sorted(self.shards.items()) if not entry.is_new}

    def check_invariants(self) -> None:
        """Assert what holds of every map that zkrq makes.  For tests: a map that is read may be from anybody.

        - The first shard is there and not closed, and some shard takes homes: a push would find no place otherwise.
        - No two shards have one register: they would have the same servers, and an item two homes in one place.
        - A shard that is closed has drained before, and one that is open does not drain: ``since_ms`` says so.
        - A queue goes home since a map that there was: servers that ask for a later one refuse every push.
        """
        assert FIRST in self.shards, "no first shard"
        assert self.shards[FIRST].state is not ShardState.CLOSED, "the first shard is closed"
        assert self.hashed, f"no shard takes homes: {self.shards}"
        registers = {entry.register for entry in self.shards.values()}
        assert len(registers) == len(self.shards), f"two shards of one register: {self.shards}"
        for name, (state, _, since_ms) in self.shards.items():
            assert since_ms >= 0, f"{name} drains since before 1970"
            assert since_ms or state is not ShardState.CLOSED, f"{name} is closed and has not drained"
            assert not since_ms or state is not ShardState.OPEN, f"{name} is open and drains"
        late = [queue for queue, number in self.homed.items() if number > self.number]
        assert not late, f"queues that go home since a later map: {late}"
        assert len(self.homed) <= HOMED_MAX, f"{len(self.homed)} queues go home"


_KNOWN = frozenset({"number", "shards", "nonce", "homed"})


def encode(map: ShardMap) -> bytes:
    """Encode the map for the register."""
    shards = {name: [entry.state.value, entry.register, entry.since_ms] for name, entry in sorted(map.shards.items())}
    content = {**map.unknown, "number": map.number, "shards": shards, "nonce": map.by}
    if map.homed:
        content["homed"] = map.homed
    return json.dumps(content, separators=(",", ":")).encode()


def decode(data: bytes | None) -> ShardMap:
    """Decode the result of ``encode``; None, a register that was never written, is a map of one shard.

    Raises ``ValueError`` for anything else.
    """
    if data is None:
        return ShardMap()
    try:
        content = read_object(data)
        shards = {
            ShardName(text(name)): Entry(ShardState(state), text(register), count(since_ms))
            for name, (state, register, since_ms) in content["shards"].items()
        }
        if FIRST not in shards:
            raise ValueError("no first shard")
        homed = {text(queue): count(number) for queue, number in content.get("homed", {}).items()}
        unknown = {name: value for name, value in content.items() if name not in _KNOWN}
        return ShardMap(count(content["number"]), shards, text(content["nonce"]), homed, unknown)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the register holds no map of shards: {data[:80]!r}") from error


# -- changes -----------------------------------------------------------------------------------------------------------


def joined(map: ShardMap, name: ShardName, register: str, by: str) -> ShardMap:
    """Add a shard that takes no pushes yet, unless there is one of that name.

    ``register``: of its view, which no other shard has or had.
    """
    if name in map.shards:
        return map
    return _changed(map, {**map.shards, name: Entry(ShardState.JOINING, register)}, by)


def begun(map: ShardMap, registers: Mapping[ShardName, str], by: str) -> ShardMap:
    """Add these shards, which take no pushes yet, to a namespace that never had others than the first."""
    new = {name: Entry(ShardState.JOINING, register) for name, register in registers.items()}
    return map if map.number else _changed(map, {**map.shards, **new}, by)


def given_up(map: ShardMap, name: ShardName, register: str, by: str) -> ShardMap:
    """Remove a new shard that has this register.  It was never opened, so no item was pushed there."""
    if map.shards.get(name) != Entry(ShardState.JOINING, register):
        return map
    return _without(map, name, by)


def renewed(map: ShardMap, by: str) -> ShardMap:
    """Return the same map under another nonce, if a new shard joins; otherwise this one.

    The shard was given the pauses of the queues as they were, and is opened by compare-and-set.  So who has changed a
    pause since makes that fail.
    """
    return replace(map, by=by) if any(entry.is_new for entry in map.shards.values()) else map


def rejoined(map: ShardMap, name: ShardName, by: str) -> ShardMap:
    """Take back that a shard was closed, or that it drains; it takes no new items until it is opened or drained.

    Raises ``ValueError`` for an unknown shard."""
    _check_known(map, name)
    state, _, since_ms = map.shards[name]
    is_gone = state is ShardState.CLOSED or (state is ShardState.DRAINING and since_ms)
    return _moved(map, name, ShardState.JOINING, since_ms, by) if is_gone else map


def opened(map: ShardMap, name: ShardName, by: str) -> ShardMap:
    """Let a shard take pushes, whether it is new or was draining.

    Raises ``ValueError`` for an unknown shard, for a closed one, and for one that drains: it joins again first.
    """
    _check_not_closed(map, name)
    if map.shards[name].state is ShardState.DRAINING and map.shards[name].since_ms:
        raise ValueError(f"shard {name} is being drained by another client: add it again")
    return _moved(map, name, ShardState.OPEN, 0, by)


def drained(map: ShardMap, name: ShardName, by: str) -> ShardMap:
    """Let a shard take no new items.  Homes are chosen there until its servers have heard of it.

    Raises ``ValueError`` for an unknown shard, for a closed one, and for the last open one.
    """
    _check_not_closed(map, name)
    if map.open == [name]:
        raise ValueError(f"shard {name} is the only one that takes pushes: add another one first")
    return _moved(map, name, ShardState.DRAINING, map.shards[name].since_ms, by)


def heard(map: ShardMap, name: ShardName, now_ms: int, by: str) -> ShardMap:
    """Note that the servers of a draining shard have heard of it, unless that was noted before.

    Raises ``ValueError`` for one that does not drain any more.
    """
    _check_not_closed(map, name)
    if map.shards[name].state is not ShardState.DRAINING:
        raise ValueError(f"shard {name} is being added again by another client: drain it again")
    return _moved(map, name, ShardState.DRAINING, map.shards[name].since_ms or now_ms, by)


def closed(map: ShardMap, name: ShardName, by: str) -> ShardMap:
    """Let a shard take no push at all.

    Raises ``ValueError`` unless it is draining and its servers know, or for the first shard.
    """
    _check_known(map, name)
    if name == FIRST:
        raise ValueError(f"shard {FIRST} stays as long as its namespace: replace its servers instead")
    if map.shards[name].state not in (ShardState.DRAINING, ShardState.CLOSED) or not map.shards[name].since_ms:
        raise ValueError(f"shard {name} takes pushes: drain it first")
    return _moved(map, name, ShardState.CLOSED, map.shards[name].since_ms, by)


def removed(map: ShardMap, name: ShardName, by: str) -> ShardMap:
    """Remove a shard whose view has ended, whatever the map says of it: who wanted to use it again was too late.

    Raises ``ValueError`` for an unknown one.
    """
    _check_known(map, name)
    return _without(map, name, by)


def kept_at_home(map: ShardMap, queues: Iterable[str], by: str) -> ShardMap:
    """Have every item of these queues go home.  Raises ``ValueError`` if there are too many such queues."""
    new = dict.fromkeys(sorted({*queues} - map.homed.keys()), map.number + 1)
    if len(homed := {**map.homed, **new}) > HOMED_MAX:
        raise ValueError(
            f"{HOMED_MAX} queues have limits or groups in order, the most in a namespace of several shards: remove "
            "those of another one (zkrq queues show QUEUE, zkrq queues set QUEUE), or delete it"
        )
    return replace(map, number=map.number + 1, homed=homed, by=by) if new else map


def spread(map: ShardMap, queue: str, by: str) -> ShardMap:
    """Let the plain items of a queue go to any shard again."""
    homed = {name: number for name, number in map.homed.items() if name != queue}
    return replace(map, number=map.number + 1, homed=homed, by=by) if queue in map.homed else map


def confirmed(map: ShardMap, queue: str, by: str) -> ShardMap:
    """Return the same map under another nonce, if every item of this queue goes home; otherwise this one.

    Who gives a queue limits does this afterwards.  So who has seen none before, and lets the queue spread, fails.
    """
    return replace(map, by=by) if queue in map.homed else map


def overtaken(map: ShardMap, by: str) -> ShardMap:
    """Return the same map under a number that no map had before: ZooKeeper was restored from an older backup, and
    clients may know a later map than this one."""
    return replace(map, number=map.number + NUMBERS_AHEAD, by=by)


def _without(map: ShardMap, name: ShardName, by: str) -> ShardMap:
    return _changed(map, {other: entry for other, entry in map.shards.items() if other != name}, by)


def _moved(map: ShardMap, name: ShardName, state: ShardState, since_ms: int, by: str) -> ShardMap:
    _check_known(map, name)
    entry = map.shards[name]._replace(state=state, since_ms=since_ms)
    return map if entry == map.shards[name] else _changed(map, {**map.shards, name: entry}, by)


def _changed(map: ShardMap, shards: Mapping[ShardName, Entry], by: str) -> ShardMap:
    return replace(map, number=map.number + 1, shards=shards, by=by)


def check_same(map: ShardMap, name: ShardName, register: str) -> None:
    """Raise ``ValueError`` if the shard with this register was removed, and there is another one of its name."""
    if name in map.shards and map.shards[name].register != register:
        raise ValueError(f"shard {name} was removed by another client, and there is another one of that name now")


def _check_not_closed(map: ShardMap, name: ShardName) -> None:
    """What is closed may be being removed: see ``rejoined``."""
    _check_known(map, name)
    if map.shards[name].state is ShardState.CLOSED:
        raise ValueError(f"shard {name} is being removed")


def _check_known(map: ShardMap, name: ShardName) -> None:
    if name not in map.shards:
        raise ValueError(f"there is no shard {name!r}: there are {', '.join(sorted(map.shards))}")


# -- choices -----------------------------------------------------------------------------------------------------------


def home(queue: str, names: Sequence[ShardName]) -> ShardName:
    """Choose the shard of a queue's items that have an identity, by rendezvous hashing: another shard takes over as few
    queues as possible.  ``names``: the shards of the map that are ``hashed``."""
    return max(names, key=lambda name: hashlib.blake2b(f"{name}\0{queue}".encode()).digest())


def moves(queue: str, map: ShardMap, wanted: ShardMap) -> bool:
    """Tell whether the home of a queue that has no register is another one under the wanted map."""
    return home(queue, map.hashed) != home(queue, wanted.hashed)


def choose(shards: Sequence[T], load: Callable[[T], float], draw: Callable[[int], int]) -> T:
    """Choose the one with the smaller load of two that are drawn at random.

    ``draw(n)`` returns a random number below ``n``.  Two choices bound the greatest load nearly as well as looking at
    all (Mitzenmacher, The Power of Two Choices in Randomized Load Balancing, 2001), and a new shard is not flooded by
    all clients at the same time.
    """
    if len(shards) == 1:
        return shards[0]
    at = draw(len(shards))
    other = draw(len(shards) - 1)
    one, two = shards[at], shards[other + (other >= at)]
    return one if load(one) <= load(two) else two


# -- ids ---------------------------------------------------------------------------------------------------------------


SHARD_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
"""What a shard may be called: it is part of ids."""

_MADE_FOR = re.compile(r"zkrq-[0-9a-f]{11}-[0-9a-f]{8}-[0-9a-f]+@([a-z0-9_-]+)(?:~[0-9a-f]{2})?")


def ending(name: ShardName) -> str:
    """Return what the ids of items end with that were placed on this shard.

    Without a map they end with nothing: whatever is placed by one names its shard, even the first one, because an id
    that names none belongs to the queue's home, which may be another one.
    """
    return f"@{name}"


def shard_of(id: str) -> ShardName | None:
    """Return the shard that an id names, None if it names none: the item is at home."""
    match = _MADE_FOR.fullmatch(id)
    return ShardName(match[1]) if match else None
