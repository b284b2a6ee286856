"""The command line: ``zkrq``, or ``python -m zkrq``.

Two tables say it all: the flags, each with an environment variable of its own, and the commands.  A command yields
lines, each as text for people and as a value for ``--json``.  Errors are one line on stderr: exit code 2 for what has
to be mended, 1 for what may mend itself.  Signals are dealt with here and nowhere else.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import logging
import os
import signal
import string
import sys
from argparse import Namespace
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple, NoReturn, cast

import zkrq
from zkrq import local
from zkrq.claims import Claim
from zkrq.cli import demo
from zkrq.cli.demo.words import count
from zkrq.cluster import Cluster
from zkrq.codecs import RAW
from zkrq.connecting import connect
from zkrq.errors import ConfigError, ZkrqError

EXIT_TROUBLE, EXIT_USAGE, EXIT_SIGNAL = 1, 2, 128

READ_BYTES = 1 << 16
"""Read from stdin at once; the items in it are pushed together."""

POP_AT_ONCE = 100
"""Items claimed together."""

_NO_LIMIT = zkrq.Retry(max_attempts=None)
_KEEP_ALL = zkrq.DeadLetters(max_count=None, expired=True)


DEFAULT_NAMESPACE = "zkrq"

SNIPPET = """\
Servers of your own, empty, until Ctrl-C.  In a shell:

export ZKRQ_REDIS={urls}
export ZKRQ_ZOOKEEPER={hosts}
zkrq push try '{{"hello": "world"}}'

In Python:

import asyncio
import zkrq

async def main():
    async with zkrq.connect(
        redis={redis},
        zookeeper={zookeeper},
    ) as cluster:
        claim = await cluster.queue("try").pop_one()
        async with claim:
            print(claim.item)

asyncio.run(main())
"""


class Line(NamedTuple):
    """One line of output: for people, and as a value."""

    text: str
    value: object


Lines = AsyncGenerator[Line, None]


class Flag(NamedTuple):
    """``--name``, without a value where the type is bool; its variable is ``ZKRQ_NAME``, or ``ZKRQ_COMMAND_NAME`` where
    it belongs to one command."""

    name: str
    help: str
    type: Callable[[str], object] = str
    default: object = None
    metavar: str | None = None


@dataclass(frozen=True, slots=True)
class Command:
    """``arguments`` are positional: name -> help; ``name...`` stands for one or more.  A name of two words is a group
    and a command in it.  ``connected``: works on a cluster that exists."""

    name: str
    help: str
    run: Callable[[Namespace], Lines]
    flags: tuple[Flag, ...] = ()
    arguments: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    connected: bool = True


# -- flags that are shared -------------------------------------------------------------------------------------------


def _servers(text: str) -> Mapping[str, str] | list[str]:
    """``url,url`` or ``name=url,name=url``."""
    urls = [url.strip() for url in text.split(",") if url.strip()]
    named = {name: url for name, found, url in (url.partition("=") for url in urls) if found and ":" not in name}
    return named if len(named) == len(urls) else urls


def _login(text: str) -> tuple[str, str]:
    user, _, password = text.partition(":")
    return user, password


CONNECTION = (
    Flag("redis", "the Redis servers: url,url,url or name=url,name=url,name=url", _servers, metavar="URLS"),
    Flag("zookeeper", "the ZooKeeper servers: host:port,host:port,host:port", metavar="HOSTS"),
    Flag(
        "zookeeper-auth",
        "for ZooKeeper's digest scheme; better in its variable than here",
        _login,
        None,
        "USER:PASSWORD",
    ),
    Flag("namespace", "what belongs together", default=DEFAULT_NAMESPACE),
    Flag("description", "tells people which process this is, in `zkrq consumers`; not given: host:pid"),
    Flag("session-timeout", "until a silent process is taken for dead", float, 10.0, "SECONDS"),
    Flag("command-timeout", "until a silent Redis server is taken for dead", float, 2.0, "SECONDS"),
    Flag("operation-timeout", "that a push or an ack tries on", float, 15.0, "SECONDS"),
)


def _open(args: Namespace, **founding: Any) -> Cluster:
    """Every command works on a namespace that exists, but for the one that founds it."""
    for needed in ("redis", "zookeeper"):
        if not getattr(args, needed):
            raise ConfigError(f"no --{needed} given, and ZKRQ_{needed.upper()} is not set")
    given = {name: getattr(args, name) for name in (_attribute(flag.name) for flag in CONNECTION)}
    return connect(**given, **founding)


# -- commands --------------------------------------------------------------------------------------------------------


async def _demo(args: Namespace) -> Lines:
    with demo.display(sys.stderr if args.json else sys.stdout) as display:
        verdict = await demo.run(display, seconds=args.seconds, rate=args.rate)
    yield Line(demo.describe(verdict), dataclasses.asdict(verdict))
    if not verdict.clean:
        raise ZkrqError("the demo did not end as it should")


async def _dev(args: Namespace) -> Lines:
    async with local.servers(args.redis, args.zookeeper) as servers:
        urls, hosts = list(servers.redis_urls.values()), servers.zookeeper_hosts
        for namespace in {DEFAULT_NAMESPACE, os.environ.get("ZKRQ_NAMESPACE") or DEFAULT_NAMESPACE}:
            await zkrq.found(urls, hosts, namespace=namespace)
        text = SNIPPET.format(redis=json.dumps(urls), zookeeper=json.dumps(hosts), urls=",".join(urls), hosts=hosts)
        yield Line(text, {"redis": urls, "zookeeper": hosts})
        await asyncio.Event().wait()  # until a signal comes


async def _found(args: Namespace) -> Lines:
    async with _open(args, found=True, min_replicas=args.min_replicas) as cluster:
        view = cluster.view
    servers = sorted(view.servers)
    text = f"namespace {args.namespace} is founded: {', '.join(servers)}, min_replicas {view.min_replicas}"
    yield Line(text, {"namespace": args.namespace, "servers": servers, "min_replicas": view.min_replicas})


async def _push(args: Namespace) -> Lines:
    many = args.item == "-"
    if many and (args.id is not None or args.key is not None):
        raise ConfigError("--id and --key are one item's; with ITEM - there may be many")
    item = None if many else _parse(args.item, "ITEM")
    options: dict[str, Any] = {"delay": args.delay, "priority": args.priority, "ttl": args.ttl}
    async with _open(args) as cluster:
        queue = cluster.queue(args.queue)
        if not many:
            yield _receipt(await queue.push(item, id=args.id, key=args.key, **options))
            return
        read = 0
        async for lines in _stdin_lines():
            items = [_parse(line, f"line {number}") for number, line in enumerate(lines, read + 1) if line.strip()]
            read += len(lines)
            for receipt in await queue.push_many(items, **options):
                yield _receipt(receipt)


def _receipt(receipt: zkrq.Receipt) -> Line:
    told = "  has the key already" if receipt.duplicate else "  is done already" if receipt.done else ""
    return Line(f"{receipt.id}{told}", receipt._asdict())


async def _pop(args: Namespace) -> Lines:
    deadline = asyncio.get_running_loop().time() + args.wait
    async with _open(args) as cluster:
        # What this command cannot read, or what others have often failed at, is not buried here. No dead
        # letter is dropped, and what has expired becomes one: the queue's own consumers may want to keep it.
        queue, left = cluster.queue(args.queue, codec=RAW, retry=_NO_LIMIT, dead_letters=_KEEP_ALL), args.count
        while left > 0:
            wait = max(0.0, deadline - asyncio.get_running_loop().time())
            claims = await queue.pop_many(min(left, POP_AT_ONCE), timeout=wait)
            if not claims:
                return
            for claim in claims:
                yield _delivery(claim)
            await asyncio.gather(*(claim.ack() for claim in claims))
            left -= len(claims)


def _delivery(claim: Claim[bytes]) -> Line:
    """The item as JSON; where it is none, null with the ``payload`` as text beside it."""
    try:
        item: object = json.loads(claim.item)
        text, unread = json.dumps(item), dict[str, str]()
    except (ValueError, RecursionError):
        item, text, unread = None, repr(claim.item), {"payload": claim.item.decode(errors="backslashreplace")}
    value = {
        "id": claim.id,
        "item": item,
        **unread,
        "priority": claim.priority,
        "attempts": claim.attempts,
        "pushed_at": claim.pushed_at.isoformat(),
    }
    return Line(text, value)


async def _stats(args: Namespace) -> Lines:
    async with _open(args) as cluster:
        statistics = await cluster.statistics()
        health = cluster.health()
    width = max(map(len, ["queue", *statistics]))
    rows: list[tuple[str, Iterable[object], str]] = [("queue", zkrq.Sizes._fields, "")]
    rows += [(name, each.sizes, "  paused" if each.paused else "") for name, each in statistics.items()]
    text = [
        f"{args.namespace}: epoch {health.epoch}, {'ready to push and claim' if health.ok else 'not ready'}",
        *health.trouble,
        *(line.text for line in _servers_of(health)),
        "",
        *(f"{name:{width}}" + "".join(f"{figure:>11}" for figure in figures) + note for name, figures, note in rows),
    ]
    value = {
        "health": {**health._asdict(), "servers": {id: server._asdict() for id, server in health.servers.items()}},
        "queues": {
            name: {**each.sizes._asdict(), "paused": each.paused, "oldest_ready": each.oldest_ready}
            for name, each in statistics.items()
        },
    }
    yield Line("\n".join(text), value)


def _servers_of(health: zkrq.Health) -> list[Line]:
    return [
        Line(
            f"{id}: {server.place}{'' if server.connected else ', not connected'}",
            {"server": id, **server._asdict()},
        )
        for id, server in health.servers.items()
    ]


async def _servers_list(args: Namespace) -> Lines:
    async with _open(args) as cluster:
        for line in _servers_of(cluster.health()):
            yield line


async def _servers_add(args: Namespace) -> Lines:
    async with _open(args) as cluster:
        name = await cluster.add_server(args.url, name=args.name, force=args.force)
        yield Line(f"{name} is in sync", {"server": name, "epoch": cluster.view.epoch})


async def _servers_remove(args: Namespace) -> Lines:
    async with _open(args) as cluster:
        await cluster.remove_server(args.name)
        yield Line(f"{args.name} is removed", {"server": args.name, "epoch": cluster.view.epoch})


async def _servers_recover(args: Namespace) -> Lines:
    await _open(args).recover(args.name)
    yield Line(f"recovered with {', '.join(args.name)}", {"servers": args.name})


def _item(item: zkrq.Item[Any]) -> Line:
    shown = repr(item.payload) if item.item is None else json.dumps(item.item)
    why = f"  {item.reason}" if item.reason else ""
    held = f" by {item.owner}" if item.owner else ""
    moments = {"pushed_at": item.pushed_at.isoformat(), "died_at": item.died_at and item.died_at.isoformat()}
    value = {**dataclasses.asdict(item), "payload": item.payload.decode(errors="backslashreplace"), **moments}
    return Line(f"{item.id}  {item.state}{held}  {shown}{why}", value)


async def _get(args: Namespace) -> Lines:
    async with _open(args) as cluster:
        item = await cluster.queue(args.queue).get(args.id)
    if item is None:
        raise ConfigError(f"queue {args.queue!r} has no item {args.id!r}")
    yield _item(item)


async def _peek(args: Namespace) -> Lines:
    async with _open(args) as cluster:
        for item in await cluster.queue(args.queue).peek(args.count, args.state):
            yield _item(item)


async def _cancel(args: Namespace) -> Lines:
    async with _open(args) as cluster:
        found = await cluster.queue(args.queue).cancel(args.id)
    yield Line(found.value, {"id": args.id, "outcome": found.value})


async def _pause(args: Namespace) -> Lines:
    async with _open(args) as cluster:
        await cluster.queue(args.queue).pause()
    yield Line("paused: nobody claims from it until it is resumed", {"queue": args.queue, "paused": True})


async def _resume(args: Namespace) -> Lines:
    async with _open(args) as cluster:
        await cluster.queue(args.queue).resume()
    yield Line("goes on", {"queue": args.queue, "paused": False})


async def _dead_list(args: Namespace) -> Lines:
    async with _open(args) as cluster:
        for letter in await cluster.queue(args.queue).dead_letters(args.count):
            yield _item(letter)


async def _dead_redrive(args: Namespace) -> Lines:
    async with _open(args) as cluster:
        revived = await cluster.queue(args.queue).redrive(args.id or None, rate=args.rate)
    yield Line(f"{count(revived, 'item')} queued again", {"redriven": revived})


async def _dead_discard(args: Namespace) -> Lines:
    async with _open(args) as cluster:
        removed = await cluster.queue(args.queue).discard(args.id or None)
    yield Line(f"{count(removed, 'item')} removed", {"removed": removed})


async def _clear(args: Namespace) -> Lines:
    async with _open(args) as cluster:
        removed = await cluster.queue(args.queue).clear()
    yield Line(f"{count(removed, 'item')} removed", {"removed": removed})


async def _consumers(args: Namespace) -> Lines:
    async with _open(args) as cluster:
        for owner, consumer in sorted((await cluster.consumers()).items()):
            held = ", ".join(f"{n} of {queue}" for queue, n in sorted(consumer.claims.items())) or "nothing"
            details = {"owner": owner, "description": consumer.description, "claims": dict(consumer.claims)}
            yield Line(f"{owner}  {consumer.description}  holds {held}", details)


_QUEUE = {"queue": "the queue's name"}
_LETTERS = Flag("count", "how many, at most 500", int, 100, "N")

COMMANDS = (
    Command(
        "demo",
        "private servers, workers and failures: watch that nothing gets lost",
        _demo,
        (
            Flag("seconds", "how long items are pushed", float, demo.SECONDS),
            Flag("rate", "items pushed per second, at most", float, demo.RATE),
        ),
        connected=False,
    ),
    Command(
        "dev",
        "keep private servers up, to try things out against",
        _dev,
        (
            Flag("redis", "how many Redis servers", int, 3, "N"),
            Flag("zookeeper", "how many ZooKeeper servers", int, 3, "N"),
        ),
        connected=False,
    ),
    Command(
        "found",
        "begin a namespace with the servers that are given; done again it changes nothing",
        _found,
        (
            Flag(
                "min-replicas", "in-sync servers without which no push returns; not given: 2, or 1 of 1", int, None, "N"
            ),
        ),
    ),
    Command(
        "push",
        "push an item, print its id",
        _push,
        (
            Flag("id", "the item's id, to be able to repeat a push"),
            Flag("delay", "before it may be delivered", float, 0.0, "SECONDS"),
            Flag("priority", "0 to 9, higher first", int, 0, "N"),
            Flag("key", "push nothing while another item of this key is queued, scheduled or claimed"),
            Flag("ttl", "after which it is delivered no more; not given: never", float, None, "SECONDS"),
        ),
        {**_QUEUE, "item": "the item as JSON; - reads one from each line of stdin"},
    ),
    Command(
        "pop",
        "take items: print each as one line, as JSON where it is JSON, then ack it",
        _pop,
        (
            Flag("count", "how many, at most", int, 1, "N"),
            Flag("wait", "for items to come; 0: what is ready", float, 0.0, "SECONDS"),
        ),
        _QUEUE,
    ),
    Command("stats", "how many items each queue has, and how the servers are", _stats),
    Command("get", "what is known of one item", _get, arguments={**_QUEUE, "id": "its id"}),
    Command(
        "peek",
        "look at the first items of a state, without taking them",
        _peek,
        (
            Flag("count", "how many, at most 500", int, 10, "N"),
            Flag("state", "ready, scheduled, claimed or dead", str, "ready"),
        ),
        _QUEUE,
    ),
    Command("cancel", "remove one item, and stop who holds it", _cancel, arguments={**_QUEUE, "id": "its id"}),
    Command("pause", "let nobody claim from a queue", _pause, arguments=_QUEUE),
    Command("resume", "let everybody claim again", _resume, arguments=_QUEUE),
    Command("dead list", "the dead letters, with the reason", _dead_list, (_LETTERS,), _QUEUE),
    Command(
        "dead redrive",
        "queue dead letters again",
        _dead_redrive,
        (Flag("rate", "at most so many a second; not given: as fast as it goes", float, None, "N"),),
        {**_QUEUE, "id?...": "which; none given: all"},
    ),
    Command("dead discard", "remove dead letters", _dead_discard, arguments={**_QUEUE, "id?...": "which; none: all"}),
    Command("clear", "remove every item that nobody holds", _clear, arguments=_QUEUE),
    Command("consumers", "who may hold claims", _consumers),
    Command("servers list", "the Redis servers of the namespace, and which of them are in sync", _servers_list),
    Command(
        "servers add",
        "take one more Redis server into the namespace; returns when it is in sync",
        _servers_add,
        (
            Flag("name", "what it is called; not given: host:port"),
            Flag("force", "take it from the other deployment that it belongs to, and wipe its items", bool, False),
        ),
        {"url": "where it is; whatever it holds of this namespace is wiped"},
    ),
    Command("servers remove", "take a server out of the namespace", _servers_remove, arguments={"name": "its name"}),
    Command(
        "servers recover",
        "after all in-sync servers were lost: go on with what these hold; what only others held is lost",
        _servers_recover,
        arguments={"name...": "the servers to go on with"},
    ),
)


# -- parsing ---------------------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\n")


def _attribute(flag: str) -> str:
    return flag.replace("-", "_")


def _add_flags(parser: argparse.ArgumentParser, flags: Iterable[Flag], prefix: str) -> None:
    for flag in flags:
        variable = f"{prefix}{_attribute(flag.name).upper()}"
        if flag.type is bool:
            given = os.environ.get(variable, "0") not in ("", "0")
            parser.add_argument(
                f"--{flag.name}", help=f"{flag.help} ({variable}=1)", action="store_true", default=given
            )
            continue
        default = "" if flag.default is None else f"default: {flag.default}; "
        parser.add_argument(
            f"--{flag.name}",
            help=f"{flag.help} ({default}{variable})",
            type=flag.type,
            default=os.environ.get(variable) or flag.default,
            metavar=flag.metavar or flag.name.upper(),
        )


def _make_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="zkrq", description="A reliable work queue on independent Redis servers and ZooKeeper.")
    parser.add_argument("--version", action="version", version=f"zkrq {zkrq.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, dest="command")
    groups: dict[str, Any] = {"": commands}
    for command in COMMANDS:
        group, _, own_name = command.name.rpartition(" ")
        if group not in groups:
            parent = commands.add_parser(group, help=", ".join(_members_of(group)))
            groups[group] = parent.add_subparsers(metavar="COMMAND", required=True)
        sub = groups[group].add_parser(own_name, help=command.help, description=f"{command.help}.")
        for name, help in command.arguments.items():
            several = {"?...": "*", "...": "+"}.get(name.lstrip(string.ascii_letters))
            name = name.rstrip("?.")
            sub.add_argument(name, help=help, metavar=name.upper(), nargs=several)
        _add_flags(sub, command.flags, f"ZKRQ_{command.name.upper().replace(' ', '_')}_")
        if command.connected:
            _add_flags(sub, CONNECTION, "ZKRQ_")
        json_by_default = os.environ.get("ZKRQ_JSON", "0") not in ("", "0")
        sub.add_argument("--json", help="print JSON (ZKRQ_JSON=1)", action="store_true", default=json_by_default)
        sub.set_defaults(run=command.run)
    return parser


def _members_of(group: str) -> list[str]:
    return [command.name.removeprefix(f"{group} ") for command in COMMANDS if command.name.startswith(f"{group} ")]


def _parse(text: str | bytes, where: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{where} is no JSON: {error}") from error


# -- stdin and signals -----------------------------------------------------------------------------------------------


async def _stdin_lines() -> AsyncGenerator[list[bytes], None]:
    """The lines of stdin, as many together as there are, without stopping the event loop."""
    rest = b""
    while True:
        await _until_readable(sys.stdin.fileno())
        data = os.read(sys.stdin.fileno(), READ_BYTES)
        *lines, rest = (rest + data).split(b"\n")
        if not data:
            yield [rest]
            return
        yield lines


async def _until_readable(fd: int) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.add_reader(fd, ready.set)
    except PermissionError:
        return  # a file: there is nothing to wait for
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)


async def _carry_out(args: Namespace) -> None:
    task = asyncio.current_task()
    assert task
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with aclosing(args.run(args)) as lines:
        async for line in lines:
            sys.stdout.write(f"{json.dumps(line.value) if args.json else line.text}\n")
            sys.stdout.flush()


def _fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed (extra ``uvloop``), None: asyncio's own."""
    try:
        return cast("Callable[[], asyncio.AbstractEventLoop]", import_module("uvloop").new_event_loop)
    except ImportError:
        return None


def main(arguments: list[str] | None = None) -> int:
    """Carry out one command; returns the exit code."""
    args = _make_parser().parse_args(arguments)
    logging.getLogger("zkrq").addHandler(logging.NullHandler())  # what matters is told below
    try:
        with asyncio.Runner(loop_factory=_fastest_loop()) as runner:
            runner.run(_carry_out(args))
    except KeyboardInterrupt:
        return EXIT_SIGNAL + signal.SIGINT
    except asyncio.CancelledError:
        return EXIT_SIGNAL + signal.SIGTERM
    except Exception as error:
        return _account_for(args.command, _first(error))
    return 0


def _account_for(command: str, error: BaseException) -> int:
    match error:
        case ZkrqError():
            sys.stderr.write(f"zkrq {command}: {' '.join(str(error).split())}\n")
            return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_TROUBLE
        case BrokenPipeError():
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads any more: no complaint either
            return EXIT_TROUBLE
        case _:
            raise error  # a mistake of ours: the traceback is wanted


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
