"""README and docs are correct: their examples run, their calls and commands exist, nothing public is left out."""

from __future__ import annotations

import ast
import inspect
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml
from anyio.streams.buffered import BufferedByteReceiveStream

import zkrq
from tests import contract
from tests.harness import new_namespace
from tests.snippets import PAGES, ROOT, Block, blocks, snippet
from zkrq import local
from zkrq.base.settings import QueueOptions
from zkrq.cli import running
from zkrq.cli.command import CONNECTION
from zkrq.cli.parsing import JSON, make_parser
from zkrq.client.cluster import Cluster
from zkrq.client.queue import Queue
from zkrq.client.scheduling import StoredSchedules
from zkrq.consuming.claims import Claim
from zkrq.consuming.flow import Flow

TEXT = "".join(page.read_text() for page in PAGES)
RUN_TIMEOUT = 30.0  # seconds for one example
MAX_CELL = 120  # characters of a cell that says one thing
MIN_CALLS = 12  # an example checker that finds nothing proves nothing

OF_OTHERS = {"order"}
"""Objects of other libraries that the pages call: a model of Django."""

BLOCKS = [pytest.param(block, id=f"{block.page} {block.line}") for block in blocks()]
RUNNABLE = [pytest.param(block, id=f"{block.page} {block.line}") for block in blocks() if block.runnable]


def functions() -> dict[str, inspect.Signature]:
    """What the examples call as ``zkrq.name``: functions and classes of the package."""
    public: dict[str, Callable[..., object]] = {name: getattr(zkrq, name) for name in zkrq.__all__}
    return {
        name: inspect.signature(value)
        for name, value in public.items()
        if inspect.isfunction(value) or inspect.isclass(value)
    }


def methods(*owners: type) -> dict[str, inspect.Signature]:
    """What the examples call of what these return, without self; of the last owner that has the name."""
    found: dict[str, inspect.Signature] = {}
    for owner in owners:
        for name, method in inspect.getmembers(owner, inspect.isfunction):
            if not name.startswith("_"):
                signature = inspect.signature(method)
                found[name] = signature.replace(parameters=list(signature.parameters.values())[1:])
    return found


def calls(code: str) -> Iterator[ast.Call]:
    """Calls of attributes: ``zkrq.connect(...)``, ``queue.push(...)``."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node


def test_there_are_examples() -> None:
    assert len(RUNNABLE) >= 1
    known = functions() | methods(Cluster, Queue, Claim)
    found = [call for block in blocks() for call in calls(block.code)]
    assert sum(isinstance(call.func, ast.Attribute) and call.func.attr in known for call in found) >= MIN_CALLS


@pytest.mark.parametrize("block", BLOCKS)
def test_calls_fit_the_real_signatures(block: Block) -> None:
    compile(block.code, block.page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    known = functions()
    for call in calls(block.code):
        assert isinstance(call.func, ast.Attribute)
        if isinstance(call.func.value, ast.Name) and call.func.value.id in OF_OTHERS:
            continue
        of_cluster = isinstance(call.func.value, ast.Name) and call.func.value.id == "cluster"
        own = methods(Queue, Claim, Cluster) if of_cluster else methods(Cluster, Queue, Claim)
        if isinstance(call.func.value, ast.Name) and call.func.value.id == "schedules":
            own = methods(StoredSchedules)
        if getattr(call.func.value, "id", "") == "flow" or getattr(call.func.value, "attr", "") == "flow":
            own = methods(Flow)
        of_zkrq = isinstance(call.func.value, ast.Name) and call.func.value.id == "zkrq"
        signature = (known if of_zkrq else own).get(call.func.attr)
        if signature is None:
            assert not of_zkrq, f"zkrq has no {call.func.attr}"
        else:
            signature.bind(*call.args, **{word.arg: word.value for word in call.keywords if word.arg})


@pytest.mark.anyio
@pytest.mark.skipif("redis" not in local.available(), reason="redis-server is not installed")
@pytest.mark.parametrize("block", RUNNABLE)
async def test_runnable_examples_run(block: Block) -> None:
    with anyio.fail_after(RUN_TIMEOUT):
        result = await anyio.run_process([sys.executable, "-W", "error", "-c", block.code], cwd=ROOT, check=False)
    assert result.returncode == 0, result.stderr.decode()
    assert result.stdout.decode() == block.output


@pytest.mark.anyio
async def test_the_worker_runs_and_drains(servers: local.Servers, tmp_path: Path) -> None:
    """As a newcomer starts it, with the servers in the environment."""
    (tmp_path / "jobs.py").write_text(snippet("README.md", "# jobs.py"))
    namespace = new_namespace()
    await zkrq.found(servers.redis_urls, servers.zookeeper_hosts, namespace=namespace)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("ZKRQ_")},
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "ZKRQ_REDIS": ",".join(f"{name}={url}" for name, url in servers.redis_urls.items()),
        "ZKRQ_ZOOKEEPER": servers.zookeeper_hosts,
        "ZKRQ_NAMESPACE": namespace,
    }
    zkrq_command = [sys.executable, "-m", "zkrq"]
    with anyio.fail_after(2 * RUN_TIMEOUT):
        async with await anyio.open_process(
            [*zkrq_command, "worker", "jobs:worker", "--log-level", "error"], cwd=tmp_path, env=environment, stderr=None
        ) as worker:
            await anyio.run_process([*zkrq_command, "push", "emails", '{"to": "ann@example.org"}'], env=environment)
            assert worker.stdout
            printed = BufferedByteReceiveStream(worker.stdout)  # one print is several writes
            assert await printed.receive_until(b"\n", 100) == b"sending to ann@example.org"
            worker.send_signal(signal.SIGTERM)
            assert await worker.wait() == 0


def mentioned(*names: str) -> None:
    missing = [name for name in names if f"`{name}`" not in TEXT]
    assert not missing, f"neither in the README nor in the guide: {missing}"


def test_every_setting_is_there() -> None:
    mentioned(*inspect.signature(zkrq.connect).parameters)
    mentioned("codec", *QueueOptions.__annotations__)
    mentioned(*inspect.signature(zkrq.embedded).parameters)


def test_every_error_is_there() -> None:
    public = {name: getattr(zkrq, name) for name in zkrq.__all__}
    mentioned(*(name for name, value in public.items() if inspect.isclass(value) and issubclass(value, zkrq.ZkrqError)))


def test_every_command_is_there() -> None:
    mentioned(*(command.name for command in running.COMMANDS))


def commands() -> Iterator[tuple[str, list[str]]]:
    """Each command of zkrq that a page has in a block, with the page."""
    for page in PAGES:
        for line in re.findall(
            r"^ {4,}(?:\$ |kubectl exec .* -- )?zkrq (?!\w+: )(\S.*)$", page.read_text(), re.MULTILINE
        ):
            words = shlex.split(re.sub(r" [<>&|]\S*.*$", "", line), comments=True)
            yield page.name, words


def test_commands_have_these_arguments() -> None:
    parser = make_parser(running.COMMANDS)
    shown = list(commands())
    assert len(shown) >= MIN_CALLS
    for page, words in shown:
        try:
            parser.parse_args(words)
        except SystemExit:
            pytest.fail(f"{page}: zkrq {shlex.join(words)}")


def test_commands_in_sentences_have_these_flags() -> None:
    """Their arguments may be left out there."""
    known = {
        command.name: {flag.name for flag in (*command.flags, *CONNECTION, JSON)}
        for command in sorted(running.COMMANDS, key=lambda command: -len(command.name))
    }
    seen = 0
    for page in PAGES:
        for text in re.findall(r"`zkrq ([a-z][^`]*)`", page.read_text()):
            for name in re.findall(r"--([a-z][a-z-]*)", text):
                command = next((each for each in known if text == each or text.startswith(f"{each} ")), None)
                assert command, f"{page.name}: zkrq {text}"
                assert name in known[command], f"{page.name}: zkrq {text}"
                seen += 1
    assert seen > MIN_CALLS


def test_values_of_the_chart_that_it_sets_are_there() -> None:
    values = yaml.safe_load((ROOT / "chart" / "values.yaml").read_text())
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    named = [*re.findall(r"--set ([\w.]+)=", text), *re.findall(r"`((?:worker|networkPolicy|keda)\.\w+)`", text)]
    assert len(named) >= 5
    for name in named:
        value: Any = values
        for part in name.split("."):
            assert part in value, name
            value = value[part]
    (block,) = re.findall(r"    # shop.yaml\n((?:    .*\n)+)", text)
    assert yaml.safe_load(re.sub("^    ", "", block, flags=re.MULTILINE)).keys() <= values.keys()


def test_files_that_it_names_are_there() -> None:
    for page in PAGES:
        for name in re.findall(r"\]\(([^):#]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / name).exists(), f"{page.name} names {name}"


def test_what_happens_when_names_tests_that_are_there() -> None:
    table = contract.shown()
    shown = contract.rows()
    assert set(table) == set(shown), "tests/contract.txt has a line for each row, and no other"
    for row in shown:
        named = [test for test in table[row] if "::" in test]
        assert named, row
        for file, test in (each.split("::") for each in named):
            assert f"def {test}(" in (ROOT / "tests" / file).read_text(), row
        for file in table[row]:
            assert (ROOT / "tests" / file.partition("::")[0]).exists(), row


def test_what_happens_when_says_one_thing_in_a_cell() -> None:
    for _, row in contract.cells():
        assert all(len(cell) <= MAX_CELL for cell in row), row
