"""Dead letters in groups, payloads as text, and the questions before letters are changed."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from urllib.parse import parse_qsl, urlencode

from hypothesis import given
from hypothesis import strategies as st

from tests.every import every
from tests.unit.page_values import HOSTILE, NOON
from zkrq.client.items import Failure
from zkrq.serve.actions import FIELDS_MAX, Form, Outcome, question, read_form, read_outcome, scope_of, tell
from zkrq.serve.letters import SPARK_PARTS, Failed, columns, group, kind_of, value_of
from zkrq.serve.payloads import HEX_SHOWN, LINE_SHOWN, PAYLOAD_SHOWN, begin, fields_of, write


def letters() -> list[Failed]:
    reasons = ["TimeoutError: pay-{n} took 30.5 s"] * 5 + ["KeyError: 'price'"] * 2 + [None]
    return [
        Failed(
            "orders",
            replace(
                HOSTILE,
                id=f"letter-{number}",
                reason=reason and reason.format(n=number),
                died_at=NOON + timedelta(seconds=number),
                payload=json.dumps({"customer": "acme" if number < 6 else "globex", "lines": [number]}).encode(),
                headers={"tenant": str(number % 2)} if number else {},
                key=None,
                last_failures=(),
            ),
        )
        for number, reason in enumerate(reasons)
    ]


def test_letters_of_one_kind_are_one_group_whatever_their_numbers() -> None:
    groups = group(letters())
    assert [(each.value, len(each.failed)) for each in groups] == [
        ("TimeoutError: pay-… took ….… s", 5),
        ("KeyError: 'price'", 2),
        ("", 1),
    ]
    assert (groups[0].first, groups[0].last) == (NOON, NOON + timedelta(seconds=4))


def test_letters_are_grouped_by_what_they_carry() -> None:
    some = letters()
    assert columns(some) == ["reason", "field customer", "header tenant"]
    by_customer = group(some, "field customer")
    assert [(each.value, len(each.failed)) for each in by_customer] == [("acme", 6), ("globex", 2)]
    by_tenant = group(some, "header tenant")
    assert [(each.value, len(each.failed)) for each in by_tenant] == [("1", 4), ("0", 3), ("", 1)]
    hostile = Failed("orders", HOSTILE)
    assert value_of(hostile, "key") == HOSTILE.key
    assert value_of(hostile, "nonsense") == ""


def test_failures_of_several_queues_are_grouped_by_queue_and_by_group() -> None:
    some = letters()
    others = [Failed("mails", replace(some[0].item, group="tenant <7>")), Failed("mails", some[1].item)]
    assert columns(some + others)[:2] == ["reason", "queue"]
    assert "group" in columns(some + others)
    assert [(each.value, len(each.failed)) for each in group(some + others, "queue")] == [("orders", 8), ("mails", 2)]
    assert [each.value for each in group(some + others, "group")] == ["", "tenant <7>"]
    named = [Failed("mails", replace(some[0].item, task="<send>"))]
    assert "task" in columns(named)
    assert [each.value for each in group(named + some, "task")] == ["", "<send>"]


def test_a_group_tells_the_times_of_all_failures_that_are_kept() -> None:
    """Also of those before the last one; its curve spans the time of all that is shown."""
    hour = timedelta(hours=1)
    kept = tuple(Failure(NOON - number * hour, None, None, "x", None) for number in range(3))
    first = Failed("orders", replace(HOSTILE, reason="first", last_failures=kept))
    second = Failed("orders", replace(HOSTILE, reason="second", last_failures=kept[:1]))
    by_reason = {each.value: each for each in group([first, second])}
    assert (by_reason["first"].first, by_reason["first"].last) == (NOON - 2 * hour, NOON)
    assert (by_reason["second"].first, by_reason["second"].last) == (NOON, NOON)
    drawn = by_reason["second"].times
    assert drawn
    assert drawn.top == 1
    assert len(drawn.lines[0].split()) == SPARK_PARTS
    assert group([second])[0].times is None, "there is no time between them"


@every(
    ("reason", "kind"),
    [
        (None, ""),
        ("  order 17 \nsecond line", "order …"),
        ("at 0x7ffde1 of 123e4567-e89b-12d3-a456-426614174000", "at … of …"),
        ("token deadbeef00 is bad", "token … is bad"),
        ("feedback is decade", "feedback is decade"),
        ("failed in delivery 3 of 3: KeyError: 'price'", "KeyError: 'price'"),
        ("failed at an age of 90 s, of 60: KeyError: 'price'", "KeyError: 'price'"),
    ],
)
def test_a_kind_of_reason_has_no_numbers_and_ids(reason: str | None, kind: str) -> None:
    assert kind_of(reason) == kind


def test_json_is_indented_as_it_was_pushed() -> None:
    written = write(rb'{"a": 1.10, "e": {}, "b": [1e400, [], [1]], "c": "\ud800 ]\""}')
    assert written.form == "json"
    rows = ("{", '  "a": 1.10,', '  "e": {},', '  "b": [', "    1e400,", "    [],", "    [", "      1", "    ]", "  ],")
    assert written.text.split("\n") == [*rows, r'  "c": "\ud800 ]\""', "}"]
    assert write(b"5") == ("json", "5", False)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda each: st.lists(each) | st.dictionaries(st.text(), each),
    )
)
def test_indented_json_says_the_same(value: object) -> None:
    text = json.dumps(value)
    written = write(text.encode())
    if not written.cut:
        assert json.loads(written.text) == value
        assert written.text.split() == json.dumps(value, indent=2).split()


def test_what_is_no_json_is_text_or_hexadecimal() -> None:
    assert write("grüße".encode()) == ("text", "grüße", False)
    assert write(b"\x00\xffab") == ("hex", "000000  00 ff 61 62                                      ..ab", False)
    assert write(b'{"a":1}', "hex").form == "hex"
    assert write(b"x\x1b[31m").form == "hex"
    assert write(b"").form == "text"
    assert write(b"x" * (PAYLOAD_SHOWN + 1)).cut
    assert write(b"\xff" * (HEX_SHOWN + 1)).cut
    deep = write(b"[" * 900 + b"1," * 100_000 + b"1" + b"]" * 900)
    assert (deep.cut, len(deep.text)) == (True, PAYLOAD_SHOWN)
    assert write(b"[" * 100_000).form == "text"


def test_a_payload_in_a_list_is_one_short_line() -> None:
    assert begin(b'{"a":"\xc3\xa4"}') == '{"a":"ä"}'
    assert begin(b"a\n\n b") == "a b"
    assert begin(b"x" * 5000) == "x" * LINE_SHOWN + "…"


def test_fields_are_the_plain_ones_of_an_object() -> None:
    assert fields_of(b'{"a": 1, "b": [1], "c": "x", "d": true, "e": null}') == {"a": "1", "c": "x", "d": "true"}
    for payload in (b"[1]", b"\xff", b"nothing", b"[" * 100_000):
        assert fields_of(payload) == {}


# -- forms and questions -----------------------------------------------------------------------------------------------


def test_a_form_names_items_a_group_or_all_letters() -> None:
    assert read_form(b"") == Form()
    assert read_form(urlencode([("id", "a"), ("id", "b"), ("id", "a"), ("chosen", "yes")]).encode()) == Form(("a", "b"))
    assert read_form(b"chosen=yes") == Form(ids=())
    assert read_form(b"group=&by=key&confirmed=yes") == Form(None, "key", "", confirmed=True)
    assert read_form(b"&".join([b"id=x"] * (FIELDS_MAX + 1))) is None


@every(
    ("verb", "count", "ids", "group", "asked"),
    [
        ("redrive", 3, None, None, "Redrive all 3 dead letters?"),
        ("redrive", 1, None, None, "Redrive the one dead letter?"),
        ("redrive", 1, ["a"], None, None),
        ("redrive", 2, ["a", "b"], None, "Redrive the 2 dead letters that you chose?"),
        ("redrive", 1, ["a"], "KeyError", "Redrive 1 dead letter of “KeyError”?"),
        ("discard", 50, ["a"] * 50, "KeyError", "Discard 50 dead letters of “KeyError”? This cannot be undone."),
        ("discard", 50, ["a"] * 50, "", "Discard 50 dead letters of “none”? This cannot be undone."),
        ("discard", 1, ["a"], None, "Discard this dead letter? This cannot be undone."),
        ("cancel", 1, ["a"], None, "Cancel this item? This cannot be undone."),
        ("pause", 0, None, None, None),
    ],
)
def test_what_changes_much_is_asked_first(
    verb: str, count: int, ids: list[str] | None, group: str | None, asked: str | None
) -> None:
    assert question(verb, count, ids, group) == asked


def test_an_outcome_travels_in_an_address() -> None:
    outcome = Outcome("redrive", 48, 50)
    assert read_outcome(dict(parse_qsl(outcome.query))) == outcome
    assert tell("orders", outcome).startswith("48 dead letters of orders redriven. 2 of those chosen")
    assert tell("orders", Outcome("discard", 1)) == "1 dead letter of orders discarded."
    for query in (
        {"done": "<script>"},
        {"done": "redrive", "count": "x"},
        {"done": "redrive", "count": "9" * 5000},
        {},
    ):
        assert read_outcome(query) is None


@every(
    ("form", "told"),
    [
        (Form(), ""),
        (Form(("a", "b")), " (a, b)"),
        (Form(("a", "b", "c", "d")), " (a, b, c, and further ones)"),
        (Form(seconds=3600), " (for 1 h)"),
        (Form(until="2026-12-01T07:00"), " (until 2026-12-01T07:00 UTC)"),
    ],
)
def test_the_record_names_what_an_action_was_for(form: Form, told: str) -> None:
    assert scope_of(form) == told
