"""The command line over real servers: the settings of a queue, and limits of single groups."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.shell import NO_RATE, NO_SETTINGS, Shell

pytestmark = pytest.mark.anyio


async def test_settings(shell: Shell) -> None:
    await shell.value("push", "jobs", "-", stdin="1\n2\n3\n")
    code, out, err = await shell.run("queues", "show", "jobs")
    assert (code, out.splitlines()[0], err) == (0, "no limits; 0 claimed", "")
    assert await shell.settings("jobs") == NO_SETTINGS
    assert await shell.value("queues", "set", "jobs", "--concurrency", "2", "--rate", "2/1h") == [
        {**NO_SETTINGS, "limits": {"concurrency": 2, "rate": 2, "seconds": 3600.0}}
    ]
    assert [line["item"] for line in await shell.value("pop", "jobs", "--count", "5")] == [1, 2]
    code, out, _ = await shell.run("queues", "show", "jobs")
    assert code == 0
    assert out.startswith("2 at once, 2 in 3600 s; limited: 2 claims in 3600 s, the next in ")
    assert "limited: 2 claims in 3600 s" in (await shell.run("stats"))[1]
    assert await shell.run("queues", "set", "jobs", "--rate", "none") == (0, "2 at once\n", "")
    assert [line["item"] for line in await shell.value("pop", "jobs", "--count", "5")] == [3]


async def test_settings_that_are_not_named_stay(shell: Shell) -> None:
    await shell.value("push", "jobs", "1")

    async def show(*flags: str) -> str:
        code, out, err = await shell.run("queues", "set", "jobs", *flags)
        assert (code, err) == (0, "")
        return out

    of_groups = "2 at once, 5 in 1 s in each group"
    assert await show("--group-concurrency", "2", "--group-rate", "5/s") == f"no limits; {of_groups}\n"
    assert await show("--concurrency", "9") == f"9 at once; {of_groups}\n"
    assert await show("--max-size", "50", "--history", "7") == (
        f"9 at once; {of_groups}; at most 50 items; a history of 7 items\n"
    )
    ordered: dict[str, Any] = {"concurrency": None, "rate": 5, "seconds": 1.0, "ordered": True, "named": {}}
    everything = {
        "queue": "jobs",
        "limits": {"concurrency": 9, **NO_RATE},
        "groups": ordered,
        "history": 7,
        "max_size": 50,
        "dead_letters": NO_SETTINGS["dead_letters"],
        "results_ttl": None,
    }
    assert await shell.value("queues", "set", "jobs", "--ordered") == [everything], "it excludes their concurrency"
    assert await shell.settings("jobs") == everything
    in_order = "9 at once; in order, 5 in 1 s within each group; at most 50 items; a history of 7 items; 0 claimed\n"
    assert (await shell.run("queues", "show", "jobs"))[1].startswith(in_order)
    code, _, err = await shell.run("queues", "set", "jobs", "--group-concurrency", "2")
    assert (code, "one item claimed at a time" in err) == (2, True)
    assert await shell.settings("jobs") == everything, "nothing that is refused changes anything"
    assert await show("--unordered", "--group-rate", "none", "--max-size", "none", "--history", "none") == "9 at once\n"
    assert await shell.value("queues", "set", "jobs", "--concurrency", "none") == [NO_SETTINGS]
    letters = ("--dead-letters", "5", "--dead-letters-age", "60", "--keep-expired")
    assert await show(*letters) == "no limits; 5 dead letters of at most 60 s, expired items among them\n"
    kept = "results for 90 s; all dead letters of at most 60 s, expired items among them"
    assert await show("--dead-letters", "none", "--results-ttl", "90") == f"no limits; {kept}\n"
    back = ("--dead-letters", "100000", "--dead-letters-age", "none", "--drop-expired", "--results-ttl", "none")
    assert await shell.value("queues", "set", "jobs", *back) == [NO_SETTINGS]


async def test_limits_of_one_group(shell: Shell) -> None:
    async def show(*flags: str) -> str:
        code, out, err = await shell.run("queues", "set", "jobs", *flags)
        assert (code, err) == (0, "")
        return out.removeprefix("no limits; ").removesuffix("\n")

    await shell.run("push", "jobs", "1")
    assert await show("--group", "digest", "--group-concurrency", "2") == "2 at once in group 'digest'"
    assert await show("--group-concurrency", "9") == "9 at once in each group, but 2 at once in group 'digest'"
    rated = await show("--group", "digest", "--group-rate", "5/s", "--history", "7")
    assert rated == "9 at once in each group, but 2 at once, 5 in 1 s in group 'digest'; a history of 7 items"
    (told,) = await shell.value(
        "queues", "set", "jobs", "--group", "w", "--group-concurrency", "none", "--history", "0"
    )
    own = {"digest": {"concurrency": 2, "rate": 5, "seconds": 1.0}, "w": {"concurrency": None, **NO_RATE}}
    assert told["groups"] == {"concurrency": 9, **NO_RATE, "ordered": False, "named": own}
    assert await show("--group", "w", "--like-others") == rated.removesuffix("; a history of 7 items")
    assert await show("--group", "digest", "--like-others") == "9 at once in each group"
    for wrong in (
        ("--like-others",),
        ("--group", "a"),
        ("--group", "a", "--history", "3"),
        ("--group", "a", "--like-others", "--group-rate", "5/s"),
    ):
        code, _, err = await shell.run("queues", "set", "jobs", *wrong)
        assert (code, "give --group with --group-concurrency, --group-rate or --like-others" in err) == (2, True)


async def test_settings_that_are_wrong(shell: Shell) -> None:
    flags = (
        "--concurrency, --rate, --group-concurrency, --group-rate, --max-size, --history, --dead-letters, "
        "--dead-letters-age, --results-ttl (each with a value or none"
    )
    for wrong, says in (
        (("--rate", "50"), "'50' is no rate: give a number and a time"),
        (("--rate", "50/2h"), "the time of rate is 7200 s"),
        (("--concurrency", "0"), "--concurrency is 0"),
        (("--concurrency", "few"), "'few' must be an integer, or none"),
        ((), f"give {flags}), --ordered or --unordered"),
        (("--unordered", "--ordered"), "--ordered or --unordered"),
        (("--ordered", "--group-concurrency", "2"), "one item claimed at a time"),
        (("--group-rate", "0/1s"), "--group-rate is 0"),
        (("--max-size", "0"), "--max-size is 0"),
        (("--history", "10001"), "--history is 10001"),
        (("--keep-expired", "--drop-expired"), "--keep-expired or --drop-expired"),
        (("--dead-letters", "0"), "--dead-letters is 0"),
        (("--dead-letters-age", "long"), "'long' must be seconds, such as 3600 or 1h30m, or none"),
        (("--results-ttl", "0.5"), "--results-ttl is 0.5 s"),
        (("--max-size", "9", "--history", "-1"), "--history is -1"),
    ):
        code, out, err = await shell.run("queues", "set", "jobs", *wrong)
        assert (code, out) == (2, "")
        assert says in err
    assert (await shell.run("queues", "show", "jobs"))[2] == "there is no queue 'jobs'\n"
