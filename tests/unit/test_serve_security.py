"""Who may ask the HTTP server what: names, pages of other sites, tokens, sessions."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.every import every
from zkrq.base import errors
from zkrq.base.errors import ConfigError, ZkrqError
from zkrq.serve import security
from zkrq.serve.problems import INTERNAL, KINDS, kind_of
from zkrq.serve.rights import NEEDS, READS, Caller, Right
from zkrq.serve.security import (
    COOKIE,
    SESSION_SECONDS,
    Asked,
    Policy,
    caller_of,
    end_session,
    find_token,
    host_of,
    judge,
    make_session,
    policy_for,
    session_of,
    session_token,
)

TOKEN = "a-long-random-text"
OTHER = "another-random-text"
OPEN = policy_for("127.0.0.1", (), ())
CLOSED = policy_for("0.0.0.0", (TOKEN, OTHER), ())


def status(policy: Policy, method: str = "GET", path: str = "/v1/queues", cookie: str = "", **headers: str) -> int:
    """The status with which a request is refused, 200 if it is let in."""
    named = {name.replace("_", "-"): value for name, value in {"host": "127.0.0.1:8080", **headers}.items()}
    asked = Asked(method, path, named, cookie)
    refusal = judge(policy, asked, caller_of(policy, asked, 1000.0))
    return refusal.kind.status if refusal else 200


@every("host", ["127.0.0.1:8080", "localhost:8080", "LOCALHOST", "localhost.", "[::1]:8080", "127.0.0.1"])
def test_on_loopback_it_answers_by_its_own_names(host: str) -> None:
    assert status(OPEN, host=host) == 200


@every("host", ["evil.example", "", "127.0.0.1.evil.example", "[::1", "10.0.0.1"])
def test_without_a_token_it_answers_by_no_other_name(host: str) -> None:
    """A page of another site whose name was made to mean 127.0.0.1 would be this server's own page otherwise."""
    assert status(OPEN, host=host) == 421


def test_a_proxys_name_can_be_added_and_a_token_makes_every_name_good() -> None:
    assert status(policy_for("127.0.0.1", (), ("queue.example",)), host="queue.example") == 200
    assert status(CLOSED, host="queue.example", authorization=f"Bearer {TOKEN}") == 200
    named = policy_for("0.0.0.0", (TOKEN,), ("queue.example:443",))
    assert status(named, host="other.example", authorization=f"Bearer {TOKEN}") == 421


@every(
    ("headers", "expected"),
    [
        ({}, 200),
        ({"sec_fetch_site": "same-origin"}, 200),
        ({"sec_fetch_site": "none"}, 200),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
        ({"origin": "http://127.0.0.1:8080"}, 200),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": ""}, 403),
        ({"origin": "http://["}, 403),
    ],
)
def test_a_page_of_another_site_changes_nothing(headers: dict[str, str], expected: int) -> None:
    for policy, more in ((OPEN, {}), (CLOSED, {"authorization": f"Bearer {TOKEN}"})):
        assert status(policy, "POST", "/v1/queues/q/push", **headers, **more) == expected
        assert status(policy, **headers, **more) == 200  # it may ask, and the browser shows it no answer


@every(
    ("authorization", "expected"),
    [
        (f"Bearer {TOKEN}", 200),
        (f"bearer  {OTHER}", 200),
        (f"Basic {TOKEN}", 401),
        (TOKEN, 401),
        ("Bearer", 401),
        ("Bearer \xe9\u20ac", 401),
        (f"Bearer {TOKEN}x", 401),
        ("", 401),
    ],
)
def test_a_token_lets_in(authorization: str, expected: int) -> None:
    assert status(CLOSED, authorization=authorization) == expected
    assert status(CLOSED, "POST", authorization=authorization) == expected


def test_what_tells_nothing_needs_no_token() -> None:
    assert [status(CLOSED, path=path) for path in ("/login", "/static/style.css", "/readyz", "/", "/queues/q")] == [
        200,
        200,
        200,
        401,
        401,
    ]


@every("path", ["/static/a/style.css", "/static/../v1/queues", "/statics", "/login/x", "/livezz", "/readyz/", ""])
def test_what_only_begins_like_an_open_path_needs_a_token(path: str) -> None:
    """Also because resolving a path of thousands of folders is work."""
    assert status(CLOSED, path=path) == 401


def test_a_name_that_is_too_long_is_none() -> None:
    assert status(OPEN, host="127.0.0.1:" + "8" * 300) == 421
    long = f"http://{'a' * 300}"
    assert status(CLOSED, "POST", host=long[7:], origin=long, authorization=f"Bearer {TOKEN}") == 403


def test_a_session_is_for_a_time_and_for_holders_of_a_token() -> None:
    cookie = make_session(CLOSED.known[0], 1000.0, "1f")
    assert status(CLOSED, cookie=cookie) == 200
    assert session_token(CLOSED, cookie, 999.0 + SESSION_SECONDS)
    assert not session_token(CLOSED, cookie, 1000.0 + SESSION_SECONDS)
    until, _, signature = cookie.partition(".")
    for forged in (f"{int(until) + 1}.{signature}", f"{until}.", "", ".", f"{until}.\xe9", "x.y"):
        assert status(CLOSED, cookie=forged) == 401
    assert not session_token(policy_for("0.0.0.0", ("a-third-random-text",), ()), cookie, 1000.0)


def test_a_session_ends_when_its_browser_logs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "ENDED_MAX", 2)
    policy = policy_for("0.0.0.0", (TOKEN,), ())
    sessions = [make_session(policy.known[0], 1000.0, f"{number:x}") for number in range(4)]
    end_session(policy, sessions[0], 1000.0)
    assert status(policy, cookie=sessions[0]) == 401
    assert status(policy, cookie=sessions[1]) == 200
    end_session(policy, "nothing", 1000.0)
    assert list(policy.ended) == sessions[:1]
    for session in sessions[1:]:
        end_session(policy, session, 1000.0)
    assert list(policy.ended) == sessions[2:]
    assert session_of(f"{COOKIE}={sessions[0]}") == sessions[0]


def test_read_only_refuses_whatever_changes() -> None:
    shown = policy_for("127.0.0.1", (), (), read_only=True)
    assert (status(shown), status(shown, "POST"), status(shown, "DELETE")) == (200, 403, 403)
    assert status(shown, "POST", "/login") == status(shown, "POST", "/logout") == 200


def test_an_address_of_ipv6_is_a_name_too_and_nonsense_is_none() -> None:
    own = policy_for("::1", (), ("queue.example",))
    assert (status(own, host="[::1]:8080"), status(own, host="queue.example")) == (200, 200)
    assert (status(own, host=""), status(own, host="[::1")) == (421, 421)
    named = policy_for("fd00::5", (TOKEN,), ("queue.example",))
    assert status(named, host="[fd00::5]:8080", authorization=f"Bearer {TOKEN}") == 200


def test_a_page_that_names_no_server_is_not_its_own() -> None:
    for origin in ("null", "http://"):
        assert status(CLOSED, "POST", host="", origin=origin, authorization=f"Bearer {TOKEN}") == 403


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "::", "example.org"])
def test_without_a_token_it_does_not_listen_for_other_machines(host: str) -> None:
    with pytest.raises(ConfigError, match="no token"):
        policy_for(host, (), ())
    assert policy_for(host, (TOKEN,), ()).tokens == (TOKEN,)


@pytest.mark.parametrize("token", ["short", "with a space in the middle", "ümlaute-sind-kein-ascii", "x" * 15])
def test_a_token_that_is_no_good_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(ConfigError) as error:
        Policy((token,))
    assert token not in str(error.value)


def test_no_text_of_a_policy_has_a_token() -> None:
    assert TOKEN not in repr(CLOSED)


@pytest.mark.parametrize(("header", "host"), [("a.example:1", "a.example"), ("[::1]:80", "::1"), ("[x", "")])
def test_the_port_is_no_part_of_the_name(header: str, host: str) -> None:
    assert host_of(header) == host


def test_every_error_of_the_library_has_a_kind() -> None:
    """A new one must be given a status, and say what happened, rather than look like a bug of the server."""
    mistakes_of_the_program = {ZkrqError, errors.WrongLoop}
    kinds: list[Any] = [each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, ZkrqError)]
    assert len(kinds) > 10
    for kind in kinds:
        known = any(each in KINDS for each in kind.__mro__)
        assert known != (kind in mistakes_of_the_program), kind
    assert kind_of(errors.WrongLoop()) is INTERNAL
    assert kind_of(errors.NotLetIn()).status == 503


READER, ADMINISTRATOR = "a-token-that-reads", "a-token-that-administers"
THREE = policy_for("0.0.0.0", (TOKEN,), (), readers=(f"eve {READER}",), administrators=(f"ann {ADMINISTRATOR}",))


@every(
    ("token", "statuses"),
    [
        (READER, (200, 403, 403, 403, 200)),
        (TOKEN, (200, 200, 200, 403, 200)),
        (ADMINISTRATOR, (200, 200, 200, 200, 200)),
        ("a-token-of-nobody-at-all", (401, 401, 401, 401, 401)),
    ],
)
def test_each_kind_of_token_lets_do_what_it_says(token: str, statuses: tuple[int, ...]) -> None:
    """In a header, and in the session of a browser that has logged in with it."""
    asked = (
        ("GET", "/servers"),
        ("POST", "/v1/queues/q/push"),
        ("POST", "/queues/q/pause"),
        ("POST", "/servers/add"),
        ("POST", "/logout"),
    )
    found = find_token(THREE, token)
    cookie = make_session(found, 1000.0, "1f") if found else ""
    for (method, path), expected in zip(asked, statuses, strict=True):
        assert status(THREE, method, path, authorization=f"Bearer {token}") == expected
        assert status(THREE, method, path, cookie=cookie) == expected
    assert status(replace(THREE, read_only=True), "POST", "/servers/add", authorization=f"Bearer {token}") in (401, 403)


@every("path", ["/servers/add", "/servers", "/upgrade", "/servers/../queues/q/pause", "/servers/a\nb", "/upgrade/x"])
def test_without_a_token_nobody_administers(path: str) -> None:
    assert status(OPEN, "POST", path) == 403
    assert status(OPEN, "POST", "/queues/q/pause") == 200


def test_a_token_has_the_name_of_its_holder() -> None:
    def caller(policy: Policy, token: str) -> Caller | None:
        headers = {"host": "127.0.0.1", "authorization": f"Bearer {token}"}
        return caller_of(policy, Asked("GET", "/", headers), 1000.0)

    assert caller(THREE, READER) == ("eve", Right.READ)
    assert caller(THREE, TOKEN) == ("", Right.OPERATE)
    assert caller(THREE, ADMINISTRATOR) == ("ann", Right.ADMINISTER)
    assert caller(THREE, f"ann {ADMINISTRATOR}") is None
    assert caller(OPEN, "") == ("", Right.OPERATE)
    assert ADMINISTRATOR not in repr(THREE)
    for wrong in ((TOKEN, TOKEN), (f"a/b {TOKEN}",), (f"a b {TOKEN}",), (f"{'n' * 200} {TOKEN}",)):
        with pytest.raises(ConfigError):
            Policy(wrong)
    with pytest.raises(ConfigError, match="given twice"):
        Policy((TOKEN,), readers=(f"eve {TOKEN}",))


def test_the_page_says_what_each_right_lets_do() -> None:
    text = (Path(__file__).parents[2] / "docs" / "http.md").read_text()
    rows = re.findall(r"^\| (read|operate|administer) \| `(\S+)` \| (.*) \|$", text, re.MULTILINE)
    files = {Right.READ: "--read-token-file", Right.OPERATE: "--token-file", Right.ADMINISTER: "--admin-token-file"}
    needs = sorted((READS, *NEEDS), key=lambda need: need.right)
    assert rows == [(need.right.name.lower(), files[need.right], need.what) for need in needs]
