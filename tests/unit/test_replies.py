"""What a server's answer means."""

from __future__ import annotations

import pytest

from zkrq.protocol.replies import (
    MAY_HAVE_HAPPENED,
    VERDICTS,
    Answer,
    Status,
    Verdict,
    denial,
    read_error,
    read_reply,
)


@pytest.mark.parametrize("status", Status)
def test_every_status_has_a_verdict(status: Status) -> None:
    assert Answer(status).verdict is VERDICTS[status]


@pytest.mark.parametrize("status", Status)
def test_status_is_read_from_a_reply(status: Status) -> None:
    assert read_reply([status.value.encode(), [b"x"], 1]) == Answer(status, ([b"x"], 1), status.name)


@pytest.mark.parametrize("reply", [None, [], b"OK", 1, "OK", [b"WHAT"], ["OK"], [None], [[b"OK"]], [b""], (b"OK",)])
def test_unknown_reply_is_broken(reply: object) -> None:
    """Told to the caller, and nobody is evicted for it."""
    answer = read_reply(reply)
    assert (answer.status, answer.verdict) == (Status.BROKEN, Verdict.REFUSE)
    assert repr(reply) in answer.reason


def test_reason_for_a_large_unknown_reply_is_short() -> None:
    assert len(read_reply([b"x" * 10_000]).reason) < 300


@pytest.mark.parametrize(
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
        ("ERR max number of clients reached", Status.HINDERED, Verdict.WAIT),
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


@pytest.mark.parametrize("status", [Status.DENIED, Status.HINDERED])
def test_what_lies_with_one_client_never_evicts(status: Status) -> None:
    assert VERDICTS[status] is not Verdict.EVICT
    assert status not in MAY_HAVE_HAPPENED


@pytest.mark.parametrize(
    ("reason", "step"),
    [
        ("NOAUTH Authentication required.", "give this client a user and a password"),
        ("WRONGPASS invalid username-password pair", "correct the user or the password"),
        ("NOPERM this user has no permissions", "give this client's user the right"),
        ("ERR DB index is out of range", "correct the database number"),
        ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed", "its options or its certificates"),
    ],
)
def test_denial_says_what_to_do(reason: str, step: str) -> None:
    told = denial("b", Answer(Status.DENIED, (), reason))
    assert "server b" in told
    assert reason in told
    assert step in told


@pytest.mark.parametrize("status", [Status.STALE, Status.NOTINSYNC, Status.GONE, Status.FENCED, Status.UNFIT])
def test_answers_of_the_gate_did_not_happen(status: Status) -> None:
    """Three answers: refused, nothing happened."""
    assert status not in MAY_HAVE_HAPPENED


@pytest.mark.parametrize("status", [Status.OK, Status.TIMEOUT, Status.UNREACHABLE, Status.BROKEN])
def test_lost_answers_may_have_happened(status: Status) -> None:
    """Three answers: unknown, never failed."""
    assert status in MAY_HAVE_HAPPENED
