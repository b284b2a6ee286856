"""List the commands that read and write data, as a table: name -> function, arity, flags.

Arity counts the name, and is negative if more words may follow, as in Redis' own table.  ``denyoom`` marks commands
that may need memory and are refused when there is none.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar
from zlib import crc32

from zkrq.testing.redis.arguments import (
    LONG,
    bound,
    flat,
    floating,
    integer,
    name_bound,
    optional_count,
    pairs,
    scored,
    span,
)
from zkrq.testing.redis.keyspace import KIND_NAMES, Hash, Keyspace, List, Members, SortedSet, String
from zkrq.testing.redis.replies import (
    OK,
    SYNTAX,
    WRONG_TYPE,
    Refusal,
    SimpleString,
    number_text,
)

F = TypeVar("F", bound=Callable[..., object])

_SCAN_COUNT = 10


@dataclass(frozen=True, slots=True)
class Command:
    """A command; ``run`` takes the arguments without the name, and in ``COMMANDS`` the data before them."""

    name: str
    run: Callable[..., object]
    arity: int
    write: bool = False
    denyoom: bool = False
    scripts_may: bool = True

    def takes(self, count: int) -> bool:
        """Tell whether ``count`` words, including the name, are a valid call of this command."""
        return count == self.arity if self.arity > 0 else count >= -self.arity


COMMANDS: dict[bytes, Command] = {}
"""Every command on data, by name."""


def _command(name: str, arity: int, flags: str = "") -> Callable[[F], F]:
    def note(run: F) -> F:
        COMMANDS[name.encode()] = Command(name, run, arity, write="write" in flags, denyoom="denyoom" in flags)
        return run

    return note


# -- keys ----------------------------------------------------------------------------------------------------------


@_command("DEL", -2, "write")
@_command("UNLINK", -2, "write")
def _del(data: Keyspace, *keys: bytes) -> int:
    return sum(data.pop(key, None) is not None for key in keys)


@_command("EXISTS", -2)
def _exists(data: Keyspace, *keys: bytes) -> int:
    return sum(key in data for key in keys)


@_command("EXPIRE", 3, "write")
def _expire(data: Keyspace, key: bytes, seconds: bytes) -> int:
    """Keep the key: what zkrq gives an end has one of weeks, and no server lives as long inside of a process."""
    return int(integer(seconds) > 0 and key in data)


@_command("TYPE", 2)
def _type(data: Keyspace, key: bytes) -> SimpleString:
    return SimpleString(KIND_NAMES[type(data[key])] if key in data else b"none")


@_command("KEYS", 2)
def _keys(data: Keyspace, pattern: bytes) -> list[bytes]:
    return [key for key in data if fnmatch.fnmatchcase(key, pattern)]


@_command("FLUSHALL", -1, "write")
def _flushall(data: Keyspace, *_: bytes) -> SimpleString:
    data.clear()
    return OK


@_command("GET", 2)
def _get(data: Keyspace, key: bytes) -> bytes | None:
    value = data.get(key)
    if value is None:
        return None
    if not isinstance(value, String):
        raise Refusal(WRONG_TYPE)
    return bytes(value)


@_command("SET", -3, "write denyoom")
def _set(data: Keyspace, key: bytes, value: bytes, *options: bytes) -> SimpleString:
    if options:
        raise Refusal(SYNTAX)
    data[key] = String(value)
    return OK


# -- scans ---------------------------------------------------------------------------------------------------------


def _page(elements: Collection[bytes], cursor: bytes, options: tuple[bytes, ...]) -> tuple[bytes, list[bytes]]:
    """Return the next cursor, and a page of about COUNT elements.

    A cursor is a place in the order of the elements' checksums, which no other element's insertion or removal moves; so
    an element that is present from the first page to the last is returned.  Redis pages large collections only; here
    every collection larger than COUNT is paged, so that few elements are enough to test paging.
    """
    if not cursor.isdigit():
        raise Refusal("ERR invalid cursor")
    if not elements:
        return b"0", []
    if len(options) % 2 or any(option.upper() != b"COUNT" for option in options[::2]):
        raise Refusal(SYNTAX)
    count = integer(options[-1]) if options else _SCAN_COUNT
    if count < 1:
        raise Refusal(SYNTAX)
    begin = int(cursor)
    if not begin and len(elements) <= count:
        return b"0", list(elements)
    ahead = sorted((place, element) for element in elements if (place := crc32(element)) >= begin)
    if len(ahead) <= count:
        return b"0", [element for _, element in ahead]
    last = ahead[count - 1][0]
    return b"%d" % (last + 1), [element for place, element in ahead if place <= last]


@_command("HSCAN", -3)
def _hscan(data: Keyspace, key: bytes, cursor: bytes, *options: bytes) -> list[object]:
    held = data.read(key, Hash)
    following, page = _page(held, cursor, options)
    return [following, flat((field, held[field]) for field in page)]


@_command("SSCAN", -3)
def _sscan(data: Keyspace, key: bytes, cursor: bytes, *options: bytes) -> list[object]:
    return list(_page(data.read(key, Members), cursor, options))


@_command("ZSCAN", -3)
def _zscan(data: Keyspace, key: bytes, cursor: bytes, *options: bytes) -> list[object]:
    held = data.read(key, SortedSet)
    following, page = _page([member for _, member in held.ordered], cursor, options)
    return [following, scored((held.scores[member], member) for member in page)]


# -- hashes --------------------------------------------------------------------------------------------------------


@_command("HGET", 3)
def _hget(data: Keyspace, key: bytes, field: bytes) -> bytes | None:
    return data.read(key, Hash).get(field)


@_command("HMGET", -3)
def _hmget(data: Keyspace, key: bytes, *fields: bytes) -> list[bytes | None]:
    return list(map(data.read(key, Hash).get, fields))


@_command("HSET", -4, "write denyoom")
def _hset(data: Keyspace, key: bytes, *words: bytes) -> int:
    given = pairs("HSET", words)
    held = data.edit(key, Hash)
    before = len(held)
    held.update(given)
    return len(held) - before


@_command("HSETNX", 4, "write denyoom")
def _hsetnx(data: Keyspace, key: bytes, field: bytes, value: bytes) -> int:
    held = data.edit(key, Hash)
    before = len(held)
    held.setdefault(field, value)
    return len(held) - before


@_command("HINCRBY", 4, "write denyoom")
def _hincrby(data: Keyspace, key: bytes, field: bytes, increment: bytes) -> int:
    added, held = integer(increment), data.read(key, Hash)
    number = integer(held.get(field, b"0"), "ERR hash value is not an integer") + added
    if not -LONG <= number < LONG:
        raise Refusal("ERR increment or decrement would overflow")
    data.edit(key, Hash)[field] = b"%d" % number
    return number


@_command("HDEL", -3, "write")
def _hdel(data: Keyspace, key: bytes, *fields: bytes) -> int:
    held = data.read(key, Hash)
    removed = sum(held.pop(field, None) is not None for field in fields)
    data.tidy(key, held)
    return removed


@_command("HLEN", 2)
def _hlen(data: Keyspace, key: bytes) -> int:
    return len(data.read(key, Hash))


@_command("HKEYS", 2)
def _hkeys(data: Keyspace, key: bytes) -> list[bytes]:
    return list(data.read(key, Hash))


@_command("HSTRLEN", 3)
def _hstrlen(data: Keyspace, key: bytes, field: bytes) -> int:
    return len(data.read(key, Hash).get(field, b""))


@_command("HEXISTS", 3)
def _hexists(data: Keyspace, key: bytes, field: bytes) -> int:
    return int(field in data.read(key, Hash))


@_command("HGETALL", 2)
def _hgetall(data: Keyspace, key: bytes) -> list[bytes]:
    return flat(data.read(key, Hash).items())


# -- sets ----------------------------------------------------------------------------------------------------------


@_command("SADD", -3, "write denyoom")
def _sadd(data: Keyspace, key: bytes, *members: bytes) -> int:
    held = data.edit(key, Members)
    before = len(held)
    held.update(dict.fromkeys(members))
    return len(held) - before


@_command("SREM", -3, "write")
def _srem(data: Keyspace, key: bytes, *members: bytes) -> int:
    held = data.read(key, Members)
    before = len(held)
    for member in members:
        held.pop(member, None)
    data.tidy(key, held)
    return before - len(held)


@_command("SCARD", 2)
def _scard(data: Keyspace, key: bytes) -> int:
    return len(data.read(key, Members))


@_command("SMEMBERS", 2)
def _smembers(data: Keyspace, key: bytes) -> list[bytes]:
    return list(data.read(key, Members))


# -- lists ---------------------------------------------------------------------------------------------------------


@_command("RPUSH", -3, "write denyoom")
def _rpush(data: Keyspace, key: bytes, *elements: bytes) -> int:
    held = data.edit(key, List)
    held += elements
    return len(held)


@_command("LLEN", 2)
def _llen(data: Keyspace, key: bytes) -> int:
    return len(data.read(key, List))


@_command("LRANGE", 4)
def _lrange(data: Keyspace, key: bytes, start: bytes, stop: bytes) -> list[bytes]:
    wanted = span(start, stop)
    held = data.read(key, List)
    return held[wanted.of(len(held))]


@_command("LTRIM", 4, "write")
def _ltrim(data: Keyspace, key: bytes, start: bytes, stop: bytes) -> SimpleString:
    wanted = span(start, stop)
    held = data.read(key, List)
    held[:] = held[wanted.of(len(held))]
    data.tidy(key, held)
    return OK


@_command("LPOP", -2, "write")
def _lpop(data: Keyspace, key: bytes, *count: bytes) -> bytes | list[bytes] | None:
    wanted = optional_count("LPOP", count)
    held = data.read(key, List)
    if not held:
        return None
    popped = held[: 1 if wanted is None else wanted]
    del held[: len(popped)]
    data.tidy(key, held)
    return popped[0] if wanted is None else popped


# -- sorted sets ---------------------------------------------------------------------------------------------------


@_command("ZADD", -4, "write denyoom")
def _zadd(data: Keyspace, key: bytes, *words: bytes) -> int:
    if len(words) % 2:
        raise Refusal(SYNTAX)
    scores = list(map(floating, words[::2]))
    put = data.edit(key, SortedSet).put
    return sum(map(put, words[1::2], scores))


@_command("ZREM", -3, "write")
def _zrem(data: Keyspace, key: bytes, *members: bytes) -> int:
    held = data.read(key, SortedSet)
    removed = sum(map(held.remove, members))
    data.tidy(key, held)
    return removed


@_command("ZCARD", 2)
def _zcard(data: Keyspace, key: bytes) -> int:
    return len(data.read(key, SortedSet))


@_command("ZSCORE", 3)
def _zscore(data: Keyspace, key: bytes, member: bytes) -> bytes | None:
    score = data.read(key, SortedSet).scores.get(member)
    return None if score is None else number_text(score)


@_command("ZMSCORE", -3)
def _zmscore(data: Keyspace, key: bytes, *members: bytes) -> list[bytes | None]:
    return [_zscore(data, key, member) for member in members]


@_command("ZRANK", 3)
def _zrank(data: Keyspace, key: bytes, member: bytes) -> int | None:
    return data.read(key, SortedSet).rank(member)


@_command("ZCOUNT", 4)
def _zcount(data: Keyspace, key: bytes, low: bytes, high: bytes) -> int:
    bounds = bound(low), bound(high)
    ranks = data.read(key, SortedSet).ranks(*bounds)
    return ranks.stop - ranks.start


@_command("ZRANGE", -4)
def _zrange(data: Keyspace, key: bytes, start: bytes, stop: bytes, *options: bytes) -> list[bytes]:
    reverse, with_scores = _order(options)
    wanted = span(start, stop)
    ordered = data.read(key, SortedSet).ordered
    ranks = wanted.of(len(ordered))
    return scored((ordered[::-1] if reverse else ordered)[ranks], with_scores)


@lru_cache(100)
def _order(options: tuple[bytes, ...]) -> tuple[bool, bool]:
    """Parse whether the order is descending, and whether scores are wanted."""
    given = {option.upper() for option in options}
    if not given <= {b"REV", b"WITHSCORES"}:
        raise Refusal(SYNTAX)
    return b"REV" in given, b"WITHSCORES" in given


@_command("ZRANGEBYSCORE", -4)
def _zrangebyscore(data: Keyspace, key: bytes, low: bytes, high: bytes, *options: bytes) -> list[bytes]:
    bounds = bound(low), bound(high)
    with_scores, skip, count = False, 0, -1
    words = iter(options)
    for word in words:
        match word.upper():
            case b"WITHSCORES":
                with_scores = True
            case b"LIMIT":
                skip, count = integer(next(words, b"")), integer(next(words, b""))
            case _:
                raise Refusal(SYNTAX)
    held = data.read(key, SortedSet)
    found = held.ordered[held.ranks(*bounds)]
    if skip < 0:
        return []
    return scored(found[skip : None if count < 0 else skip + count], with_scores)


@_command("ZLEXCOUNT", 4)
def _zlexcount(data: Keyspace, key: bytes, low: bytes, high: bytes) -> int:
    return len(_zrangebylex(data, key, low, high))


@_command("ZRANGEBYLEX", -4)
def _zrangebylex(data: Keyspace, key: bytes, low: bytes, high: bytes, *options: bytes) -> list[bytes]:
    """Return members of one score; if scores differ, Redis promises nothing."""
    bounds = name_bound(low), name_bound(high)
    skip, count = 0, -1
    if options:
        if len(options) != 3 or options[0].upper() != b"LIMIT":
            raise Refusal(SYNTAX)
        skip, count = integer(options[1]), integer(options[2])
    held = data.read(key, SortedSet)
    found = held.ordered[held.ranks_of_names(*bounds)]
    if skip < 0:
        return []
    return scored(found[skip : None if count < 0 else skip + count], False)


@_command("ZPOPMIN", -2, "write")
def _zpopmin(data: Keyspace, key: bytes, *count: bytes) -> list[bytes]:
    wanted = optional_count("ZPOPMIN", count)
    held = data.read(key, SortedSet)
    ranks = slice(0, 1 if wanted is None else wanted)
    popped = scored(held.ordered[ranks])
    held.remove_ranks(ranks)
    data.tidy(key, held)
    return popped


@_command("ZREMRANGEBYSCORE", 4, "write")
def _zremrangebyscore(data: Keyspace, key: bytes, low: bytes, high: bytes) -> int:
    bounds = bound(low), bound(high)
    held = data.read(key, SortedSet)
    removed = held.remove_ranks(held.ranks(*bounds))
    data.tidy(key, held)
    return removed


@_command("ZREMRANGEBYRANK", 4, "write")
def _zremrangebyrank(data: Keyspace, key: bytes, start: bytes, stop: bytes) -> int:
    wanted = span(start, stop)
    held = data.read(key, SortedSet)
    removed = held.remove_ranks(wanted.of(len(held)))
    data.tidy(key, held)
    return removed


def plain(value: Any) -> object:
    """Convert a value to plain Python: a set to a sorted tuple, a sorted set to member -> score in its order."""
    match value:
        case SortedSet():
            return {member: score for score, member in value.ordered}
        case Members():
            return tuple(sorted(value))
        case Hash():
            return dict(value)
        case List():
            return list(value)
        case _:
            return bytes(value)
