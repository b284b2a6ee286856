"""Random calls of the scripts, for the comparison of two servers: each argument is drawn by its name in the header.

A new script needs no change here if its arguments have the names of others.
"""

from __future__ import annotations

import random
import struct
from typing import cast

import pytest

from tests.stored import SHIFT_BYTES
from zkrq.protocol.calls import item_id, pack_gone, runs
from zkrq.protocol.flow_names import named
from zkrq.protocol.keys import key
from zkrq.protocol.payloads import join
from zkrq.protocol.records import (
    HELD,
    MEMBER,
    VERSION_BYTES,
    Bundle,
    Own,
    Row,
    Version,
    fresh,
    pack,
    unpack,
    waiting_for,
    with_fields,
)
from zkrq.protocol.scripts import SCRIPTS
from zkrq.testing.redis.server import MiniRedis

NAMESPACE = "t"
SINGLES = [f"i{n:02}" for n in range(8)]
BUNDLES = [f"1a0c4506cca-23-{n:x}" for n in range(6)]
BUNDLE_SIZE = 4
QUEUES = ("q1", "q2")
OWNERS = ("ann", "bob", "eve/x")
CHANNELS = ("c1", "c2", "c3")
FIRST_US = 1_750_000_000_000_000
WINDOW_MS = 300_000

OF_ITEMS = {"push_decided", "cancel", "redrive", "advance", "edit", "adopt", "admit"}
"""Scripts that take ids of items; others take those of bundles."""

STATES = "QQRCCDXF"

Word = bytes | str | int | float


class Load:
    """Draws calls of the scripts: arguments by their names in the headers, mostly such as make sense by now."""

    def __init__(self, seed: int, mini: MiniRedis) -> None:
        self.rng = random.Random(seed)
        self._of_flows = random.Random(seed)
        """For what only some calls have."""
        self.now_us = FIRST_US
        self._mini = mini
        # Of the call that is being drawn.
        self._script = ""
        self.queue = QUEUES[0]
        self._id = SINGLES[0]
        self._size = 1
        self._owner = OWNERS[0]

    def draw(self, script: str) -> list[Word]:
        """All arguments of a call."""
        header = SCRIPTS[script]
        repeated = header.repeated * self.rng.randint(1, 8)
        self._script, self.queue, self._owner = script, self.rng.choice(QUEUES), self.rng.choice(OWNERS)
        self._has_flow = self._of_flows.random() < 0.15
        drawn = {name: self._argument(name) for name in header.arguments}
        if drawn.get("whole") == 0:
            repeated = tuple(name for name in repeated if name != "payload")
        return [*drawn.values(), *map(self._argument, repeated)]

    def pass_time(self) -> None:
        self.now_us += self.rng.choice([1, 700, 40_000, 2_000_000, 70_000_000])

    def _argument(self, name: str) -> Word:
        draw = getattr(self, f"draw_{name}", None)
        if draw is None:
            pytest.fail(f"{self._script}.lua takes {name!r}: tell {__name__} how to draw it, as Load.draw_{name}")
        return draw()

    def _held(self, name: str) -> dict[bytes, bytes]:
        return cast("dict[bytes, bytes]", self._mini.value(key(NAMESPACE, self.queue, name).encode()) or {})

    def _packed(self) -> bytes | None:
        stored = self._held("records").get(self._id.encode())
        return stored and stored[SHIFT_BYTES:]

    def _record(self) -> Bundle | None:
        packed = self._packed()
        return unpack(packed) if packed else None

    def _mostly(self, usual: Word, *others: Word) -> Word:
        return usual if self.rng.random() < 0.9 else self.rng.choice(others)

    def draw_epoch(self) -> Word:
        epoch = int(self._held("server").get(b"epoch", b"1"))
        return self._mostly(epoch, epoch + 1, max(0, epoch - 1))

    def draw_generation(self) -> Word:
        return self._mostly(self._held("server").get(b"generation", b"g1"), "g1", "g2")

    def draw_expected(self) -> Word:
        return self._mostly(self._held("server").get(b"generation", b""), "", "g1")

    def draw_at_ms(self) -> Word:
        return self.now_us // 1000

    def draw_reason(self) -> Word:
        return "why"

    def draw_kept(self) -> Word:
        return self.rng.choice((b"", b"what another server keeps"))

    def draw_edit(self) -> Word:
        return self.rng.choice((b"", bytes(9) + b"content"))

    def draw_name(self) -> Word:
        return "redis-1"

    def draw_clock(self) -> Word:
        return self._mostly(self.now_us - 1_000_000, self.now_us - 9_000_000)

    def draw_known_ms(self) -> Word:
        return self.rng.choice([0, 500, 5_000, 120_000])

    def draw_deployment(self) -> Word:
        return self.rng.choice(("d", "d", "d", "other"))

    def draw_window_ms(self) -> Word:
        return 5_000

    def draw_holding(self) -> Word:
        return self.rng.randint(0, 1)

    def draw_topic(self) -> Word:
        return "topic"

    def draw_body(self) -> Word:
        return b"message"

    def draw_queue(self) -> Word:
        return self.queue

    def draw_put_window_ms(self) -> Word:
        return WINDOW_MS

    def draw_trim(self) -> Word:
        return self.rng.randint(0, 1)

    def draw_owner(self) -> Word:
        self._owner = self.rng.choice(OWNERS)
        return self._owner

    def draw_fenced(self) -> Word:
        return self._mostly("", *OWNERS)

    def draw_fenced_ago_ms(self) -> Word:
        return self.rng.choice([-1, -1, 0, 5_000])

    def draw_seq(self) -> Word:
        last = int(self._held("owners").get(self._owner.encode(), b"0"))
        return max(0, last + self.rng.choice([1, 1, 1, 1, 1, 0, 0, -1]))

    def draw_count(self) -> Word:
        return self.rng.choice([0, 1, 3, 20])

    def draw_kinds(self) -> Word:
        return self.rng.choice(["PVW", "P", "E"])

    def draw_state(self) -> Word:
        if self._script == "pause":
            return self.rng.choice(["P", "X"])
        return self.rng.choice(["ready", "scheduled", "claimed", "dead"])

    def draw_until_ms(self) -> Word:
        return self.rng.choice([0, 0, self.now_us // 1000 + self.rng.choice([1, 50, 60_000])])

    def draw_left_ms(self) -> Word:
        return self.rng.choice([1, 50, 60_000])

    def draw_section(self) -> Word:
        return self.rng.choice(["limits", "limits", "history", "size", "groups", "other"])

    def draw_settings(self) -> Word:
        return self.rng.choice(
            ["", "concurrency=2", "rate=3/1000", "concurrency=3,rate=5/100", "keep=3", "max=9", "ordered=1"]
        )

    def draw_mark(self) -> Word:
        return self.rng.choice(["", "", "0a1b2c3d", f"{self.rng.randrange(20):08x}"])

    def draw_forced(self) -> Word:
        return self.rng.choice("0001")

    def draw_replaced(self) -> Word:
        return self.rng.choice(["", "", "", "=", "=concurrency=2"])

    def draw_limited(self) -> Word:
        return self.rng.choice(["", "limits:concurrency=2", "history:keep=2"])

    def draw_begun(self) -> Word:
        return self.rng.choice(["", "", "10000 0 2 20000 1", "100000 0 1"])

    def draw_call(self) -> Word:
        return self.rng.choice(["", "one", "two"])

    def draw_max_attempts(self) -> Word:
        return self.rng.choice([0, 0, 1, 3])

    def draw_expired(self) -> Word:
        return self.rng.choice(["X", "D"])

    def draw_dead_max(self) -> Word:
        return self.rng.choice([0, 0, 1, 2])

    def draw_dead_age_ms(self) -> Word:
        return self.rng.choice([0, 0, 30_000])

    def draw_again(self) -> Word:
        return self.rng.randint(0, 1)

    def draw_replacing(self) -> Word:
        return self.rng.randint(0, 1)

    def draw_key_window_ms(self) -> Word:
        return self.rng.choice([0, 0, 1_000, 60_000])

    def draw_in_order(self) -> Word:
        return self.rng.randint(0, 1)

    def draw_wanted(self) -> Word:
        return self.rng.choice(["", "D", "M"])

    def draw_elsewhere(self) -> Word:
        return self._mostly(0, 1)

    def draw_as_of_ms(self) -> Word:
        return self.now_us // 1000 - self.rng.choice([0, 0, 0, WINDOW_MS + 1])

    def draw_has_come(self) -> Word:
        return self._mostly(1, 0)

    def draw_skip(self) -> Word:
        return self.rng.choice([0, 0, 1])

    def draw_cursor(self) -> Word:
        if self._script == "clear":
            return self.rng.choice(["", "", "s", "r", "m", f"r0 {self.draw_id()}", f"s5 {BUNDLES[0]}\0\2", "m g\0\1"])
        if self._script == "repair_lines":
            return self.rng.choice(["0", "0", "g0", "m", "m=", "m=g"])
        if self._script == "repair_flows":
            return self.rng.choice([b"0", b"0", b"\xfe", b"\xfeLf\0"])
        if self._script == "dead_page":
            dead = [f"{score} ".encode() + entry for entry, score in self._held("dead").items()]
            return self.rng.choice(["0", "0", f"{self.now_us} {self.draw_id()}", *dead[:3]])
        return "0"

    def _flow(self) -> bytes:
        return self._of_flows.choice([b"f", b"ff"])

    def _held_for(self) -> bytes:
        return self._of_flows.choice([b"T", b"F", b"A"]) + self._flow()

    def draw_checks(self) -> Word:
        return self.rng.choice([0, 1])

    def draw_letter(self) -> Word:
        return self._of_flows.choice(["N", "I"])

    def draw_outer(self) -> Word:
        return self._of_flows.choice([b"", b"f", b"ff"])

    def draw_flow(self) -> Word:
        return self._flow()

    def draw_verb(self) -> Word:
        often = ["begin", "begin", "seal", "look", "end", "cancel", "finish"]
        return self.rng.choice([*often, "join", "live", "open", "wait", "fail", "close"])

    def draw_life(self) -> Word:
        return self.rng.choice([0, 1, 1, 2])

    def draw_policy(self) -> Word:
        return self.rng.choice(["", "", "f", "m", "l"])

    def draw_deadline_ms(self) -> Word:
        return self.rng.choice([0, 0, 1_000, 3_600_000])

    def draw_leg(self) -> Word:
        return self.rng.choice(["x", "y"])

    def draw_remaining(self) -> Word:
        return self.rng.choice(["", "", "L", "D", "MV", ",1,2,3"])

    def draw_outcome(self) -> Word:
        return self.rng.choice(["", "", "done", "failed", "cancelled"])

    def draw_stop(self) -> Word:
        return self.rng.choice([0, 0, 1])

    def draw_stamp(self) -> Word:
        return self.rng.choice([0, 0, 1, 2])

    def draw_keep_ms(self) -> Word:
        return self.rng.choice([1_000, 3_600_000])

    def draw_only(self) -> Word:
        return self._mostly("", "=", "=g")

    def draw_group(self) -> str | None:
        if self._script == "group_page":
            return self.rng.choice(["g", "h", "none"])
        return self.rng.choice([None, None, "", "g", "h"])

    def draw_passed(self) -> Word:
        return self.rng.choice([0, 0, 1])

    def draw_key(self) -> Word:
        return self.rng.choice(["k1", "k2", "none"])

    def draw_before_ms(self) -> Word:
        return self._mostly(self.now_us // 1000, 0)

    def draw_moment_ms(self) -> Word:
        return self.now_us // 1000 - self.rng.choice([0, 0, 5_000])

    def draw_lease_ms(self) -> Word:
        return self.rng.choice([1_000, 60_000])

    def draw_waiter(self) -> Word:
        return self.rng.choice(["", *CHANNELS])

    def draw_whole(self) -> Word:
        return self.rng.randint(0, 1)

    def draw_floor_ms(self) -> Word:
        return self.rng.choice([0, self.now_us // 1000 - 1_000_000])

    def draw_repairer(self) -> Word:
        return self.rng.choice(["r1", "r2"])

    def draw_hold_ms(self) -> Word:
        return 3_000

    def draw_id(self) -> Word:
        claimed = sorted(self._held("claimed"))
        if self._script == "settle" and claimed and self.rng.random() < 0.8:
            self._id = self.rng.choice(claimed).decode()
        else:
            self._id = self.rng.choice(SINGLES if self.rng.random() < 0.4 else BUNDLES)
        if self._script in OF_ITEMS and self._id in BUNDLES:
            return item_id(self._id, self.rng.randrange(BUNDLE_SIZE + 1))
        return self._id

    def draw_record(self) -> Word:
        pushed_at_ms = self.now_us // 1000 - self.rng.choice([0, 0, 0, 1_000, WINDOW_MS + 1])
        priority = self.rng.choice([0, 0, 5, 9])
        is_alone = self._id in SINGLES or self._script in ("push_decided", "adopt")
        self._size = 1 if is_alone else BUNDLE_SIZE
        key, ttl_ms = self.rng.choice(["", "", "k1", "k2"]), self.rng.choice([0, 0, 500.0, 60_000.0])
        if self._script in ("push_plain", "push_decided", "adopt"):
            if is_alone:
                if self._script == "push_decided" and self._has_flow and self._of_flows.random() < 0.2:
                    flow = self._flow()
                    fields = {MEMBER: flow, HELD: waiting_for([named(QUEUES[0], "i01"), named(QUEUES[1], "i02")])}
                    return with_fields(fresh(priority, pushed_at_ms, key=key), fields)
                if self._script == "push_decided" and self._has_flow and self._of_flows.random() < 0.5:
                    held_for = self._of_flows.choice([b"T", b"F", b"A", b"I"]) + self._flow()
                    fields = {MEMBER: self._flow()} if held_for.startswith(b"I") else {}
                    return with_fields(fresh(priority, pushed_at_ms, key=key), {**fields, HELD: held_for})
                delay_ms, group = self.draw_delay_ms(), self.draw_group()
                record = fresh(priority, pushed_at_ms, delay_ms=delay_ms, key=key, ttl_ms=ttl_ms, group=group)
            else:
                record = fresh(
                    priority, pushed_at_ms, size=BUNDLE_SIZE, delay_ms=self.draw_delay_ms(), group=self.draw_group()
                )
            return with_fields(record, {MEMBER: self._flow()}) if self._has_flow else record
        return pack(self._bundle(priority, pushed_at_ms, key if is_alone else "", ttl_ms if is_alone else 0))

    def _bundle(self, priority: int, pushed_at_ms: int, key: str, ttl_ms: float) -> Bundle:
        """A record as a primary may have decided it."""
        rng, size = self.rng, self._size
        known = self._record()
        version = known.version if known else Version(0, 1)
        version = Version(version.epoch + rng.choice([0, 0, 1]), max(1, version.n + rng.choice([-1, 0, 1])))
        if known:
            size = self._size = len(known.states)
        states = "".join(rng.choice(STATES) for _ in range(size))
        rows = [
            Row(rng.choice(OWNERS), rng.randint(1, 20), 60_000, self.now_us + rng.choice([-1_000_000, 1_000_000]))
            for _ in range(rng.randint(1, 3))
        ]
        return Bundle(
            version,
            states,
            [rng.randint(1, len(rows)) if state == "C" else rng.randint(0, len(rows)) for state in states],
            [rng.randint(0, 3) for _ in states],
            priority,
            self._id in SINGLES,
            pushed_at_ms,
            self.now_us - rng.choice([0, 1_000, -500_000]),
            self.now_us - rng.choice([0, 0, 3_000]),
            min(row.deadline_us for row in rows) if "C" in states else 0,
            rows,
            {
                at: Own(self.now_us + rng.choice([0, -700_000, 2_000_000]), rng.randint(0, 2))
                for at, state in enumerate(states)
                if state in "RD" or (state == "C" and rng.random() < 0.5)
            },
            key,
            self.now_us + 1000 * ttl_ms if ttl_ms else 0,
            1000 * ttl_ms,
            group=known.group if known and rng.random() < 0.9 else self.draw_group(),
        )

    def draw_notes(self) -> Word:
        text = self.rng.choice([b"", b"boom", b"note\0"])
        return struct.pack("<BH", self.rng.randint(1, self._size), len(text)) + text if text else b""

    def draw_since(self) -> Word:
        earlier = self.rng.choice([0, 0, 2_000, 70_000_000])
        return self._mostly(-self.now_us + earlier, -self.now_us if self._script in ("forward", "mend") else "")

    def draw_head(self) -> Word:
        held = self._packed() or b""
        return self.rng.choice([held, held, held, fresh(0, 0)])[: VERSION_BYTES.stop]

    def draw_delay_ms(self) -> int:
        return self.rng.choice([0, 0, 500, 60_000])

    def draw_payload(self) -> Word:
        if self._script in ("apply", "apply_new") and self.rng.random() < 0.3:
            return b""
        return join([self.rng.choice([b"\0\0", b"\0\0payload", b"\0\0\0\xff\r\n"]) for _ in range(self._size)])

    def _positions(self) -> list[int]:
        known = self._record()
        size = len(known.states) if known else 1
        some = [position for position in range(size) if self.rng.random() < 0.6] or [0]
        return some if self.rng.random() < 0.95 else [*some, size]

    def draw_items(self) -> Word:
        if self._script == "cut":
            return self._mostly(bytes(self._positions()), b"")
        return runs(self._positions())

    def draw_cuts(self) -> Word:
        gone = [(self.rng.choice([*SINGLES, *BUNDLES]).encode(), bytes(self._positions())) for _ in range(3)]
        return self._mostly(b"", pack_gone(gone), pack_gone((id, b"") for id, _ in gone))

    def draw_version(self) -> Word:
        held = self._packed() or fresh(0, 0)
        return self._mostly(held[VERSION_BYTES], fresh(0, 0)[VERSION_BYTES], b"\t" * 8)

    def draw_minute(self) -> Word:
        return self._mostly(FIRST_US // 60_000_000 + self.rng.randrange(3), 0, 10**12)

    def draw_task(self) -> Word:
        return self.rng.choice(["", "welcome", "two words", "a\tb", *(f"task {n}" for n in range(12))])

    def draw_counts(self) -> Word:
        return self._mostly(f"0:{self.rng.randrange(99)} 1:7 12:3 99:1", "", "1:x :3 7", "1:" + 20 * "9")

    def draw_kind(self) -> Word:
        return self.rng.choice(["m", "h"])

    def draw_earliest(self) -> Word:
        return FIRST_US // 60_000_000 - self.rng.choice([0, 10, 500])

    def draw_latest(self) -> Word:
        return FIRST_US // 60_000_000 + self.rng.choice([0, 10, 500])

    def draw_token(self) -> Word:
        known = self._record()
        tokens = [row.token for row in known.rows] if known else []
        return self._mostly(self.rng.choice(tokens) if tokens else "", "ann/1")

    def draw_text(self) -> Word:
        """Of a result, or the id of a counter."""
        return self.rng.choice(["started", "done", "counter", *SINGLES])

    def draw_how(self) -> Word:
        if self._script == "store":
            return self.rng.choice(["set 60000 0", "set 60000 1", "set 5 1", "count 60000", "forget"])
        verb, ms = self.rng.choice(["nack", "release", "bury", "extend"]), self.rng.choice([0, 1, 2_000])
        text = self.rng.choice(["", "boom", "\xe4" * 600, "two\nlines \0 and more"])
        return self.rng.choice(["ack", f"{verb} {ms} {text}"])
