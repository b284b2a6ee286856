"""Random calls of the scripts, for the comparison of two servers: each argument is drawn by its name in the header.

A new script needs no change here if its arguments have the names of others.
"""

from __future__ import annotations

import random
from typing import cast

import pytest

from zkrq.protocol.keys import key
from zkrq.protocol.records import VERSION_BYTES, Record, State, Version, fresh, pack, unpack
from zkrq.protocol.scripts import SCRIPTS
from zkrq.testing.redis.server import MiniRedis

NAMESPACE = "t"
IDS = [f"i{n:02}" for n in range(14)]
QUEUES = ("q1", "q2")
OWNERS = ("ann", "bob", "eve/x")
CHANNELS = ("c1", "c2", "c3")
FIRST_US = 1_750_000_000_000_000
WINDOW_MS = 300_000

Word = bytes | str | int | float


class Load:
    """Draws calls of the scripts: arguments by their names in the headers, mostly such as make sense by now."""

    def __init__(self, seed: int, mini: MiniRedis) -> None:
        self.rng = random.Random(seed)
        self.now_us = FIRST_US
        self._mini = mini
        # Of the call that is being drawn.
        self._script = ""
        self.queue = QUEUES[0]
        self._id = IDS[0]
        self._owner = OWNERS[0]

    def draw(self, script: str) -> list[Word]:
        """All arguments of a call."""
        header = SCRIPTS[script]
        repeated = header.repeated * self.rng.randint(1, 8)
        self._script, self.queue, self._owner = script, self.rng.choice(QUEUES), self.rng.choice(OWNERS)
        drawn = {name: self._argument(name) for name in header.arguments}
        if drawn.get("payloads_given") == 0:
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
        held = self._mini.content().get(key(NAMESPACE, self.queue, name).encode(), {})
        return cast("dict[bytes, bytes]", held)

    def _record(self) -> Record | None:
        packed = self._held("records").get(self._id.encode())
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

    def draw_state(self) -> Word:
        if self._script == "pause":
            return self.rng.choice(["P", "X"])
        return self.rng.choice(["ready", "scheduled", "claimed", "dead"])

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

    def draw_max_size(self) -> Word:
        return self.rng.choice([0, 0, 3])

    def draw_again(self) -> Word:
        return self.rng.randint(0, 1)

    def draw_wanted(self) -> Word:
        return self.rng.choice(["", "D"])

    def draw_skip(self) -> Word:
        return self.rng.choice([0, 0, 1])

    def draw_cursor(self) -> Word:
        if self._script == "clear":
            return self.rng.choice(["", "", "s", "r", f"r0 {self.draw_id()}"])
        return "0"

    def draw_before_ms(self) -> Word:
        return self._mostly(self.now_us // 1000, 0)

    def draw_lease_ms(self) -> Word:
        return self.rng.choice([1_000, 60_000])

    def draw_waiter(self) -> Word:
        return self.rng.choice(["", *CHANNELS])

    def draw_payloads_given(self) -> Word:
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
            self._id = self.rng.choice(IDS)
        return self._id

    def draw_record(self) -> Word:
        pushed_at_ms = self.now_us // 1000 - self.rng.choice([0, 0, 0, 1_000, WINDOW_MS + 1])
        priority = self.rng.choice([0, 0, 5, 9])
        key, ttl_ms = self.rng.choice(["", "", "k1", "k2"]), self.rng.choice([None, None, 500.0, 60_000.0])
        if self._script in ("put", "push"):
            return fresh(priority, pushed_at_ms, key, ttl_ms)
        known = self._record()
        version = known.version if known else Version(0, 1)
        version = Version(version.epoch + self.rng.choice([0, 0, 1]), max(1, version.n + self.rng.choice([-1, 0, 1])))
        state = self.rng.choice(list(State))
        token = f"{self.rng.choice(OWNERS)}/{self.rng.randint(1, 20)}" if state is not State.QUEUED else ""
        return pack(
            Record(version, state, priority, 1, 1, pushed_at_ms, self.now_us, 60_000, token, key, "note\0", ttl_ms)
        )

    def draw_head(self) -> Word:
        held = self._held("records").get(self._id.encode(), b"")
        return self.rng.choice([held, held, held, fresh(0, 0)])[:10]

    def draw_left_ms(self) -> Word:
        return self.rng.choice([-5_000, 0, 300, 60_000, "300 900.5", "0 -7.000"])

    def draw_delay_ms(self) -> Word:
        return self.rng.choice([0, 0, 500, 60_000, "0 900.000", "500 60000.000"])

    def draw_payload(self) -> Word:
        return self.rng.choice([b"", b"payload", b"\0\xff\r\n"])

    def draw_version(self) -> Word:
        held = self._held("records").get(self._id.encode(), fresh(0, 0))
        return self._mostly(held[VERSION_BYTES], fresh(0, 0)[VERSION_BYTES], b"\t" * 8)

    def draw_token(self) -> Word:
        record = self._record()
        return self._mostly(record.token if record else "", "ann/1")

    def draw_how(self) -> Word:
        verb, ms = self.rng.choice(["nack", "release", "bury", "extend"]), self.rng.choice([0, 1, 2_000])
        text = self.rng.choice(["", "boom", "\xe4" * 600, "two\nlines \0 and more"])
        return self.rng.choice(["ack", f"{verb} {ms} {text}"])
