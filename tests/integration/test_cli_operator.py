"""What operators ask the command line who have not met it before: ids that are wrong, names that are misspelt."""

from __future__ import annotations

import re

import zkrq
from tests.behaviour.helpers import bury
from tests.harness import over_zookeeper, take
from tests.integration.shell import Shell
from zkrq import local
from zkrq.client.inner import client_of
from zkrq.client.registers import rewrite
from zkrq.serve.audit import REGISTER, encode
from zkrq.serve.audit import Line as Change

COMMANDS_ON_FOUND = [
    ("cancel", "--header", "campaign=spring", "--yes"),
    ("advance", "--task", "welcome", "--yes"),
    ("dead", "redrive", "--task", "welcome", "--yes"),
    ("dead", "discard", "--yes"),
    ("clear", "--yes"),
    ("find", "--task", "welcome"),
]


async def test_ids_that_do_not_exist_are_named(shell: Shell, servers: local.Servers) -> None:
    async with over_zookeeper(servers, shell.environment["ZKRQ_NAMESPACE"]) as cluster:
        queue = cluster.queue("jobs")
        waiting, first, second = [(await queue.push(number, delay=3600 * (number == 0))).id for number in range(3)]
        code, out, err = await shell.run("advance", "jobs", waiting, "nobody", first)
        assert (code, out) == (2, "1 item ready\n")
        assert err == (
            "1 item left as before: not scheduled, no retry\nzkrq advance: queue 'jobs' has no item 'nobody'\n"
        ), "the exit code of what has to be corrected, as of `get` and `cancel`"
        assert await shell.run("advance", "jobs", second) == (
            0,
            "0 items ready\n",
            "1 item left as before: not scheduled, no retry\n",
        )
        await queue.clear()
        one, other = await bury(queue, 2)
        code, out, err = await shell.run("dead", "redrive", "jobs", one, "x", "y")
        assert (code, out) == (2, "1 item redriven\n")
        assert err == "zkrq dead redrive: queue 'jobs' has no item 'x', 'y'\n"
        code, out, err = await shell.run("dead", "discard", "jobs", "x")
        assert (code, out, err) == (2, "", "zkrq dead discard: queue 'jobs' has no item 'x'\n"), "nothing to ask"
        code, out, err = await shell.run("dead", "discard", "jobs", "x", other, "--yes")
        assert (code, out, err) == (2, "1 item discarded\n", "zkrq dead discard: queue 'jobs' has no item 'x'\n")


async def test_a_queue_that_was_never_used_is_noted_and_the_nearest_name_told(
    shell: Shell, servers: local.Servers
) -> None:
    """The command is carried out, because a program may be set up before its first push."""
    async with over_zookeeper(servers, shell.environment["ZKRQ_NAMESPACE"]) as cluster:
        await cluster.queue("emails").push(1)
        for command in (("pause",), ("resume",), ("queues", "set")):
            flags = ("--history", "5") if command[0] == "queues" else ()
            assert (await shell.run(*command, "emails", *flags))[2] == ""
        code, out, err = await shell.run("pause", "emials")
        assert code == 0
        assert out.startswith("emials is paused")
        assert err == "queue 'emials' is new: nothing of it was known before: did you mean 'emails'?\n"
        assert (await shell.run("pause", "emials"))[2] == "", "it is known from then on"
        code, _, err = await shell.run("queues", "set", "others", "--history", "5")
        assert (code, err) == (0, "queue 'others' is new: nothing of it was known before\n")


async def test_a_queue_that_is_not_there_is_noted_by_commands_that_look_or_take_away(
    shell: Shell, servers: local.Servers
) -> None:
    """It is no error: scripts look at a queue before its first push, and empty one that may have gone."""
    found = [
        *COMMANDS_ON_FOUND,
        ("queues", "show"),
        ("figures",),
        ("peek",),
        ("dead", "list"),
        ("groups",),
        ("export",),
    ]
    async with over_zookeeper(servers, shell.environment["ZKRQ_NAMESPACE"]) as cluster:
        await cluster.queue("orders").pause()
        for group_or_name, *flags in found:
            words = [group_or_name, *flags[:1]] if group_or_name in ("queues", "dead") else [group_or_name]
            more = flags[len(words) - 1 :]
            assert (await shell.run(*words, "orders", *more))[::2] == (0, ""), "it is empty, and there"
            code, _, err = await shell.run(*words, "ordres", *more)
            assert (code, err) == (0, "there is no queue 'ordres': did you mean 'orders'?\n")
        code, out, err = await shell.run("failures", "--queue", "email")
        assert (code, out, err) == (0, "0 items failed\n", "there is no queue 'email'\n")
        assert await cluster.queues() == ["orders"], "a look makes none"


async def test_a_queue_is_shown_as_it_is_now(shell: Shell, servers: local.Servers) -> None:
    async with over_zookeeper(servers, shell.environment["ZKRQ_NAMESPACE"]) as cluster:
        queue = cluster.queue("emails", history=7)
        await queue.push_many(range(30))
        await queue.push("later", delay=600)
        await queue.pause(seconds=3600)
        code, out, _ = await shell.run("queues", "show", "emails")
        assert code == 0
        settings, paused, counts, oldest = out.splitlines()
        assert settings == "no limits; a history of 7 items; 0 claimed"
        assert re.fullmatch(r"  paused until [\d: -]+ UTC: `zkrq resume emails`", paused)
        assert counts == "  30 ready, 1 scheduled, 0 claimed, 0 dead"
        assert oldest.startswith("  the oldest ready item waits for ")
        (told,) = await shell.value("queues", "show", "emails")
        assert (told["now"]["ready"], told["now"]["paused"], told["now"]["quiet"]) == (30, True, [])
        assert told["now"]["backlog"] == {"ready": 30, "per_second": None, "seconds_left": None}
        assert told["now"]["paused_over_http"] is None
        lines = [Change(0, "bob", "pause", "others", "done", "1"), Change(1000, "ann", "pause", "emails", "done", "2")]
        await rewrite(client_of(cluster).coordinator, REGISTER, lambda _: encode(lines))
        shown = (await shell.run("queues", "show", "emails"))[1].splitlines()
        assert shown[2] == "  last paused over HTTP by ann, at 1970-01-01 00:00:01 UTC", "another pause maybe"
        assert (await shell.run("resume", "emails"))[0] == 0
        (told,) = await shell.value("queues", "show", "emails")
        assert not told["now"]["paused"]


async def test_an_item_is_shown_with_all_that_it_was_pushed_with(shell: Shell, servers: local.Servers) -> None:
    async with over_zookeeper(servers, shell.environment["ZKRQ_NAMESPACE"]) as cluster:
        queue = cluster.queue("emails", retry=zkrq.Retry(backoff=zkrq.constant(600)))
        await queue.push(
            "ann",
            id="welcome-7",
            key="user-42",
            group="tenant-42",
            priority=3,
            ttl=7200,
            headers={"campaign": "spring"},
            task="welcome",
        )
        await (await take(queue)).nack(reason="no answer")
        first, *more = (await shell.run("get", "emails", "welcome-7"))[1].splitlines()
        assert first == 'welcome-7  scheduled welcome  "ann"  no answer'
        named, header, times, failed = more
        assert named == "  key: user-42  group: tenant-42  priority: 3"
        assert header == "  header campaign: spring"
        assert re.fullmatch(
            r"  pushed [\d: -]+ UTC, due in [\d.]+ s, at [\d: -]+ UTC, expires in [\d,.]+ s, 1 attempt, 1 failed", times
        )
        assert failed.endswith(": no answer")


async def test_top_once_tells_what_passes_in_a_second(shell: Shell, servers: local.Servers) -> None:
    async with over_zookeeper(servers, shell.environment["ZKRQ_NAMESPACE"]) as cluster:
        await cluster.queue("emails").push(1)
        code, out, _ = await shell.run("top", "--once", "--interval", "0.2")
        assert code == 0
        assert re.search(r"\n *emails +1 +0 +0 +0 +0\.0 +0\.0 ", out), "the last two are per second"


async def test_limits_of_a_group_do_not_hold_for_items_of_a_task_outside_of_it(
    shell: Shell, servers: local.Servers
) -> None:
    limits = ("queues", "set", "mails", "--group", "digest", "--group-concurrency")
    async with over_zookeeper(servers, shell.environment["ZKRQ_NAMESPACE"]) as cluster:
        queue = cluster.queue("mails")
        await queue.push(1, task="digest", group="digest")
        await queue.push(2, task="welcome")
        assert (await shell.run(*limits, "2"))[::2] == (0, "")
        id = (await queue.push(3, task="digest")).id
        text = f"items of task 'digest' that were pushed outside of group 'digest', as {id}, are not limited by it\n"
        assert (await shell.run(*limits, "3"))[::2] == (0, text)
        assert (await shell.run("queues", "set", "mails", "--group", "digest", "--like-others"))[::2] == (0, "")
