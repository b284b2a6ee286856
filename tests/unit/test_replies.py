"""The meaning of a server's answer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.every import every
from tests.unit.every_call import CALLS, sentinels
from zkrq.protocol.calls import Call
from zkrq.protocol.replies import MAY_HAVE_HAPPENED, VERDICTS, Answer, Status, Verdict, denial, read_error, read_reply
from zkrq.protocol.scripts import SCRIPTS, Script


@every("status", Status)
def test_every_status_has_a_verdict(status: Status) -> None:
    assert Answer(status).verdict is VERDICTS[status]


REPLIES = [(script, status, len(shape)) for script in SCRIPTS.values() for status, shape in script.replies.items()]


@every(("script", "status", "values"), REPLIES)
def test_every_reply_of_a_header_is_read(script: Script, status: str, values: int) -> None:
    body = tuple([] if value.width else 1 for value in script.replies[status])
    assert len(body) == values
    assert read_reply([status.encode(), *body], script.name) == Answer(Status(status), body, status)


def broken(reply: object, script: str) -> bool:
    """Whether it is reported, with the reply, and nobody is evicted for it."""
    answer = read_reply(reply, script)
    if answer.status is not Status.BROKEN:
        return False
    assert (answer.body, answer.verdict) == ((), Verdict.REFUSE)
    assert answer.reason.startswith(f"{script} gave an unknown reply: ")
    assert repr(reply)[:200] in answer.reason
    return True


@every("reply", [None, [], b"OK", 1, "OK", [b"WHAT"], ["OK"], [None], [[b"OK"]], [b""], (b"OK",)])
def test_unknown_reply_is_broken(reply: object) -> None:
    assert broken(reply, "seal")


@every(("script", "status", "values"), REPLIES)
def test_reply_with_another_number_of_values_is_broken(script: Script, status: str, values: int) -> None:
    body: list[Any] = [[] if value.width else 1 for value in script.replies[status]]
    assert broken([status.encode(), *body, 1], script.name)
    if any(value.may_lack for value in script.replies[status]):
        assert read_reply([status.encode(), *body[:-1]], script.name).body == tuple(body)
        body.pop()
    if body:
        assert broken([status.encode(), *body[:-1]], script.name)


UNPROMISED: list[tuple[str, list[Any]]] = [
    ("push_plain", [b"OK", 0, []]),  # no list
    ("count", [b"OK", 1, 2, [], 4]),  # a list
    ("pause", [b"OK", [b"id", b"record"]]),  # half a record
    ("apply", [b"OK", [b"1"], []]),  # no position
    ("push_plain", [b"OK", [], [1, None]]),
    ("claim_counts", [b"OK", b"0", [1, 1]]),  # no owner
    ("heads", [b"OK", b"0", [b"id", [b"head"]]]),
    ("told_reports", [b"OK", [[], b"half"]]),  # no age
    ("told_reports", [b"OK", [1, None]]),
    ("push_plain", [b"FENCED"]),  # a status that this script does not give
    ("claim", [b"GONE"]),
]


@every(("script", "reply"), UNPROMISED)
def test_reply_that_its_header_does_not_promise_is_broken(script: str, reply: list[object]) -> None:
    assert broken(reply, script)


def test_reason_for_a_large_unknown_reply_is_short() -> None:
    assert len(read_reply([b"x" * 10_000], "seal").reason) < 300


SCALARS = st.none() | st.integers() | st.binary(max_size=8) | st.sampled_from([b"OK", b"0", 0, 1])
NESTED = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=6), max_leaves=30)


def values_of(script: str) -> st.SearchStrategy[list[object]]:
    """Bodies that resemble what the header promises."""
    rows = st.lists(SCALARS, max_size=12)
    return st.tuples(*(rows | NESTED if value.width else NESTED for value in SCRIPTS[script].replies["OK"])).map(list)


@given(call=st.sampled_from(list(CALLS.values())), data=st.data())
@settings(max_examples=150, deadline=None)
def test_no_reply_makes_a_caller_raise(call: type[Call[Any]], data: st.DataObject) -> None:
    """What is not broken can be read."""
    body = data.draw(values_of(call.script) | st.lists(NESTED, max_size=6))
    answer = read_reply(data.draw(st.just([b"OK", *body]) | NESTED), call.script)
    if answer.status is Status.OK:
        items = {"items": ()} if SCRIPTS[call.script].repeated else {}
        call(**sentinels(call), **items).read(answer.body)
    else:
        assert answer.reason


@every(
    ("message", "status", "verdict"),
    [
        ("OOM command not allowed when used memory > 'maxmemory'.", Status.REFUSED, Verdict.REFUSE),
        ("OOM allow-oom flag is not set on the script, can not run it", Status.REFUSED, Verdict.REFUSE),
        ("READONLY You can't write against a read only replica.", Status.UNFIT, Verdict.EVICT),
        ("MASTERDOWN Link with MASTER is down", Status.UNFIT, Verdict.EVICT),
        ("MISCONF Redis is configured to save RDB snapshots", Status.UNFIT, Verdict.EVICT),
        ("NOAUTH Authentication required.", Status.DENIED, Verdict.CORRECT),
        ("WRONGPASS invalid username-password pair or user is disabled.", Status.DENIED, Verdict.CORRECT),
        ("NOPERM this user has no permissions", Status.DENIED, Verdict.CORRECT),
        ("DENIED Redis is running in protected mode because", Status.DENIED, Verdict.CORRECT),
        ("ERR AUTH <password> called without any password configured", Status.DENIED, Verdict.CORRECT),
        ("ERR DB index is out of range", Status.DENIED, Verdict.CORRECT),
        ("ERR max number of clients reached", Status.CROWDED, Verdict.ACCUSE),
        ("LOADING Redis is loading the dataset in memory", Status.UNREACHABLE, Verdict.EVICT),
        ("BUSY Redis is busy running a script.", Status.TIMEOUT, Verdict.EVICT),
        ("WRONGTYPE Operation against a key", Status.BROKEN, Verdict.REFUSE),
        ("ERR user_script:1: too many results to unpack", Status.BROKEN, Verdict.REFUSE),
        ("", Status.BROKEN, Verdict.REFUSE),
    ],
)
def test_error_is_known_by_its_first_word(message: str, status: Status, verdict: Verdict) -> None:
    answer = read_error(message)
    assert (answer.status, answer.verdict, answer.reason) == (status, verdict, message)


def test_refusals_of_memory_did_not_happen() -> None:
    """Memory pressure is a refusal: the operation may say that nothing was written."""
    assert Status.REFUSED not in MAY_HAVE_HAPPENED


@pytest.mark.parametrize("status", [Status.DENIED, Status.CROWDED, Status.HINDERED])
def test_what_lies_with_one_client_never_evicts(status: Status) -> None:
    assert VERDICTS[status] is not Verdict.EVICT
    assert status not in MAY_HAVE_HAPPENED


@every(
    ("reason", "step"),
    [
        ("NOAUTH Authentication required.", "give this client a user and a password"),
        ("WRONGPASS invalid username-password pair", "correct the user or the password"),
        ("NOPERM this user has no permissions", "give this client's user the right"),
        ("ERR DB index is out of range", "correct the database number"),
        ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed", "trust its authority"),
        ("one:6379 speaks TLS", "write rediss://"),
        ("one:6379 speaks no TLS", "write redis://"),
        ("one:6379 refuses this client's certificate, or misses one: alert", "show one that the server trusts"),
        ("NOPERM User u has no permissions to run the 'fcall' command", "+fcall +function|load"),
        ("NOPERM this user has no permissions to run the 'function|load' command", "have an administrator load"),
        (
            "'http://b' is not a Redis URL: redis://, rediss:// or unix:// expected",
            "its own URL of that server, in redis",
        ),
        ("the view has it at redis://b, and this client was told to use TLS", "its own URL of that server, in redis"),
        ("it is Redis 6.2.14, and zkrq needs Redis 7 or later, or Valkey", "upgrade that server"),
        ("redis_auth cannot be read: no such file", "correct what redis_auth names"),
        ("[X509: KEY_VALUES_MISMATCH] key values mismatch", "its options or its certificates"),
    ],
)
def test_denial_says_what_to_do(reason: str, step: str) -> None:
    told = denial("b", Answer(Status.DENIED, (), reason))
    assert "server b" in told
    assert reason in told
    assert step in told


@every("status", [Status.STALE, Status.NOTINSYNC, Status.GONE, Status.FENCED, Status.UNFIT])
def test_answers_of_the_gate_did_not_happen(status: Status) -> None:
    """Three answers: refused, nothing happened."""
    assert status not in MAY_HAVE_HAPPENED


@pytest.mark.parametrize("status", [Status.OK, Status.TIMEOUT, Status.UNREACHABLE, Status.BROKEN])
def test_lost_answers_may_have_happened(status: Status) -> None:
    """Three answers: unknown, never failed."""
    assert status in MAY_HAVE_HAPPENED
