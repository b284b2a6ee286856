"""``store`` and ``stored``: results that belong to no item, and counters of them."""

from __future__ import annotations

import pytest

from tests.every import every
from tests.lua.connection import Listener
from tests.lua.one_server import OneServer, wait_ms
from zkrq.protocol import calls
from zkrq.protocol.calls import StoredRow
from zkrq.protocol.records import State

TTL_MS = 3_600_000


def row(id: str, text: str = "", how: str = f"set {TTL_MS} 1", call: str | None = None) -> StoredRow:
    return StoredRow(id, call or f"call of {id} {text}", how, text.encode())


def started(id: str, text: str) -> StoredRow:
    """A result before the last one."""
    return row(id, text, f"set {TTL_MS} 0")


def counted(id: str, counter: str = "all", call: str | None = None) -> StoredRow:
    return row(id, counter, f"count {TTL_MS}", call or f"count of {id}")


def test_a_result_is_kept_and_replaced(server: OneServer) -> None:
    server.store(started("a", "started"), row("b", "b's"))
    assert server.stored("a", "b", "c")[0] == [("P", "started"), ("A", "b's"), ("Q", "")]
    server.store(started("a", "retried"))
    assert server.stored("a")[0] == [("P", "retried")]
    server.store(row("a", "done"))
    assert server.stored("a")[0] == [("A", "done")]
    server.store(row("a", "done again"))
    assert server.stored("a")[0] == [("A", "done again")]
    contents = server.contents()
    assert contents.faults == []
    assert (contents.counters["queued"], contents.counters["claimed"], contents.counters["dead"]) == (0, 0, 0)


def test_a_result_of_less_rank_replaces_none_of_greater(server: OneServer) -> None:
    server.store(row("a", "failed"))
    server.store(started("a", "started"))
    assert server.stored("a")[0] == [("A", "failed")]
    server.store(row("a", "done", f"set {TTL_MS} 2"))
    server.store(row("a", "failed"), started("a", "started"))
    assert server.stored("a")[0] == [("A", "done")]


def test_a_repeated_call_changes_nothing(server: OneServer) -> None:
    (decided,) = server.store(row("a", "done"))[1].values()
    (again,) = server.store(row("a", "done"))[1].values()
    assert again.record.version == decided.record.version
    assert again.note == "done"


def test_a_first_try_that_is_executed_late_changes_nothing(server: OneServer) -> None:
    """Its repetition was executed before, and others have stored or forgotten since."""
    first = row("a", "old")
    server.store(first)
    for later in ("second", "third", "new"):
        server.store(row("a", later))
    assert server.store(first)[0] == [1], "it was kept once"
    assert server.stored("a")[0] == [("A", "new")]
    forgetting = row("a", how="forget", call="forgetting")
    server.store(forgetting)
    server.store(row("a", "new"))
    assert server.stored("a")[0] == [("Q", "")], "what was forgotten stays so"
    server.store(row("a", "again"))
    server.store(forgetting)
    assert server.stored("a")[0] == [("A", "again")]
    assert server.contents().faults == []


@pytest.mark.parametrize("before", ["nothing", "what was forgotten", "what is over"])
def test_a_late_first_try_to_forget_what_was_not_there_forgets_nothing_newer(
    server: OneServer, follower: OneServer, before: str
) -> None:
    if before == "what was forgotten":
        server.store(row("a", "old"))
        server.store(row("a", how="forget", call="other"))
    elif before == "what is over":
        server.store(row("a", "old", "set 1 1"))
        wait_ms(5)
    forgetting = row("a", how="forget", call="forgetting")
    decided = [server.store(each)[1]["a"] for each in (forgetting, row("a", "new"), forgetting)]
    assert server.stored("a")[0] == [("A", "new")]
    for each in decided:
        follower.apply(each.apply())
    assert follower.stored("a")[0] == [("A", "new")]
    assert server.contents().faults == follower.contents().faults == []


def test_a_late_first_try_to_forget_tells_the_result_under_a_new_epoch_with_its_text(
    server: OneServer, follower: OneServer
) -> None:
    forgetting = row("a", how="forget", call="forgetting")
    for each in (row("a", "old"), forgetting, row("a", "new")):
        server.store(each)
    server.epoch = 2
    (decided,) = server.store(forgetting)[1].values()
    assert decided.record.version > (2, 0)
    follower.epoch = 2
    follower.apply(decided.apply())
    assert follower.stored("a")[0] == [("A", "new")]


def test_a_late_first_try_names_no_parts_that_are_gone(server: OneServer) -> None:
    parts = [row(f"part-{'61' * 16}-{at}", "x") for at in range(2)]
    server.store(*parts)
    head = StoredRow("a", "in parts", f"set {TTL_MS} 1", b"\1\2\0\0\0" + b"a" * 16)
    server.store(head)
    server.store(row("a", "whole"))
    assert server.stored(parts[0].id)[0] == [("Q", "")]
    server.store(head, *parts)
    assert server.stored("a", parts[0].id)[0] == [("A", "whole"), ("Q", "")]


def test_calls_about_a_result_are_remembered_within_bounds(server: OneServer) -> None:
    for number in range(20):
        server.store(row("a", f"{number:2}"))
    assert len(server.contents().bundles["a"].rows) == 4


def test_it_ends_with_its_time(server: OneServer) -> None:
    server.store(row("a", "done", "set 1 1"))
    wait_ms(5)
    assert server.stored("a")[0] == [("Q", "")]
    server.store(started("a", "again"))
    assert server.stored("a")[0] == [("P", "again")]
    assert server.contents().faults == []


def test_what_is_forgotten_may_be_stored_again(server: OneServer, follower: OneServer) -> None:
    for one in server.store(row("a", "done"))[1].values():
        follower.apply(one.apply())
    for one in server.store(row("a", how="forget"))[1].values():
        follower.apply(one.apply())
    for each in (server, follower):
        assert each.stored("a")[0] == [("Q", "")]
        assert each.contents().notes == {}
        assert each.contents().faults == []
    server.store(started("a", "again"))
    assert server.stored("a")[0] == [("P", "again")]


def test_follower_has_it(server: OneServer, follower: OneServer) -> None:
    for text in ("started", "done"):
        for one in server.store(row("a", text))[1].values():
            follower.apply(one.apply())
        assert follower.stored("a")[0] == [("A", text)]
    assert follower.contents().faults == []
    assert follower.contents().notes == server.contents().notes


def test_copy_has_it(server: OneServer, follower: OneServer) -> None:
    server.store(row("a", "done"), started("b", "started"))
    for copied in server.page()[1].found.values():
        follower.apply(copied.applied)
    assert follower.stored("a", "b")[0] == [("A", "done"), ("P", "started")]


def test_a_new_primary_decides_it_again_with_its_text(server: OneServer, follower: OneServer) -> None:
    server.store(row("a", "done"))
    _, decided = server.stored("a", epoch=2)
    assert decided["a"].record.version > (2, 0)
    follower.apply(decided["a"].apply())
    assert follower.stored("a", epoch=2)[0] == [("A", "done")]


def test_each_result_is_counted_once(server: OneServer, follower: OneServer) -> None:
    ids = [f"task-{n}" for n in range(5)]
    server.store(*(row(id, "done") for id in ids))
    assert server.store(*map(counted, ids))[0] == [1, 2, 3, 4, 5]
    assert server.store(counted("task-0"))[0] == [5], "repeated"
    server.store(counted("task-1", call="another"), row("task-1", "again"))
    assert server.store(counted("task-1", call="after another result"))[0] == [5]
    assert server.stored("task-0", "all")[0] == [("A", "done"), ("P", "5")]
    for one in server.store(*(counted(id, call="to all") for id in ids))[1].values():
        follower.apply(one.apply())
    assert follower.store(counted("task-3"))[0] == [5], "another primary knows it"
    assert follower.store(counted("late"))[0] == [6]
    assert follower.stored("task-3", "late")[0] == [("A", "done"), ("P", "")]
    assert server.contents().faults == follower.contents().faults == []


def test_a_counter_that_was_forgotten_counts_no_result_again(server: OneServer) -> None:
    server.store(row("a", "done"), counted("a"), row("all", how="forget"))
    assert server.store(counted("a", call="again"))[0] == [0]
    assert server.stored("all")[0] == [("Q", "")]


@every("before", ["none", "started", "forgotten"])
def test_a_waiting_caller_is_told(server: OneServer, before: str) -> None:
    id = f"after {before}"
    if before != "none":
        server.store(started(id, "x"))
    if before == "forgotten":
        server.store(row(id, how="forget"))
    with Listener(server.host, server.port, "mine") as listener:
        server.stored(id, "other", waiter="mine")
        server.store(row("b", before))
        assert listener.told_nothing()
        server.store(row(id, "done"))
        assert listener.heard().endswith(f" {id}")


def test_tombstones_of_results_go_with_them(server: OneServer) -> None:
    server.store(row("a", "done", "set 100 1"), row("b", "done"))
    wait_ms(200)
    server.trim(put_window_ms=1)
    wait_ms(5)
    assert server.contents().records.keys() <= {"a", "b"}
    assert server.stored("b")[0] == [("A", "done")]
    server.ask(calls.Trim(server.queue))
    assert server.contents().faults == []


def test_a_result_that_one_call_gives_twice_is_one_end(server: OneServer) -> None:
    """Or fewer callers would be counted than wait, and some never be told."""
    server.stored("a", "b", "c", waiter="mine")
    server.store(started("a", "started"), row("a", "done"))
    assert server.command("HGET", server.key("lead"), "awaited") == b"2"


def test_a_late_first_try_to_count_does_not_count_what_was_forgotten_since(server: OneServer) -> None:
    server.store(row("a", "done"), counted("a"), row("a", how="forget"), row("b", "done"), counted("b"))
    assert server.store(counted("a"))[0] == [2]
    assert server.stored("a", "all")[0] == [("Q", ""), ("P", "2")]
    assert server.contents().faults == []


def test_a_first_try_that_comes_after_a_count_forgets_no_part_of_its_own(server: OneServer) -> None:
    token = bytes(range(16))
    stored = row("a", "\1\1\0\0\0" + token.decode(), call="first")
    server.store(row(f"part-{token.hex()}-0", "the whole"), stored, counted("a"))
    server.store(stored)
    assert server.stored(f"part-{token.hex()}-0")[0] == [("A", "the whole")]
    server.store(row("a", "done", f"set {TTL_MS} 2"))
    assert server.stored(f"part-{token.hex()}-0")[0] == [("Q", "")]


def test_an_item_is_left_alone(server: OneServer) -> None:
    server.put("item")
    server.store(row("item", "done"), counted("item"), counted("a", "item"), row("item", how="forget"))
    assert server.stored("item", "a")[0] == [("Q", ""), ("Q", "")]
    assert server.contents().ids(State.QUEUED) == {"item"}
    assert server.contents().faults == []
