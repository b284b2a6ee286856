"""Read the facts for `zkrq doctor`: ask every server by itself, so that one that cannot be used hides no other.

Nothing is written but a session in ZooKeeper, which ends with the reading.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from zkrq.base import clock
from zkrq.base.errors import ConfigError, ZkrqError
from zkrq.client.examining.facts import Facts, ServerFacts
from zkrq.coordination.coordinator import VIEW, latest, session_of
from zkrq.coordination.zookeeper.asking import ask_hosts
from zkrq.producing.placement import MAP
from zkrq.protocol.calls.rows import texts_of
from zkrq.protocol.keys import key
from zkrq.protocol.levels import SPOKEN, ClientInfo, OtherLevel, known
from zkrq.protocol.replies import Answer, Status, Verdict, read_error
from zkrq.protocol.server_info import questions, read_info, read_own
from zkrq.protocol.shards import FIRST
from zkrq.protocol.shards import decode as decode_map
from zkrq.protocol.view import NoView, ServerId, View
from zkrq.protocol.view import decode as decode_view
from zkrq.replication.stream import ErrorReply
from zkrq.replication.urls import Told, redact
from zkrq.replication.wire import NoConnection, Wire, pack

if TYPE_CHECKING:
    from zkrq.client.connecting import Given
    from zkrq.coordination.coordinator import Coordinator

ROUND_TRIPS = 5
"""Questions whose median is the round trip of a server."""

LEAST_SECONDS = 2.0
"""Seconds that each server has at least for its answers, however short ``command_timeout`` is."""

QUEUES_LOOKED_AT = 10_000
"""Queues of a server in which damaged entries are looked for."""

_AT_ONCE = 500
"""Queues that are asked for in one step."""

_READS = (
    "HGET K f", "HMGET K f", "HDEL K f", "HEXISTS K f", "HLEN K", "HSCAN K 0", "HSTRLEN K f", "SREM K f", "SCARD K",
    "SSCAN K 0", "LLEN K", "LRANGE K 0 0", "LTRIM K 0 0", "ZREM K f", "ZCARD K", "ZCOUNT K 0 0", "ZLEXCOUNT K - +",
    "ZMSCORE K f", "ZPOPMIN K", "ZRANGE K 0 0", "ZRANGEBYLEX K - +", "ZRANGEBYSCORE K 0 0", "ZRANK K f",
    "ZREMRANGEBYRANK K 0 0", "ZSCAN K 0", "ZSCORE K f", "EXISTS K", "UNLINK K",
)  # fmt: skip
"""What scripts call and what changes nothing where K does not exist."""

_REFUSED = ("ZADD K none f", "HSET K f v f", "FUNCTION LOAD none", "FCALL none 0")
"""What every server refuses for its form, once it has found that the user has the right."""

_ON_A_HASH = ("SADD H f", "RPUSH H f", "HSETNX H generation f")
"""What changes nothing of an enrolled server's own hash: it is no set, no list, and has a generation."""


async def read_facts(given: Given) -> Facts:
    """Ask everything that can be asked.  Raises ``ConfigError`` for files that cannot be read."""
    timeout = max(LEAST_SECONDS, given.settings.command_timeout)
    context = given.tls.context() if given.tls else None
    urls = {ServerId(id): url for servers in (given.servers, *given.shards.values()) for id, url in servers.items()}
    hosts, found, servers = await asyncio.gather(
        ask_hosts(given.hosts, context, timeout), _read_views(given), _read_servers(given, urls, timeout)
    )
    facts = found._replace(first=FIRST, hosts=tuple(hosts), given=tuple(map(ServerId, given.servers)))
    further = {id: url for view in facts.views.values() for id, url in view.servers.items() if id not in urls}
    told = Told([*urls.values()], given.dial)
    return facts._replace(servers={**servers, **await _read_servers(given, further, timeout, told)})


async def _read_views(given: Given) -> Facts:
    """Read the views of all shards, and what the session with ZooKeeper says."""
    empty = Facts(given.settings, (), {}, ())
    views: dict[str, View] = {}
    unreadable: dict[str, tuple[str, str]] = {}
    try:
        async with given.coordinator() as coordinator:
            granted = coordinator.granted
            registers = {FIRST: VIEW}
            map = await coordinator.read(MAP)
            try:
                registers.update((name, entry.register) for name, entry in decode_map(map.data).shards.items())
            except ValueError as error:
                step = f"restore ZooKeeper's data; if no shard but main was ever added, delete the znode `{MAP}`"
                unreadable["map"] = str(error), step
            for name, register in registers.items():
                if (stored := await coordinator.read(register)).data is not None:
                    try:
                        views[name] = decode_view(stored.data)
                    except NoView:  # it is just being removed
                        pass
                    except ValueError as error:
                        unreadable[name] = _why(error)
            clients = await _read_clients(coordinator)
            found = empty._replace(granted=granted, views=views, unreadable=unreadable)
            return found._replace(clients=clients, latest=SPOKEN.highest)
    except ZkrqError as error:
        wrong = isinstance(error, ConfigError)
        unfounded = wrong and "does not exist here" in str(error)
        return empty._replace(session=str(error), passing=not wrong, unfounded=unfounded)


async def _read_clients(coordinator: Coordinator) -> Mapping[str, ClientInfo]:
    consumers = {session_of(owner): text for owner, text in (await coordinator.consumers()).items()}
    return known(latest(await coordinator.clients()), consumers)


def _why(error: ValueError) -> tuple[str, str]:
    """Return why a register cannot be read, and what to do."""
    if isinstance(error, OtherLevel):
        return error.what, error.step
    return str(error), "restore ZooKeeper's data; without it, see docs/operations.md#zookeeper-altogether"


async def _read_servers(
    given: Given, urls: Mapping[ServerId, str], timeout: float, told: Told | None = None
) -> dict[ServerId, ServerFacts]:
    """Read these servers; ``told``: the URLs are of a view."""
    found = await asyncio.gather(*(_read_server(given, id, url, timeout, told) for id, url in urls.items()))
    return {facts.id: facts for facts in found}


async def _read_server(given: Given, id: ServerId, url: str, timeout: float, told: Told | None) -> ServerFacts:
    """Read one server.  What it refuses, or that it does not answer, is a fact like any other."""
    facts = ServerFacts(id, redact(url))
    try:
        used = told.url_for(url) if told else url
    except ConfigError as error:
        return replace(facts, refusal=Answer(Status.DENIED, (), str(error)))
    wire = given.dial(used, timeout)()
    try:
        async with asyncio.timeout(2 * timeout):
            await wire.prepare()
            await wire.connect()
            return await _ask(wire, given.settings.namespace, facts)
    except TimeoutError:
        return replace(facts, refusal=Answer(Status.TIMEOUT, (), f"no answer within {timeout:g} s"))
    except NoConnection as error:
        return replace(facts, refusal=error.answer)
    except OSError as error:
        return replace(facts, refusal=Answer(Status.UNREACHABLE, (), str(error) or type(error).__name__))
    except ValueError as error:
        return replace(facts, refusal=Answer(Status.BROKEN, (), f"it gave unknown replies about itself: {error}"))
    finally:
        wire.close()


async def _ask(wire: Wire, namespace: str, facts: ServerFacts) -> ServerFacts:
    replies: list[object] = []
    for words in questions(namespace)[:3]:
        (reply,) = await wire.ask(pack(words))
        if isinstance(reply, ErrorReply):
            if replies and (told := read_info(cast("bytes", replies[0]))).get("cluster_enabled") == "1":
                return replace(facts, info=told)  # it answers for no key of its own, which is why
            return replace(facts, refusal=read_error(reply.text))
        replies.append(reply)
    info, known, queues = replies
    ahead, round_trip = await _read_clock(wire)
    own = read_own(cast("list[bytes | None]", known))
    appendfsync = await _read_appendfsync(wire)
    set_aside = await _read_set_aside(wire, namespace)  # before the connection is a subscription
    lacking, refusal = await _lacking(wire, namespace, enrolled=bool(own.generation))
    return replace(
        facts,
        refusal=refusal,
        info=read_info(cast("bytes", info)),
        ahead=ahead,
        round_trip=round_trip,
        appendfsync=appendfsync,
        lacking=tuple(lacking),
        **own._asdict(),
        set_aside=set_aside,
        queues=cast("int", queues),
    )


async def _read_clock(wire: Wire) -> tuple[float, float]:
    """Return the seconds by which the clock is ahead, and those of a round trip."""
    trips: list[float] = []
    ahead = 0.0
    for _ in range(ROUND_TRIPS):
        asked_us = clock.now_us()
        (reply,) = await wire.ask(pack(("TIME",)))
        answered_us = clock.now_us()
        trips.append((answered_us - asked_us) / 1e6)
        if isinstance(reply, list):
            seconds, us = cast("list[bytes]", reply)
            clock_us = int(seconds) * 1_000_000 + int(us)
            ahead = (clock_us - min(max(clock_us, asked_us), answered_us)) / 1e6
    return ahead, statistics.median(trips)


async def _read_set_aside(wire: Wire, namespace: str) -> dict[str, int]:
    """Return the number of damaged entries that are set aside, by queue; of those that this user may read."""
    found: dict[str, int] = {}
    seen, cursor = 0, b"0"
    while seen < QUEUES_LOOKED_AT:
        (page,) = await wire.ask(pack(("SSCAN", key(namespace, "", "queues"), cursor, "COUNT", _AT_ONCE)))
        if not isinstance(page, list):
            break
        cursor, words = cast("tuple[bytes, list[bytes]]", page)
        names = texts_of(words)
        asked = [pack(("HLEN", key(namespace, name, "aside"))) for name in names]
        counts = await wire.ask(*asked) if asked else []  # up to one that this user may not read, or that is no hash
        found.update((name, n) for name, n in zip(names, counts, strict=False) if isinstance(n, int) and n)
        seen += len(words)
        if cursor == b"0":
            break
    return dict(sorted(found.items()))


async def _read_appendfsync(wire: Wire) -> str | None:
    """Return the option, None if this user may not read it, which few may."""
    (reply,) = await wire.ask(pack(("CONFIG", "GET", "appendfsync")))
    if not isinstance(reply, list):
        return None
    _, value = cast("list[bytes]", reply)
    return value.decode()


async def _lacking(wire: Wire, namespace: str, *, enrolled: bool) -> tuple[list[str], Answer | None]:
    """Return the rights that the user lacks, and the refusal of a command that the server lacks, if it does.

    Both are found by calls that change nothing: rights are checked before arguments.

    One command after the other, since the replies to several end at the first error.
    """
    names = {"K": f"{{{namespace}}}:doctor", "H": f"{{{namespace}}}:server", "C": f"{{{namespace}}}:wake:doctor"}
    found: list[str] = []
    refusal = None
    for text in (*_READS, *_REFUSED, *(_ON_A_HASH if enrolled else ()), "PUBLISH C none", "SUBSCRIBE C"):
        words = [names.get(word, word) for word in text.split()]
        (reply,) = await wire.ask(pack(tuple(words)))
        if not isinstance(reply, ErrorReply):
            continue
        if reply.text.startswith("NOPERM"):
            found.append("|".join(words[: 2 if words[0] == "FUNCTION" else 1]).lower())
        elif (answer := read_error(reply.text)).verdict is Verdict.CORRECT:
            refusal = answer
    return found, refusal
