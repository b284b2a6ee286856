"""The work of one call of a script does not grow with the server's data: elements are counted, not time.

Every word of a command in a script counts, and every element of its reply, or that it removes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, cast

import pytest

from tests.lua.connection import Argument, ScriptFailed
from tests.lua.entries import Claimed, Decided, Put, Settlement
from tests.lua.one_server import OneServer
from zkrq.base.saved import EDIT_BYTES
from zkrq.client.finding import SEARCH_PAGE
from zkrq.protocol import calls
from zkrq.protocol.payloads import join
from zkrq.protocol.records import BUNDLE_MAX, HELD, MEMBER, Opens, fresh, held_for, waiting_for, with_fields
from zkrq.protocol.scripts import SCRIPTS
from zkrq.protocol.scrubbing import CHECKED_ITEMS
from zkrq.replication.stream import ErrorReply
from zkrq.testing.redis.server import MiniRedis

FIRST_US = 1_750_000_000_000_000
MINUTE = FIRST_US // 60_000_000
ALL_COUNTS = bytes(100 * [7])
SMALL, LARGE = 1_000, 2_500
"""Items of each kind in the two states that are compared."""

BATCH = 500
"""Items in one call, as the library makes them."""

BUNDLE = 50
"""Items in a bundle; with every other batch of items that are alone, as many come in bundles."""

TOUCHED_MAX = 40_000
"""Elements in any call: some ten milliseconds of a server."""

GROWTH_MAX = 1.1

REMOVING = (b"ZREMRANGEBYSCORE", b"ZREMRANGEBYRANK")

OUTSIDE = {"enrol", "reserve", "wipe", "mend", "set_aside"}
"""Of a server outside the view; ``wipe`` unlinks, which a thread of Redis does in the background.  What deals with
damaged entries counts at most RECOUNT_MAX of each kind anew (``lua/_damage.lua``)."""


class Counting(MiniRedis):
    """Counts what scripts touch."""

    touched = 0

    def _execute(self, words: Sequence[bytes], script: object) -> object:
        reply = super()._execute(words, script)  # pyright: ignore[reportArgumentType]
        if script is not None:
            self.touched += len(words) + _elements(reply)
            if words[0] in REMOVING:
                self.touched += cast("int", reply)
        return reply


def _elements(reply: object) -> int:
    return sum(map(_elements, cast("list[object]", reply))) if isinstance(reply, list) else 1


class Large(OneServer):
    """``OneServer`` inside the process, which holds ``size`` items of each kind, and a crowd of owners and waiters."""

    def __init__(self, size: int) -> None:  # no connection: everything goes through ``pipeline``
        self.now = FIRST_US
        self.redis = Counting(run_id="r1", clock_us=lambda: self.now)
        self.epoch, self.queue, self.limits, self.looks = 1, "q", {}, False
        self._known, self._seq = set(), 0
        self.size = size
        self.enrol(clock=FIRST_US)
        self._fill()

    def pipeline(self, *commands: tuple[Argument, ...]) -> list[object]:
        return [self._reply(command) for command in commands]

    def _reply(self, command: tuple[Argument, ...]) -> object:
        reply = self.redis.execute(*(each if isinstance(each, bytes) else str(each).encode() for each in command))
        if isinstance(reply, ErrorReply):
            raise ScriptFailed(reply.text)
        return reply

    def items(self, name: str, count: int, **options: int | str) -> None:
        for start in range(0, count, BATCH):
            numbers = range(start, min(start + BATCH, count))
            puts = [Put(f"{name}{n:06}", pushed_at_ms=self.now_ms(), **options) for n in numbers]  # pyright: ignore[reportArgumentType]
            self.put(*(put._replace(priority=n % 10) for n, put in enumerate(puts)))
            if start // BATCH % 2 and options.keys() <= {"delay_ms"}:
                bundles = [
                    put._replace(id=bundle_of(name, n), payload=[b"payload"] * BUNDLE, priority=9)
                    for n, put in zip(numbers, puts, strict=True)
                    if n % BUNDLE == 0
                ]
                self.put(*bundles)
            self.now += 1000

    def _fill(self) -> None:
        size = self.size
        self.items("dead", size)
        self._settle_all("bury")
        self.items("gone", size)
        self._settle_all("ack")
        self.items("claimed", size)
        n = 0
        while self.claim(f"owner{n}", 20, lease_ms=1_000).handed:
            n += 20
        self.items("held", 2 * BATCH)
        self.last: Claimed = [self.claim("ann", BATCH, lease_ms=600_000) for _ in range(3)][-2]
        self.last_seq = self._seq
        self.items("later", size, delay_ms=1_000)
        self.items("ready", size)
        self.items("mortal", size, ttl_ms=1_000)
        self._fill_unwanted()
        for n in range(size):
            self.command("ZADD", self.key("fenced_owners"), self.now_ms(), f"fenced{n}")
            self.command("ZADD", self.key("waiting"), self.now_ms(), f"channel{n}")
            self.command("SADD", self.key("queues"), f"queue{n}")
            self.command("HSET", self.key("owners"), f"idle{n}", 1)

    def _fill_unwanted(self) -> None:
        """Queues of which no item may be handed out: each was delivered too often, or expires soon."""
        self.queue = "worn"
        self.items("worn", self.size)
        while self.claim("dead", BATCH).handed:
            pass
        self.fence("dead")
        self.queue = "brief"
        self.items("brief", self.size, ttl_ms=1_000)
        self.queue = "grouped"
        for n in range(0, self.size, BATCH // 4):
            groups = {at: f"group{at % 4}{at // 16 * (at % 4):06}" for at in range(n, n + BATCH // 4)}  # one is large
            self.put(*(Put(f"g{at:06}", group=group) for at, group in groups.items()))
            self.put(Put(bundle_of("grouped", n), [b"payload"] * BUNDLE, group=f"group{n}"))
        self._fill_flows()
        self.queue = "q"

    def _fill_flows(self) -> None:
        """A flow with many members, one that has ended and for which many items are held, and many others."""
        for flow in (MANY, OVER, *(f"flow{n:06}" for n in range(self.size))):
            self.ask(calls.Steer("flowing", flow, "begin", keep_ms=3_600_000))
        for start in range(0, self.size, BATCH):
            for name, fields in (
                ("member", {MEMBER: MANY.encode()}),
                ("held", {HELD: held_for(OVER.encode(), Opens.THEN)}),
                ("waiting", {MEMBER: MANY.encode(), HELD: waiting_for(["flowing/member000000"])}),
                ("nested", {MEMBER: MANY.encode(), HELD: held_for(OVER.encode(), Opens.NESTED)}),
            ):
                record = with_fields(fresh(0, self.now_ms()), fields)
                puts = [calls.Put(f"{name}{n:06}", record, join([b"payload"])) for n in range(start, start + BATCH)]
                self.ask(calls.PushDecided("flowing", puts))
        self.ask(calls.Steer("flowing", OVER, "finish"))

    def _settle_all(self, verb: str) -> None:
        while claims := self.claim("filling", BATCH).settle(verb, 0, "why" if verb == "bury" else ""):
            self.settle(*claims, trim=0)

    def now_us(self) -> int:
        return self.now

    def touched_by(self, call: Callable[[Large], object]) -> int:
        """What one call touches, of all that stands here."""
        dump = self.redis.dump()
        before = self.redis.touched
        call(self)
        touched = self.redis.touched - before
        self.redis.restore(dump)
        self._known.clear()
        return touched


def named(name: str) -> list[str]:
    """Items that are alone."""
    return [f"{name}{n:06}" for n in range(BATCH)]


def bundle_of(name: str, number: int) -> str:
    return f"{name.encode().hex()}-{number // BUNDLE:x}-0"


def bundled(name: str) -> list[str]:
    """As many items of bundles."""
    bundles = [bundle_of(name, number) for number in range(BATCH, 2 * BATCH, BUNDLE)]
    return [calls.item_id(bundle, position) for bundle in bundles for position in range(BUNDLE)]


def later(seconds: float, call: Callable[[Large], object]) -> Callable[[Large], object]:
    """The same, after so long: then leases, times to live, and what is kept for minutes are over."""

    def waited(server: Large) -> None:
        server.now += int(seconds * 1e6)
        try:
            call(server)
        finally:
            server.now -= int(seconds * 1e6)

    return waited


def encoded(name: str) -> list[bytes]:
    return [id.encode() for id in named(name)]


def bundles(name: str) -> list[bytes]:
    return [bundle_of(name, number).encode() for number in range(BATCH, 2 * BATCH, BUNDLE)]


def new(priority: int = 0) -> list[calls.Put]:
    return [calls.Put(id, fresh(priority, FIRST_US // 1000), join([b"payload"])) for id in named("new")]


def new_bundles(priority: int = 0) -> list[calls.Put]:
    record, payload = fresh(priority, FIRST_US // 1000, size=BUNDLE), join([b"payload"] * BUNDLE)
    return [calls.Put(bundle_of("new", n), record, payload) for n in range(0, BATCH, BUNDLE)]


def new_of_bundles() -> list[calls.Put]:
    """Items that are pushed again."""
    return [put.single(position) for put in new_bundles() for position in range(BUNDLE)]


def new_of_groups() -> list[calls.Put]:
    return [put._replace(record=fresh(0, FIRST_US // 1000, group=f"new{n // 2}")) for n, put in enumerate(new())]


def new_keyed() -> list[calls.Put]:
    return [put._replace(record=fresh(0, FIRST_US // 1000, key=put.id)) for put in new()]


def copies(puts: Sequence[calls.Put]) -> list[calls.Copied]:
    return [calls.Copied(put.id.encode(), put.record, b"", b"0", put.payload) for put in puts]


def settle_mixed(server: Large) -> None:
    server.settle(*mixed(server.last), dead_max=10)


def mixed(claimed: Claimed) -> list[Settlement]:
    """Neighbours meet different fates."""
    hows = (("ack", 0, ""), ("nack", 50, "why"), ("release", 0, ""), ("bury", 0, "why"), ("extend", 900, ""))
    return [
        claimed.decided[id].settle(*how, positions[at :: len(hows)])
        for id, positions in claimed.positions.items()
        for at, how in enumerate(hows)
        if positions[at :: len(hows)]
    ]


def take_turn(verb: str) -> Callable[[Large], object]:
    return lambda server: server.turn(*server.last.settle(verb), owner="eve", seq=1, count=BATCH, waiter="channel")


def asking(call: calls.Call[Any]) -> Callable[[Large], object]:
    return lambda server: server.ask(call)


NEW_RECORDS = calls.Rows([part for copied in copies([*new(), *new_bundles()]) for part in copied])
CLAIM = asking(calls.Claim("q", "eve", 1, 10_000, 1_000, "channel", 1, "D", 10, 0))
FENCE = asking(calls.Fence("q", "ann"))
KNOWN_OWNERS = calls.Rows([part for id in named("o") for part in (id, 1, 5)])

ADOPTED = calls.Adopt(
    "q",
    FIRST_US // 1000,
    [calls.Adopted(id, fresh(0, FIRST_US // 1000), join([b"payload"])) for id in named("adopted")],
)


def admit(server: Large) -> None:
    server.ask(ADOPTED)
    server.ask(calls.Admit("q", [(id, n % 2) for n, id in enumerate(named("adopted"))]))


MANY, OVER = "many", "over"
"""A flow with many members, and one that has ended."""

CALLS: dict[str, dict[str, Callable[[Large], object]]] = {
    "admit": {"": admit},
    "adopt": {"": asking(ADOPTED)},
    "affirm": {"": asking(calls.Affirm("q", [*encoded("claimed"), *bundles("claimed")]))},
    "apply": {
        "claims": lambda s: s.apply(*(each.apply() for each in s.last.decided.values()), fenced="owner0"),
        "new": asking(calls.Apply("q", NEW_RECORDS, trim=True, whole=True)),
    },
    "apply_new": {"": asking(calls.ApplyNew("q", NEW_RECORDS, whole=True))},
    "cancel": {
        "": lambda s: s.cancel(*named("claimed"), trim=1),
        "of bundles": lambda s: s.cancel(*bundled("claimed"), trim=1),
        "letters": lambda s: s.cancel(wanted="D", count=BATCH),
    },
    "claim": {
        "": CLAIM,
        "after a minute": later(60, CLAIM),
        "after an hour": later(3600, CLAIM),
        "again": lambda s: s.claim("ann", BATCH, seq=s.last_seq),
        "of groups": asking(calls.Claim("grouped", "eve", 1, 10_000, 1_000, "channel", 0, "X", 0, 0)),
        "of worn items": asking(calls.Claim("worn", "eve", 1, 10_000, 1_000, "channel", 1, "X", 0, 0)),
        "of expired items": later(3600, asking(calls.Claim("brief", "eve", 1, 10_000, 1_000, "channel", 1, "X", 0, 0))),
    },
    "claims": {"": asking(calls.Claims("q", "ann"))},
    "clear": {
        "": asking(calls.Clear("q", BATCH, "", 0, b"", trim=True)),
        "of groups": asking(calls.Clear("grouped", BATCH, "", 0, b"r", trim=True)),
        "of members": asking(calls.Clear("grouped", BATCH, "", 0, b"m", trim=True)),
    },
    "compare": {"": asking(calls.Compare("q", [(id, b"head") for id in encoded("ready")]))},
    "count": {"": lambda s: s.count()},
    "cut": {
        "": asking(calls.Cut("q", [calls.Gone(id, b"") for id in encoded("gone")])),
        "of bundles": asking(calls.Cut("q", [calls.Gone(id, bytes(range(BUNDLE))) for id in bundles("gone")])),
    },
    "fence": {
        "": FENCE,
        "of little": asking(calls.Fence("q", "owner0")),
        "after an hour": later(3600, FENCE),
    },
    "dead_page": {
        "": asking(calls.DeadPage("q", calls.START, BATCH)),
        "further on": asking(calls.DeadPage("q", f"{FIRST_US + 500} dead000300\0\1".encode(), BATCH)),
    },
    "declare": {"": asking(calls.Declare("q", "limits", "concurrency=10,rate=10/1000", "", False, ""))},
    "delete": {"": asking(calls.Delete("q", 10**12))},
    "flow": {
        verb: asking(calls.Steer("flowing", "new" if verb == "begin" else MANY, verb))
        for verb in (
            "begin",
            "look",
            "seal",
            "end",
            "cancel",
            "finish",
            "join",
            "live",
            "open",
            "wait",
            "fail",
            "close",
        )
    },
    "flow_members": {flow: asking(calls.FlowMembers("flowing", flow)) for flow in (MANY, OVER)},
    "flow_open": {
        "": asking(calls.OpenHeld("flowing", OVER)),
        "of members": asking(calls.OpenHeld("flowing", MANY, "cancelled")),
    },
    "flow_named": {"": asking(calls.NamedStates("flowing", [f"member{n:06}" for n in range(BATCH)]))},
    "flow_waiting": {kind: asking(calls.WaitingPage("flowing", MANY, kind)) for kind in "NI"},
    "flow_release": {"": asking(calls.Release("flowing", MANY, [f"waiting{n:06}" for n in range(BATCH)]))},
    "flow_page": {kinds: asking(calls.FlowPage("flowing", calls.START, BATCH, kinds)) for kinds in ("PVW", "E")},
    "flow_results": {flow: asking(calls.FlowResults("flowing", flow)) for flow in (MANY, OVER)},
    "forget": {"": asking(calls.Forget("q"))},
    "forward": {"": asking(calls.Forward("q", FIRST_US, 10_000, copies([*new(), *new_bundles()])))},
    "heads": {
        "": asking(calls.Heads("q", calls.START, BATCH, checks=False)),
        "with checks": asking(calls.Heads("q", calls.START, CHECKED_ITEMS)),
        "with checks of flows": asking(calls.Heads("flowing", calls.START, CHECKED_ITEMS)),
    },
    "group_page": {"": asking(calls.GroupPage("grouped", calls.START, 500))},
    "history": {"": asking(calls.History("q", 0, 500))},
    "claim_counts": {"": asking(calls.ClaimCounts("q"))},
    "install": {"": asking(calls.Install("q", 0, KNOWN_OWNERS))},
    "keyed": {"": asking(calls.Keyed("q", "key"))},
    "owners": {"": asking(calls.Owners("q"))},
    "page": {"": asking(calls.Page("q", calls.START, BATCH))},
    "pause": {
        "": lambda s: s.pause(),
        "resume": lambda s: s.resume(),
        "until": lambda s: s.pause(until_ms=1, left_ms=60_000),
    },
    "peek": {
        state: lambda s, state=state: s.peek(state, SMALL // 10) for state in ("ready", "scheduled", "claimed", "dead")
    },
    "push_decided": {
        "": asking(calls.PushDecided("q", new())),
        "of bundles": asking(calls.PushDecided("q", new_of_bundles())),
        "in the place of others": asking(calls.PushDecided("q", new(), replacing=True)),
        "with windows": asking(calls.PushDecided("q", new_keyed(), key_window_ms=60_000)),
    },
    "push_plain": {
        "": asking(calls.PushPlain("q", [*new(), *new_bundles()])),
        "of groups": asking(calls.PushPlain("grouped", new_of_groups())),
        "urgent": later(100, asking(calls.PushPlain("q", [*new(9), *new_bundles(9)]))),
    },
    "queues": {"": asking(calls.Queues())},
    "read": {"": asking(calls.Read("q", [*named("ready"), *(id.decode() for id in bundles("ready"))]))},
    "redrive": {
        "": lambda s: s.redrive(count=BATCH),
        "named": lambda s: s.redrive(*named("dead")),
        "of bundles": lambda s: s.redrive(*bundled("dead")),
    },
    "advance": {
        "": lambda s: s.advance(*named("later")),
        "of bundles": lambda s: s.advance(*bundled("later")),
        "in vain": lambda s: s.advance(*named("ready")),
    },
    "edit": {
        "": asking(calls.Edit("q", bytes(9) + b"x" * EDIT_BYTES, named("dead")[:1])),
        "of bundles": asking(calls.Edit("q", bytes(9) + b"x" * EDIT_BYTES, bundled("dead")[:1])),
        "in vain": asking(calls.Edit("q", b"", named("ready")[:1])),
    },
    "repair_flows": {
        "": asking(calls.RepairFlows("flowing")),
        "named": asking(calls.RepairFlows("flowing", calls.START, [f"member{n:06}".encode() for n in range(BATCH)])),
    },
    "repair_lines": {how: asking(calls.RepairLines("grouped", how.encode())) for how in ("0", "m")},
    "results": {
        state: asking(calls.Results("q", "channel", [*named(state), *bundled(state)]))
        for state in ("ready", "claimed", "dead", "gone")
    },
    "report": {"": lambda s: [s.ask(calls.Report("q", id, "nobody/1", "half")) for id in named("claimed")]},
    "told_reports": {"": asking(calls.ToldReports("q", named("claimed")))},
    "figure": {"": asking(calls.Figure("figured", MINUTE, [(f"task {n}", ALL_COUNTS) for n in range(21)]))},
    "figures": {kind: asking(calls.ToldFigures("figured", kind, MINUTE, MINUTE + 399)) for kind in ("m", "h")},
    "drop_figures": {"": asking(calls.DropFigures("figured"))},
    "retire": {"": asking(calls.Retire("q", "ann"))},
    "broadcast": {"": asking(calls.Broadcast("topic", b"message"))},
    "room": {"": asking(calls.Room())},
    "seal": {"": lambda s: s.seal(2)},
    "settle": {
        verb: later(1300, lambda s, verb=verb: s.settle(*s.last.settle(verb, 0, "why"), dead_max=10))
        for verb in ("ack", "nack", "release", "bury", "extend")
    }
    | {"mixed": settle_mixed},
    "store": {
        how: asking(
            calls.Store("q", [calls.StoredRow(f"s{n}", f"c{n}", f"{how} 1000 1".strip(), b"all") for n in range(BATCH)])
        )
        for how in ("set", "count", "forget")
    },
    "aside": {"": asking(calls.Aside("q")), "named": asking(calls.Aside("q", items=[b"ready000001"]))},
    "drop_aside": {"": asking(calls.DropAside("q", encoded("ready")))},
    "drop_name": {"": asking(calls.DropName([b"\xff"]))},
    "stored": {"": asking(calls.Stored("q", "channel", [f"s{n}" for n in range(BATCH)]))},
    "movable": {how: asking(calls.Movable(how or "q", BATCH)) for how in ("", "grouped")},
    "metadata": {"": asking(calls.Metadata("q")), "fenced": asking(calls.Metadata("q", b"f0"))},
    "statistics": {"": lambda s: s.statistics(), "of expired items": later(3600, lambda s: s.statistics())},
    "turn": {"ack": take_turn("ack"), "release": take_turn("release"), "after an hour": later(3600, take_turn("ack"))},
    "trim": {"after an hour": later(3600, asking(calls.Trim("q")))},
}


@cache
def state(size: int) -> Large:
    return Large(size)


def test_every_script_is_counted() -> None:
    assert CALLS.keys() == SCRIPTS.keys() - OUTSIDE


@pytest.mark.parametrize("script", sorted(CALLS))
def test_what_a_call_touches_does_not_grow(script: str) -> None:
    for how, call in CALLS[script].items():
        small, large = state(SMALL).touched_by(call), state(LARGE).touched_by(call)
        assert large <= TOUCHED_MAX, (how, small, large)
        assert large <= small * GROWTH_MAX + 10, (how, small, large)


def test_a_clear_looks_at_few_members_of_groups_that_have_many_newer_ones() -> None:
    """Of each priority it looks at one, not at as many as its page has room for."""
    server, groups = state(SMALL), 100
    dump, server.queue = server.redis.dump(), "newer"
    try:
        for group in range(groups):
            puts = [Put(f"{group}-{n}", group=f"g{group}", pushed_at_ms=server.now_ms()) for n in range(100)]
            server.put(*(put._replace(priority=n % 2) for n, put in enumerate(puts)))
        touched = server.touched_by(asking(calls.Clear("newer", BATCH, "", 0, b"r")))
        assert touched <= 80 * groups
    finally:
        server.queue = "q"
        server.redis.restore(dump)


@pytest.mark.parametrize("read", [calls.DeadPage, calls.Page])
def test_a_page_of_a_search_is_small_whatever_it_meets(read: type[calls.DeadPage | calls.Page]) -> None:
    """At worst each letter is of another bundle, all items of which have failed for a reason."""
    server, count = state(SMALL), 2 * SEARCH_PAGE
    dump, server.queue = server.redis.dump(), "worst"
    try:
        ids = [f"{number:x}-0-0" for number in range(count)]
        for id in ids:
            server.put(Put(id, [b"payload"] * BUNDLE_MAX, pushed_at_ms=server.now_ms()))
        decided: dict[str, Decided] = {}
        while len(decided) < count:
            decided |= server.claim("ann", BATCH, lease_ms=600_000).decided
        for positions in ([0], list(range(1, BUNDLE_MAX))):
            for id in ids:
                decided |= server.settle(decided[id].settle("bury", 0, "why", positions)).decided
            server.now += 1000
        touched = server.touched_by(asking(read("worst", calls.START, SEARCH_PAGE)))
        assert SEARCH_PAGE * BUNDLE_MAX < touched <= TOUCHED_MAX, "all notes are read"
    finally:
        server.queue = "q"
        server.redis.restore(dump)


def test_counting_counts() -> None:
    """A script that reads all there is would be found."""
    server = state(SMALL)
    reads_all = """#!lua name=all
        redis.register_function('all', function(KEYS) return #redis.call('ZRANGE', KEYS[1], 0, -1) end)"""
    server.command("FUNCTION", "LOAD", reads_all)
    touched = server.touched_by(lambda s: s.command("FCALL", "all", 1, s.key("dead")))
    assert touched >= SMALL
