"""Flows on the command line."""

from __future__ import annotations

import pytest

from tests.harness import over_zookeeper, settled, take
from tests.integration.shell import Shell
from zkrq import local

pytestmark = pytest.mark.anyio


async def test_flows_are_listed_shown_and_ended(shell: Shell, servers: local.Servers) -> None:
    async with over_zookeeper(servers, shell.environment["ZKRQ_NAMESPACE"]) as cluster:
        rows = cluster.queue("rows")
        async with rows.flow("import") as flow:
            bad, good = [(await flow.push(item)).id for item in ("bad", "good")]
        (told,) = await shell.value("flows", "list")
        assert (told["queue"], told["name"], told["state"], told["left"]) == ("rows", "import", "running", 2)
        assert await shell.value("flows", "list", "--state", "open") == []
        await (await take(rows)).bury("no such row")
        await (await take(rows)).ack()

        async def is_held_up() -> bool:
            (told,) = await shell.value("flows", "show", "rows", "import")
            return told["held_up"] == "1 dead letter"

        await settled(is_held_up)
        code, out, _ = await shell.run("flows", "show", "rows", "import")
        first, second = out.splitlines()
        assert first == "rows  import  running; 1 done, 0 left, 1 dead, 0 missed; held up by 1 dead letter"
        assert (code, second) == (0, f"  dead: {bad} of rows")
        assert await shell.value("flows", "redrive", "rows", "import") == [{"redriven": 1}]
        code, out, err = await shell.run("flows", "finish", "rows", "import")
        assert (code, out) == (2, "")
        assert "without 1 member" in err
        (told,) = await shell.value("flows", "finish", "rows", "import", "--yes")
        assert told["state"] == "done"
        async with rows.flow("other") as flow:
            await flow.push(good)
        code, out, err = await shell.run("flows", "cancel", "rows", "other")
        assert (code, "with 1 member left" in err) == (2, True)
        (told,) = await shell.value("flows", "cancel", "rows", "other", "--yes")
        assert told["state"] == "cancelled"
        listed = await shell.value("flows", "list")
        assert [(each["name"], each["state"]) for each in listed] == [("import", "done"), ("other", "cancelled")]
        assert [each["name"] for each in await shell.value("flows", "list", "--state", "done")] == ["import"]
        code, _, err = await shell.run("flows", "seal", "rows", "never")
        assert (code, "is unknown" in err) == (1, True)


async def test_doctor_names_a_flow_that_nobody_ends(shell: Shell, servers: local.Servers) -> None:
    async with over_zookeeper(servers, shell.environment["ZKRQ_NAMESPACE"]) as cluster:
        rows = cluster.queue("rows")
        async with rows.flow("import") as flow:
            await flow.push("bad")
        await (await take(rows)).bury("no such row")

        async def is_told() -> bool:
            code, out, _ = await shell.run("doctor")
            (said,) = [line for line in out.splitlines() if "rows/import" in line] or [""]
            return (
                code == 0
                and "it is held up by 1 dead letter; `zkrq flows redrive rows import`, or `zkrq flows finish`" in said
            )

        await settled(is_told)
        await flow.redrive()
        await (await take(rows)).ack()
        assert (await flow.result()).state.value == "done"
        assert "rows/import" not in (await shell.run("doctor"))[1]
