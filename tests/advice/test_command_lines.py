"""Next steps for somebody at a shell: a line is refused, what the error says is done, and the line that comes of it
works."""

from __future__ import annotations

import shlex
from typing import NamedTuple

import pytest

import zkrq
from tests.advice.operator import Operator
from tests.advice.registry import LED_OUT
from tests.behaviour.helpers import bury
from zkrq import local

pytestmark = pytest.mark.anyio


class Refused(NamedTuple):
    """A line that is refused, and the one that is written when the step was followed; ``file`` says the ``step``."""

    file: str
    step: str
    wrong: str
    right: str
    stdin: str = ""


LINES = (
    Refused(
        "cli/push.py", "are for one item; ITEM - may read several", "push jobs - --id a", "push jobs 1 --id a", "1\n2\n"
    ),
    Refused("cli/asking.py", "give --yes", "clear jobs", "clear jobs --yes"),
    Refused("cli/removing.py", "cancel needs either ids, or at least one of", "cancel jobs", "cancel jobs --key none"),
    Refused(
        "cli/removing.py",
        "give either ids, or one of {}",
        "dead discard jobs id --error x --yes",
        "dead discard jobs --error x --yes",
    ),
    Refused(
        "cli/items.py",
        "--group lists ready items only: leave it out",
        "peek jobs --state done --group a",
        "queues set jobs --history 5 && list jobs --state done",
    ),
    Refused(
        "cli/items.py",
        "keeps no history: `zkrq queues set {} --history 1000`",
        "peek kept --state done",
        "queues set kept --history 5 && list kept --state done",
    ),
    *(
        Refused(
            "operations/states.py",
            "items that have ended: `history()`, or `zkrq list QUEUE --state done`",
            wrong,
            "queues set ended --history 5 && list ended --state done",
        )
        for wrong in (
            "peek ended --state gone",
            "find ended --state done",
            "export ended --state done",
            "cancel ended --state done --yes",
        )
    ),
    Refused(
        "cli/settings.py",
        "is no rate: give a number and a time",
        "queues set jobs --rate fast",
        "queues set jobs --rate 50/1s && queues set jobs --rate none",
    ),
    Refused(
        "cli/settings.py",
        "give --concurrency, --rate, --group-concurrency",
        "queues set jobs",
        "queues set jobs --concurrency 5 && queues set jobs --concurrency none",
    ),
    Refused(
        "cli/settings.py",
        "give --group with --group-concurrency",
        "queues set jobs --like-others",
        "queues set jobs --group a --group-concurrency 5 && queues set jobs --group a --like-others",
    ),
    Refused("cli/moving.py", "is the same queue: zkrq dead redrive", "move dead jobs jobs", "dead redrive jobs"),
    Refused("client/copies.py", "is not a line of `zkrq export`", "import jobs", "import jobs", "{}\n"),
    Refused(
        "client/conditions.py",
        "needs one of {}; for all items",
        "find jobs",
        "find jobs --key k && export jobs",
    ),
    Refused("cli/forms.py", "--codec is {}: {}", "pop jobs --codec odd", "pop jobs --codec raw"),
    Refused("cli/pop.py", "--codec names another form, --codec raw reads any", "pop odd", "pop odd --codec raw"),
    Refused("cli/top.py", "--interval is {} s: at least", "top --interval 0", "top --interval 1 --once"),
    Refused("cli/serve.py", "--certificate and --key are given together", "serve --certificate x", ""),
    Refused("cli/worker.py", "--log-level is {}: debug, info, warning or error", "worker os:path --log-level loud", ""),
    Refused("cli/worker.py", "--log-format is {}: text or json", "worker os:path --log-format odd", ""),
    Refused(
        "client/moments.py",
        "a name is like 'Europe/Berlin'",
        "schedules add jobs a '0 7 * * *' 1 --zone Berlin",
        "schedules add jobs a '0 7 * * *' 1 --zone Europe/Berlin",
    ),
    Refused(
        "client/timetable.py",
        "already: change it, or use another name",
        "schedules add jobs twice 60 2",
        "schedules change jobs twice --when 30 && schedules add jobs other 60 2",
    ),
    Refused(
        "client/damaged.py",
        "is set aside under the id {}: `zkrq damaged list {}`",
        "damaged show jobs id",
        "damaged list jobs",
    ),
)

OF_THE_TABLE = (
    Refused(
        "operations/operation.py",
        "--replace needs a key: --key user-42",
        "push jobs 1 --replace",
        "push jobs 1 --replace --key user-42",
    ),
    Refused(
        "operations/kinds.py",
        "must be an integer, or none",
        "queues set jobs --max-size few",
        "queues set jobs --max-size 50 && queues set jobs --max-size none",
    ),
    Refused(
        "base/checks.py",
        "must be seconds, such as 3600 or 1h30m, or none",
        "queues set jobs --results-ttl long",
        "queues set jobs --results-ttl 1h30m && queues set jobs --results-ttl none",
    ),
    Refused(
        "operations/kinds.py",
        "must be a name, '=' and a text, such as campaign=spring",
        "find jobs --header a",
        "find jobs --header campaign=spring",
    ),
    Refused(
        "cli/removing.py", "advance needs either ids, or at least one of", "advance jobs", "advance jobs --key none"
    ),
)
"""Steps that are put together from the table of operations, so no text of the source has them."""


@pytest.fixture(scope="module")
async def prepared(shared_servers: local.Servers, prepared_zkrq: list[str]) -> Operator:
    """A namespace with a queue that has a bit of everything."""
    operator = Operator(shared_servers, prepared_zkrq)
    await operator.found()
    async with operator.client() as cluster:
        await bury(cluster.queue("jobs"), 2)
        await cluster.queue("odd", codec=zkrq.RAW).push(b"\xff")
        await cluster.queue("kept").push(1)
        await cluster.queue("ended").push(1)
        await cluster.schedules().add(cluster.queue("jobs"), "twice", 60, "x")
    return operator


LED_OUT.update({(case.file, case.step): "test_a_line_is_corrected" for case in LINES})


@pytest.mark.parametrize("case", [*LINES, *OF_THE_TABLE], ids=lambda case: case.step[:40])
async def test_a_line_is_corrected(prepared: Operator, case: Refused) -> None:
    code, out, err = await prepared.shell.run(*shlex.split(case.wrong), stdin=case.stdin)
    assert code in (2, 4), (out, err)
    for part in case.step.split("{}"):
        assert part.strip() in err, err
    for line in filter(None, case.right.split(" && ")):
        code, out, err = await prepared.shell.run(*shlex.split(line))
        assert code == 0, (line, out, err)
