"""The simulation's Redis against the real one: the same commands and functions must give the same replies and data."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import cast

import pytest

from tests.every import every
from tests.simulation.script_calls import FIRST_US
from tests.simulation.twins import Twins, comparable, library, mini_redis
from zkrq.replication.stream import ErrorReply
from zkrq.testing.redis.arguments import LONG
from zkrq.testing.redis.commands import COMMANDS
from zkrq.testing.redis.server import MiniRedis

# The arguments of each command by their kinds; what stands behind a slash is there one to three times.
PLAIN = {
    "DEL": "/ any",
    "UNLINK": "/ any",
    "EXISTS": "/ any",
    "TYPE": "any",
    "EXPIRE": "any seconds",
    "KEYS": "pattern",
    "FLUSHALL": "",
    "GET": "string",
    "SET": "string value",
    "HGET": "hash member",
    "HMGET": "hash / member",
    "HSET": "hash / member value",
    "HSETNX": "hash member value",
    "HINCRBY": "hash member integer",
    "HDEL": "hash / member",
    "HLEN": "hash",
    "HSTRLEN": "hash member",
    "HKEYS": "hash",
    "HEXISTS": "hash member",
    "HGETALL": "hash",
    "SADD": "set / member",
    "SREM": "set / member",
    "SCARD": "set",
    "SMEMBERS": "set",
    "RPUSH": "list / value",
    "LLEN": "list",
    "LRANGE": "list index index",
    "LTRIM": "list index index",
    "LPOP": "list count?",
    "ZADD": "zset / score member",
    "ZREM": "zset / member",
    "ZCARD": "zset",
    "ZSCORE": "zset member",
    "ZMSCORE": "zset / member",
    "ZRANK": "zset member",
    "ZCOUNT": "zset bound bound",
    "ZRANGE": "zset index index rev? withscores?",
    "ZRANGEBYSCORE": "zset bound bound withscores? limit?",
    "ZRANGEBYLEX": "names name_bound name_bound limit?",
    "ZLEXCOUNT": "names name_bound name_bound",
    "ZPOPMIN": "zset count?",
    "ZREMRANGEBYSCORE": "zset bound bound",
    "ZREMRANGEBYRANK": "zset index index",
}
SCANS = {"HSCAN": "hash", "SSCAN": "set", "ZSCAN": "zset"}
UNORDERED = {"KEYS", "HKEYS", "SMEMBERS"}
RARE = {"FLUSHALL", "DEL", "UNLINK"}

# Scores of few digits: how many are written of others depends on the version.
SCORES = ("0", "1", "2", "2.5", "-3", "1e3", str(FIRST_US), str(2**53), "inf", "-inf")
KINDS: dict[str, Sequence[str]] = {
    **{kind: (f"{kind}1", f"{kind}2") for kind in ("string", "hash", "set", "list", "zset")},
    "any": [f"{kind}{n}" for kind in ("string", "hash", "set", "list", "zset", "none") for n in (1, 2)],
    "pattern": ("*", "hash*", "z?et1", "[sl]*", "none"),
    "member": ("", "a", "b", "c", "d\xff", "e\0", "7", "10"),
    "value": ("", "1", "-5", "x", "a longer value\r\n", str(LONG - 1)),
    "integer": ("1", "-3", "0", "x", "01", "1.5", str(LONG), str(LONG - 1)),
    "index": ("0", "1", "2", "-1", "-2", "-9", "9", "x"),
    "seconds": ("100000", "x"),
    "count": ("0", "1", "2", "9", "-1", "x"),
    "score": (*SCORES, *SCORES, "nan", "x", ""),
    "bound": (*SCORES, *(f"({score}" for score in SCORES), "+inf", "x"),
    "rev": ("REV", "rev"),
    "names": ("names1", "names1", "names1", "none1"),
    "name_bound": ("-", "+", "[a", "(a", "[b", "(", "[", "[d\xff", "(d", "a", "", "++"),
    "withscores": ("WITHSCORES", "WithScores", "NOSCORES"),
    "limit": ("LIMIT 0 2", "limit 1 -1", "LIMIT -1 2", "LIMIT 1", "LIMIT 0 x"),
}


def drawn(name: str, rng: random.Random) -> list[str]:
    """A call of a plain command; now and then of another kind of value than it takes, or with too few arguments."""
    single, _, repeated = PLAIN[name].partition("/")
    words = [name if rng.random() < 0.8 else name.lower()]
    for kind in [*single.split(), *repeated.split() * rng.randint(1, 3)]:
        if not kind.endswith("?"):
            kinds = "any" if rng.random() < 0.03 and kind in ("hash", "set", "list", "zset", "string") else kind
            words.append(rng.choice(KINDS[kinds]))
        elif rng.random() < 0.4:
            words += rng.choice(KINDS[kind[:-1]]).split()
    return words if rng.random() < 0.98 else words[:-1] or words


def test_every_command_is_compared() -> None:
    assert {name.decode() for name in COMMANDS} == PLAIN.keys() | SCANS.keys()


@pytest.mark.parametrize("seed", range(12))
def test_plain_commands_answer_alike(twins: Twins, seed: int) -> None:
    rng = random.Random(seed)
    names = sorted(PLAIN)
    weights = [0.2 if name in RARE else 1 for name in names]
    for n in range(400):
        name = rng.choices(names, weights)[0]
        twins(*drawn(name, rng), unordered=name in UNORDERED)
        if n % 20 == 0:
            twins("ZADD", "names1", *(part for member in KINDS["member"] for part in ("0", member)))
            twins.check_contents()
    for name, kind in SCANS.items():
        twins.walk(name, f"{kind}1", 0, "COUNT", 3, cursor_at=2)
    twins.check_contents()


@pytest.mark.parametrize("count", [10, 1000])
def test_scans_of_much_collect_alike(twins: Twins, count: int) -> None:
    for n in range(500):
        twins("HSET", "hash", f"field{n}", n)
        twins("SADD", "set", f"member{n}")
        twins("ZADD", "zset", n, f"member{n}")
    for name, kind in SCANS.items():
        twins.walk(name, kind, 0, "COUNT", count, cursor_at=2)


@every("seed", range(20))
def test_scan_returns_whatever_stays(seed: int) -> None:
    """Others come and go meanwhile, and there is more than one page."""
    rng, mini = random.Random(seed), mini_redis()
    stays = {b"stays%d" % n for n in range(20)}
    mini.execute(b"SADD", b"set", *stays)
    seen: set[bytes] = set()
    cursor, pages = b"0", 0
    while pages == 0 or cursor != b"0":
        cursor, page = cast("tuple[bytes, list[bytes]]", mini.execute(b"SSCAN", b"set", cursor, b"COUNT", b"4"))
        seen.update(page)
        pages += 1
        for _ in range(rng.randrange(4)):
            mini.execute(rng.choice([b"SADD", b"SREM"]), b"set", b"other%d" % rng.randrange(30))
    assert seen >= stays
    assert pages > 2


def test_iteration_keeps_the_order_of_insertion(mini: MiniRedis) -> None:
    mini.execute(b"SADD", b"set", b"b", b"c", b"a")
    mini.execute(b"HSET", b"hash", b"y", b"1", b"x", b"2")
    assert mini.execute(b"SMEMBERS", b"set") == [b"b", b"c", b"a"]
    assert mini.execute(b"HGETALL", b"hash") == [b"y", b"1", b"x", b"2"]


SNIPPETS = r"""
return {1, 2.9, -2.9, 1e15, true, false, 'a\0b', {}, {1, {2}}, 4, nil, 6}
return
return nil
return false
return {KEYS[1], ARGV[1], ARGV[2], #ARGV}
return redis.status_reply('FINE')
return {ok = 'FINE'}
return redis.error_reply('ODD thing')
return {err = 'ODD thing'}
return redis.sha1hex('abc')
return redis.call('PING')
return redis.call('PING').ok
return redis.call('GET', 'nothing')
return redis.call('GET', 'nothing') == false
return redis.call('HMGET', KEYS[1], 'a', 'none', 'b')
return redis.call('HMGET', KEYS[1], 'none', 'b')[1] == false
return redis.call('ZRANGE', 'nothing', 0, -1)
return redis.call('TYPE', KEYS[1])
return {redis.call('SET', 'n', 12345678901234567), redis.call('GET', 'n')}
return {redis.call('SET', 'n', 1750000000000001), redis.call('SET', 'm', 0.5), redis.call('GET', 'n')}
return redis.call('ZADD', 'z', 1750000000000001, 'a', '2.5', 'b', 1/0, 'c')
return redis.call('ZRANGE', 'z', 0, -1, 'WITHSCORES')
return redis.call('ZSCORE', 'z', 'a') + 1
return redis.call('HSCAN', KEYS[1], 0)
return redis.call('LLEN', KEYS[1])
return redis.pcall('LLEN', KEYS[1])
return redis.pcall('LLEN', KEYS[1]).err
local fine, fault = pcall(redis.call, 'LLEN', KEYS[1]) return {fine and 1 or 0, type(fault)}
local fine, fault = pcall(error, 'no') return {fine and 1 or 0, fault}
local fine, a, b = pcall(function(...) return ... end, 1, 2) return {fine and 1 or 0, a, b}
return redis.call('LLEN')
return redis.call('NOTHING')
return redis.call()
return redis.call('GET', {})
return redis.call('GET', true)
return redis.call('FCALL', 'snippet', 0)
error('oh no')
error({err = 'ODD thing'})
return nil + 1
return undefined
undefined = 1
redis = 1
local t = {} for i = 1, 7999 do t[i] = i end return select('#', unpack(t))
local t = {} for i = 1, 8000 do t[i] = i end return select('#', unpack(t))
local t = {} for i = 1, 7900 do t[i] = i end return redis.call('RPUSH', 'l', unpack(t))
local t = {} for i = 1, 9000 do t[i] = i end return t
return )
return struct.pack('<dI4I4', 1.5, 7, 4294967295) .. 'id'
return struct.pack('<BI4I4c1BI4I4ddI4B', 1, 2, 3, 'X', 4, 5, 6, 7.5, -8, 9, 10)
return struct.pack('>I2i2hHlLbB', 258, -2, -3, 4, -5, 6, -7, 255)
return struct.pack('<I4BB', -1, 300.7, '65')
return struct.pack('<c3xc0', 'abcdef', 'xyz')
return struct.pack('<c3', 'ab')
return struct.pack('<I4')
return struct.pack('<I4', 'x')
return {struct.unpack('<xI4c1Bc0', '\0\1\0\0\0Q\2xyrest')}
return {struct.unpack('<I2', 'abcd', 3)}
return {struct.unpack('<dI4I4', struct.pack('<dI4I4', 1750000000000001, 1, 2))}
return tostring(({struct.unpack('<d', struct.pack('<d', 2.5))})[1])
return {struct.unpack('>i2', '\255\254')}
return {struct.unpack('<I4', 'abc')}
return {struct.unpack('<Bc0', '\5abc')}
return {struct.unpack('<c0', 'abc')}
return struct.pack('<BI4I4BBdddd', 2, 1, 7, 37, 100, 1750000000000, 1750000000000001, -0.5, 1e17)
return {struct.unpack('<xI4I4BBd', struct.pack('<BI4I4BBd', 2, 1, 7, 37, 100, 1750000000001))}
return {struct.unpack('<BI4I4d', 'x' .. struct.pack('<BI4I4d', 1, 2, 3, 4), 2)}
return {struct.unpack('<BHc0', '\7' .. struct.pack('<H', 3) .. 'abcd')}
return struct.pack('<BH', 255, 65535) .. struct.pack('<H', 65536)
return {struct.unpack('<I4', struct.pack('<I4', 2147483648 + 5))}
return struct.size('<BI4I4c1BI4I4ddI4B')
return struct.size('<Bc0')
return struct.pack('<?', 1)
return {string.match('a/b/17', '^(.*)/(%d+)$')}
return {string.match('b\0a\0c', '^(.-)%z(.*)$')}
return {string.match('0a-1f-3~0b', '^(%x+%-%x+%-%x+)~(%x%x)$'), tonumber('0b', 16), string.format('x~%02x', 11)}
return {string.find('QQXC', '[^Q]', 1), string.find('QQXC', '[^' .. string.sub('QQXC', 3, 3) .. ']', 3)}
return {string.find('XXQ', '^[QRCD]', 3), string.find('a\127', '\127', 1, true)}
return {string.gsub('\127\128\129', '.', {['\128'] = '\129', ['\129'] = 'x'})}
return {string.gsub('aabb', '..', function(two) return two == 'aa' and 'cc' or nil end)}
return {string.format('%.0f', -1750000000000001), string.format('%.0f', 0.5), '-1750000000000001' + 1750000000000000}
return {string.rep('\0\0', 3), string.byte('RDXF', 1, 4)}
return {redis.call('HINCRBY', KEYS[1], 'a', -3), redis.call('ZRANK', 'z', 'x')}
return redis.call('ZRANK', 'z', 'none') == false
return {tostring(1e15), tostring(1700000000000000), tostring(0.1), 10 % 3, math.floor(-0.5)}
"""


@every("snippet", SNIPPETS.strip().splitlines())
def test_scripts_are_run_alike(twins: Twins, snippet: str) -> None:
    twins("FLUSHALL")
    twins("HSET", "hash", "a", 1, "b", 2)
    twins("ZADD", "z", 1, "x")
    twins("FUNCTION", "LOAD", library("snippet", snippet))
    twins("FCALL", "snippet", 1, "hash", "one", b"\0\xff")
    twins.check_contents()


def test_functions_are_known_by_their_names(twins: Twins) -> None:
    assert twins("FUNCTION", "LOAD", library("one", "return ARGV[1]")) == b"one"
    assert twins("FCALL", "one", 0, "x") == b"x"
    assert twins("FCALL", "other", 0, "x") == ErrorReply("ERR Function not found")
    for count in ("-1", "2", "x"):
        twins("FCALL", "one", count, "a")
    assert "already exists" in str(twins("FUNCTION", "LOAD", library("one", "return 1")))
    same = library("one", "return 1").replace("name=one", "name=another")
    assert "already exists" in str(twins("FUNCTION", "LOAD", same))
    assert twins("FCALL", "one", 0, "x") == b"x", "nothing of what was refused is there"
    assert twins("FUNCTION", "FLUSH") == b"OK"
    assert twins("FCALL", "one", 0, "x") == ErrorReply("ERR Function not found")


@every(
    "text",
    [
        library("one", "return )"),
        library("one", "return 1", "nonsense"),
        library("o-ne", "return 1"),
        "#!python name=one\nx",
        "#!lua\nredis.register_function('one', function() return 1 end)",
        "redis.register_function('one', function() return 1 end)",
        "#!lua name=one\n",
        "#!lua name=one\nerror('no')",
        "#!lua name=one\nlocal x = string",
        "#!lua name=one\nx = 1",
        "#!lua name=one\nredis.call('PING')",
    ],
)
def test_libraries_are_refused_alike(twins: Twins, text: str) -> None:
    """While a library is loaded it finds nothing but how to register functions."""
    assert isinstance(twins("FUNCTION", "LOAD", text), ErrorReply)
    twins("FCALL", "one", 0)


def test_other_calls_of_function(twins: Twins) -> None:
    twins("FUNCTION", "LOAD")
    twins("FUNCTION", "NOTHING")
    twins("FUNCTION")


def test_variables_of_a_library_last_as_long_as_it(twins: Twins) -> None:
    """From one call to the next, as in a real server, so what a call leaves behind is found here, too."""
    text = library("n", "n = n + 1 return n").replace("\n", "\nlocal n = 0\n", 1)
    for _ in range(2):
        twins("FUNCTION", "LOAD", text)
        assert [twins("FCALL", "n", 0) for _ in range(3)] == [1, 2, 3]
        twins("FUNCTION", "FLUSH")


def test_servers_share_no_variables() -> None:
    text = library("n", "n = n + 1 return n").replace("\n", "\nlocal n = 0\n", 1).encode()
    a, b = mini_redis(), mini_redis()
    for server in (a, b):
        server.execute(b"FUNCTION", b"LOAD", text)
    assert [server.execute(b"FCALL", b"n", b"0") for server in (a, a, b, a)] == [1, 2, 1, 3]


def test_out_of_memory(twins: Twins) -> None:
    """Without memory: what could need some is refused; a function by its flags."""
    twins("HSET", "hash", "a", 1, "b", 2)
    write, remove = "redis.call('SET', 'k', 1) return 'done'", "redis.call('HDEL', 'hash', 'none') "
    answers: dict[tuple[str, str], object] = {}
    for name, flags in (("none", ()), ("allowed", ("allow-oom",))):
        for number, body in enumerate(("return 1", write, remove + write)):
            twins.full(False)
            twins("FUNCTION", "LOAD", library(f"{name}{number}", body, *flags))
            twins.full(True)
            answers[name, body] = comparable(twins("FCALL", f"{name}{number}", 0))
    refused = ErrorReply("OOM")
    assert answers["none", "return 1"] == answers["none", write] == answers["none", remove + write] == refused
    assert answers["allowed", "return 1"] == 1
    assert answers["allowed", write] == answers["allowed", remove + write] == b"done"
    assert comparable(twins("FUNCTION", "LOAD", library("more", "return 1"))) == refused
    for command in ("SET k v", "HSET h a 1", "HSETNX h a 1", "HINCRBY h a 1", "SADD s a", "RPUSH l a", "ZADD z 1 a"):
        assert comparable(twins(*command.split())) == refused
    for command in ("HDEL hash a", "HGET hash b", "DEL hash", "LTRIM l 0 1", "ZPOPMIN z"):
        assert comparable(twins(*command.split())) != refused
    twins.check_contents()


def test_info_names_what_is_asked_for(mini: MiniRedis) -> None:
    mini.role = "slave"
    lines = cast("bytes", mini.execute(b"INFO")).decode().splitlines()
    expected = ["redis_version:7.0.15", "run_id:r1", "maxmemory_policy:noeviction", "role:slave", "cluster_enabled:0"]
    assert lines == expected


def test_replica_takes_no_writes(mini: MiniRedis) -> None:
    mini.role = "slave"
    reply = mini.execute(b"SET", b"a", b"1")
    assert isinstance(reply, ErrorReply)
    assert reply.text.startswith("READONLY ")


def run_on(mini: MiniRedis, body: str, *words: bytes) -> object:
    """Call a function with this body; the first of the words is a key."""
    mini.execute(b"FUNCTION", b"LOAD", library("f", body).encode())
    return mini.execute(b"FCALL", b"f", b"1" if words else b"0", *words)


def test_time_is_the_given_clock(mini: MiniRedis) -> None:
    assert mini.execute(b"TIME") == [b"1750000000", b"0"]
    assert run_on(mini, "return redis.call('TIME')[1] + 1") == FIRST_US // 1_000_000 + 1


def test_ping(twins: Twins) -> None:
    assert twins("PING") == b"PONG"
    assert type(twins("PING")) is bytes
    assert twins("PING", "x") == b"x"
    twins("PING", "x", "y")
    twins("NOTHING", "x")


def test_whoever_listens_is_told_until_he_leaves(mini: MiniRedis) -> None:
    first: list[bytes] = []
    second: list[bytes] = []
    leave = mini.subscribe(b"c", first.append)
    mini.subscribe(b"c", second.append)
    assert mini.execute(b"PUBLISH", b"c", b"1") == 2
    leave()
    leave()
    assert mini.execute(b"PUBLISH", b"c", b"2") == 1
    assert mini.execute(b"PUBLISH", b"d", b"3") == 0
    assert (first, second) == ([b"1"], [b"1", b"2"])


def test_script_may_lead_to_another_one(mini: MiniRedis) -> None:
    """Who is told by a script runs one on another server before the first one has ended."""
    other = mini_redis()
    store = "redis.call('SET', KEYS[1], ARGV[1]) "
    mini.subscribe(b"c", lambda message: cast("None", run_on(other, store, b"b", message)))
    run_on(mini, "redis.call('PUBLISH', 'c', 'told') " + store, b"a", b"mine")
    assert mini.content() == {b"a": b"mine"}
    assert other.content() == {b"b": b"told"}


def test_no_function_begins_while_another_one_runs(mini: MiniRedis) -> None:
    """As in a real server: it would find the variables of the other one's call."""
    mini.subscribe(b"c", lambda _: cast("None", mini.execute(b"FCALL", b"f", b"0")))
    with pytest.raises(RuntimeError, match="f was called while another function was running"):
        run_on(mini, "return redis.call('PUBLISH', 'c', 'x')")


def test_failure_of_a_listener_is_nobodys_reply(mini: MiniRedis) -> None:
    """Errors of the simulation itself come out as they are, also through a script."""

    def fail(_: bytes) -> None:
        raise KeyError("a bug")

    mini.subscribe(b"c", fail)
    with pytest.raises(KeyError, match="a bug"):
        run_on(mini, "return redis.call('PUBLISH', 'c', 'x')")
    mini.execute(b"FUNCTION", b"LOAD", library("other", "return 1").encode())
    assert mini.execute(b"FCALL", b"other", b"0") == 1


FILL = (
    "SET string 1",
    "HSET hash a 1 b 2",
    "SADD set b a",
    "RPUSH list x y",
    "ZADD zset 2 b 1 a",
)
FILLED: dict[bytes, object] = {
    b"string": b"1",
    b"hash": {b"a": b"1", b"b": b"2"},
    b"set": (b"a", b"b"),
    b"list": [b"x", b"y"],
    b"zset": {b"a": 1.0, b"b": 2.0},
}


@pytest.fixture
def filled(mini: MiniRedis) -> MiniRedis:
    for command in FILL:
        mini.execute(*command.encode().split())
    assert mini.content() == FILLED
    return mini


def test_dump_is_not_reached_by_later_changes(filled: MiniRedis) -> None:
    dump = filled.dump()
    for command in ("SET string 2", "HDEL hash a", "SREM set a", "LPOP list", "ZADD zset 9 a", "SET more 1"):
        filled.execute(*command.encode().split())
    changed = filled.content()
    other = mini_redis()
    for server in (other, filled):
        server.restore(dump)
        assert server.content() == FILLED
    other.execute(b"DEL", b"string")
    filled.restore(dump)
    assert filled.content() == FILLED != changed


def test_restart_forgets_listeners(filled: MiniRedis) -> None:
    heard: list[bytes] = []
    leave = filled.subscribe(b"c", heard.append)
    filled.restore(None)
    assert filled.content() == {}
    assert filled.execute(b"PUBLISH", b"c", b"1") == 0
    leave()


def test_libraries_are_on_the_disk(filled: MiniRedis) -> None:
    assert run_on(filled, "return 1") == 1
    dump = filled.dump()
    filled.restore(None)
    assert filled.execute(b"FCALL", b"f", b"0") == ErrorReply("ERR Function not found")
    filled.restore(dump)
    assert filled.execute(b"FCALL", b"f", b"0") == 1


def test_flush_forgets_data_only(filled: MiniRedis) -> None:
    assert run_on(filled, "return 1") == 1
    filled.flush()
    assert filled.content() == {}
    assert filled.execute(b"FCALL", b"f", b"0") == 1
    filled.execute(b"SET", b"a", b"1")
    assert filled.content() == {b"a": b"1"}
