"""The record of changes: what is kept of it, and that nothing which is stored there can break it."""

from __future__ import annotations

import json

from tests.every import every
from zkrq.serve import audit
from zkrq.serve.audit import Line, decode, encode, merge


def line(number: int, text: str = "x") -> Line:
    return Line(1_000 + number, f"ann {text}", "pause", "orders", text, f"{number:08x}")


def test_the_last_lines_are_kept_and_each_attempt_is_another() -> None:
    lines = [line(number) for number in range(audit.AUDIT_MAX + 5)]
    assert decode(encode(lines)) == lines[5:]
    assert encode(lines) != encode(lines)
    assert decode(None) == decode(b"") == []
    large = [line(number, "\u00e9" * (audit.TEXT_MAX - 4)) for number in range(audit.AUDIT_MAX)]
    kept = encode(large)
    assert len(kept) < audit.AUDIT_BYTES + 5 * audit.AUDIT_MAX
    assert decode(kept) == large[-len(decode(kept)) :]


def test_what_was_written_before_is_not_written_twice() -> None:
    known = [line(1), line(2)]
    assert merge(known, [line(2), line(3)]) == [line(1), line(2), line(3)]


@every(
    "data",
    [
        b"\xff",
        b"[1]",
        b"{}",
        b'{"lines": 7}',
        b'{"lines": {"a": 1}}',
        b'{"lines": [7, null, "text", [], [1], [1, 2, 3, 4, 5, 6], [-1, "a", "b", "c", "d", "e"]]}',
        b'{"lines": [[1, "a", "b", "c", "d", "e", "f"], ["1", "a", "b", "c", "d", "e"]]}',
        b'{"lines": [[1e400, "a", "b", "c", "d", "e"], [true, "a", "b", "c", "d", "e"]]}',
        b"[" * 100_000,
    ],
)
def test_what_cannot_be_read_is_left_out(data: bytes) -> None:
    assert decode(data) == []


def test_a_good_line_among_bad_ones_is_read_and_long_texts_are_cut() -> None:
    data = json.dumps({"lines": [7, list(line(1)), [2, "w" * 999, "what", "on", "result", "id"]]}).encode()
    assert decode(data) == [line(1), Line(2, "w" * audit.TEXT_MAX, "what", "on", "result", "id")]
    assert line(10**15).at.year == 9999
