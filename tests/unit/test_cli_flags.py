"""The command line and the table of operations: flags, their texts, and what is asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from zkrq import ConfigError, Receipt
from zkrq.cli import push
from zkrq.cli.flags import AsFlags, Takes, attribute, usage
from zkrq.cli.parsing import make_parser
from zkrq.cli.running import COMMANDS
from zkrq.cli.settings import FIELDS
from zkrq.operations.items import FIND
from zkrq.operations.kinds import Choice, Count, Texts
from zkrq.operations.operation import Arguments, Needs, Parameter
from zkrq.operations.push import PUSH
from zkrq.operations.settings import CHANGE_SETTINGS
from zkrq.operations.table import OPERATIONS

pytestmark = pytest.mark.anyio


class Recorder:
    """A queue that keeps what was asked for."""

    def __init__(self) -> None:
        self.asked = dict[str, Any]()

    async def push(self, item: bytes, **options: Any) -> Receipt:
        self.asked = {"item": item, **options}
        return Receipt("id", 3, False, False, True, ())


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """The queue of a push that reaches no server."""
    recorder = Recorder()

    @asynccontextmanager
    async def nowhere(args: object) -> AsyncGenerator[None]:
        yield

    def queue(cluster: object, name: str) -> Recorder:
        return recorder

    monkeypatch.setattr(push, "open_cluster", nowhere)
    monkeypatch.setattr(push, "raw_queue", queue)
    return recorder


(PUSHES,) = push.COMMANDS

OTHERWISE = {
    ("pop", "lease"): "claims are extended until their items are printed",
    ("find", "limit"): "the command reads all pages",
    ("flows list", "limit"): "the command reads all pages",
    ("flows list", "after"): "the command reads all pages",
    ("find", "after"): "the command reads all pages",
    ("list", "limit"): "--count, as of each command that lists something",
    ("groups", "limit"): "--count, as of each command that lists something",
    ("dead redrive", "ids"): "arguments, each an id",
    ("quiet", "owners"): "arguments, each an id",
    ("unquiet", "owners"): "arguments, each an id",
    ("advance", "ids"): "arguments, each an id",
    ("pause", "seconds"): "--for",
    ("queues set", "limits"): "--concurrency and --rate",
    ("queues set", "groups"): "--group, --group-concurrency, --group-rate, --like-others, --ordered and --unordered",
    ("queues set", "dead_letters"): "--dead-letters, --dead-letters-age, --keep-expired and --drop-expired",
}
"""Parameters that a command has in another way, or not, and why."""


def test_a_command_has_the_parameters_of_its_operation() -> None:
    commands = {command.name: command for command in COMMANDS}
    left_out: set[tuple[str, str]] = set()
    for operation in (each for each in OPERATIONS.values() if each.command):
        command = commands[operation.command]
        flags = {attribute(flag.name): flag for flag in command.flags}
        arguments = {name.rstrip("?."): help for name, help in command.arguments.items()}
        for parameter in operation.parameters:
            name = parameter.name.removesuffix("s") if isinstance(parameter.kind, Texts) else parameter.name
            if (command.name, name) in OTHERWISE:
                left_out.add((command.name, name))
            elif parameter.required:
                assert name in arguments, (command.name, name)
            else:
                assert name in flags, (command.name, name)
                # A command that finds items by conditions has those of `find`.
                known = (parameter, FIND.by_name.get(name, parameter))
                texts = [usage(each.sentence, AsFlags(), operation.by_name) for each in known]
                assert flags[name].help.startswith(tuple(texts)), (command.name, name)
        assert (operation.on == "queue") <= ("queue" in arguments), command.name
    assert left_out == OTHERWISE.keys()
    assert {operation.name for operation in OPERATIONS.values() if not operation.command} == {
        *("ack", "ack_many", "bury", "extend", "nack", "progress", "release", "save"),  # a claim ends with its command
        *("push_many", "queue_statistics", "get_schedule"),  # push -, stats and schedules list
        *("begin_flow", "push_member", "push_follower"),  # by programs
    }


def test_every_setting_of_a_queue_has_a_flag() -> None:
    (command,) = (command for command in COMMANDS if command.name == "queues set")
    assert {flag.name for flag in command.flags} == FIELDS.keys()
    parts = {each.name: each.kind.of for each in CHANGE_SETTINGS.parameters if isinstance(each.kind, Arguments)}
    every = {("", name) for name in CHANGE_SETTINGS.by_name.keys() - parts.keys()}
    every |= {(part, name) for part, section in parts.items() for name in section.by_name if name != "seconds"}
    assert set(FIELDS.values()) == every


async def test_a_new_parameter_is_in_the_parser_its_help_and_the_call(
    recorder: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    colours = (
        Parameter("fast_lane", Choice(("left", "right")), "With `key`: the lane, `left` or `right`.", "none"),
        Parameter("paint_coats", Count(1, 9), "1 to 9 coats.", "1", default=1),
    )
    rules = (*PUSH.rules, Needs("fast_lane", "key", "user-42"))
    takes = Takes(dataclasses.replace(PUSH, parameters=(*PUSH.parameters, *colours), rules=rules))
    parser = make_parser([dataclasses.replace(PUSHES, flags=(), takes=takes)])
    with pytest.raises(SystemExit):
        parser.parse_args(["push", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert "--fast-lane WORD with --key: the lane, left or right (default: none; ZKRQ_PUSH_FAST_LANE)" in told
    assert "--paint-coats N 1 to 9 coats (default: 1; ZKRQ_PUSH_PAINT_COATS)" in told

    async def run(*flags: str) -> None:
        args = parser.parse_args(["push", "jobs", "7", *flags])
        args.codec = "json"
        args.given = args.takes.read(args)
        assert [line async for line in args.run(args)]

    await run("--fast-lane", "left", "--key", "k", "--paint-coats", "3")
    assert recorder.asked == {"item": b"7", "fast_lane": "left", "key": "k", "paint_coats": 3}
    await run("--paint-coats", "1")
    assert recorder.asked == {"item": b"7"}
    for flags, says in (
        (("--fast-lane", "left"), "--fast-lane needs a key: --key user-42"),
        (("--fast-lane", "up", "--key", "k"), "--fast-lane is 'up': must be "),
        (("--paint-coats", "10"), "--paint-coats is 10: must be at least 1, at most 9"),
    ):
        with pytest.raises(ConfigError, match=says):
            await run(*flags)


async def test_every_option_of_a_push_reaches_it(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    parser = make_parser(COMMANDS)

    async def asked(*flags: str) -> dict[str, Any]:
        args = parser.parse_args(["push", "jobs", "7", *flags])
        args.given = args.takes.read(args)
        assert [line async for line in args.run(args)]
        return recorder.asked

    given = {"id": "i", "key": "k", "group": "g", "priority": 3, "delay": 1.5, "ttl": 60.0, "key_window": 5.0}
    given["task"] = "t"
    flags = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    assert await asked(*flags) == {"item": b"7", **given}
    at = "2030-01-01T00:00:00+00:00"
    asked_for = await asked("--at", at, "--header", "a=b=c", "--header", "d=", "--replace", "--key", "k")
    assert asked_for.pop("at").isoformat() == at
    assert asked_for == {"item": b"7", "headers": {"a": "b=c", "d": ""}, "replace": True, "key": "k"}
    monkeypatch.setenv("ZKRQ_PUSH_HEADER", "of=environment")
    parser = make_parser(COMMANDS)
    assert await asked() == {"item": b"7", "headers": {"of": "environment"}}
    assert (await asked("--header", "a=b"))["headers"] == {"a": "b"}, "a flag takes its place"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--replace", "--replace needs a key: --key user-42"),
        ("--key-window 5", "--key-window needs a key: --key user-42"),
        ("--key k --key-window 5 --replace", "use --key-window alone, or --replace with a delay"),
        ("--priority 10", "--priority is 10: must be at least 0, at most 9"),
        ("--ttl 5 --delay 5", "--ttl is 5 s, not longer than the delay of 5 s"),
        ("--at 2040-01-01", "--at is 2040-01-01 00:00:00: give it a time zone"),
    ],
)
def test_what_a_push_refuses_names_the_flags(flags: str, says: str) -> None:
    args = make_parser(COMMANDS).parse_args(["push", "jobs", "7", *flags.split()])
    with pytest.raises(ConfigError, match=says):
        args.takes.read(args)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--delay soon", "argument --delay: 'soon' must be seconds, such as 3600 or 1h30m"),
        ("--priority high", "argument --priority: 'high' must be an integer"),
        ("--at tomorrow", "argument --at: 'tomorrow' must be a moment, such as 2040-01-31T08:00:00"),
        ("--header a", "argument --header: 'a' must be a name, '=' and a text, such as campaign=spring"),
    ],
)
def test_a_word_that_cannot_be_read_is_named(flags: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        make_parser(COMMANDS).parse_args(["push", "jobs", "7", *flags.split()])
    assert says in capsys.readouterr().err
