"""``report`` and ``told_reports``: how far the work on claimed items is, as their holders tell one server."""

from __future__ import annotations

from tests.lua.entries import Put
from tests.lua.one_server import OneServer, put_and_claim
from zkrq.protocol import calls


def report(server: OneServer, id: str, token: str, text: str) -> bool:
    return server.ask(calls.Report(server.queue, id, token, text))


def told(server: OneServer, *ids: str) -> list[str | None]:
    found = server.ask(calls.ToldReports(server.queue, ids))
    assert all(each is None or each.age_us >= 0 for each in found)
    return [each and each.text for each in found]


def test_last_report_of_the_present_claim_is_told(server: OneServer) -> None:
    held = put_and_claim(server, Put("a")).only
    token = held.record.token
    assert told(server, "a", "b") == [None, None]
    assert report(server, "a", token, "0.1 page 1")
    assert report(server, "a", token, "0.2 page\n2 ü")
    assert told(server, "a", "b") == ["0.2 page\n2 ü", None]
    assert server.contents().faults == []


def test_report_of_another_claim_is_neither_kept_nor_told(server: OneServer) -> None:
    held = put_and_claim(server, Put("a")).only
    token = held.record.token
    assert not report(server, "a", "other/1", "0.9 ")
    assert not report(server, "b", token, "0.9 ")
    assert report(server, "a", token, "0.1 ")
    server.settle(held.settle("release"))
    assert told(server, "a") == [None]
    assert not report(server, "a", token, "0.2 ")
    again = server.claim("other", 2).only
    assert told(server, "a") == [None]
    assert report(server, "a", again.record.token, "0.3 ")
    assert told(server, "a") == ["0.3 "]


def test_reports_are_bounded(server: OneServer) -> None:
    held = put_and_claim(server, Put("a")).only
    for start in range(0, 10_000, 500):
        server.command("HSET", server.key("reports"), *(x for n in range(start, start + 500) for x in (f"x{n}", "y")))
    assert report(server, "a", held.record.token, "0.5 ")
    assert server.command("HLEN", server.key("reports")) == 1
    assert told(server, "a") == ["0.5 "]
