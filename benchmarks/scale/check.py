"""Compare what ``requests.py`` and ``sizes.py`` compute with real servers, at one small point: ``--check``."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import cast

import zkrq
from benchmarks.raw import RawRedis
from benchmarks.scale import requests, sizes
from benchmarks.scale.requests import OWNERS_PAGE, Fleet
from zkrq import local
from zkrq.coordination.zookeeper.hosts import Address
from zkrq.coordination.zookeeper.link import HEARTBEAT_INTERVAL, Greeting, ZooKeeperLink
from zkrq.repair.repairer import FOLLOWER_PATIENCE

CLIENTS = 12
QUIET_SECONDS = 60.0
"""Two rounds of the slowest of what clients do regularly."""

AWAY_SECONDS = 30.0

SETTLE_SECONDS = 8.0
"""After a change, until all clients have followed it."""

ARRIVAL_SECONDS = 2 * requests.SESSION_TIMEOUT * HEARTBEAT_INTERVAL
"""After a consumer came: two heartbeats of each client, and few looks that no change causes."""

ARRIVALS = 5
"""Consumers that come, one after the other: which clients look then is a matter of chance."""

GONE_SECONDS = 2.0
"""After such a consumer has gone, until all that look have done so."""

CHILDREN = 1_000
PAGES = 2_000


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure, computed and counted."""

    what: str
    computed: str
    counted: float


async def compare() -> list[Compared]:
    """Run a namespace of one shard with ``CLIENTS`` waiting consumers, and count what one ZooKeeper server receives."""
    fleet = Fleet(shards=1, clients=CLIENTS, subset=1)
    async with local.servers(redis=3, zookeeper=1) as servers, AsyncExitStack() as stack:
        await zkrq.found(servers.redis_urls, servers.zookeeper_hosts, namespace="check")
        for _ in range(CLIENTS):
            await stack.enter_async_context(_consumer(servers))
        await asyncio.sleep(SETTLE_SECONDS)
        address = _address(servers.zookeeper_hosts)
        before = await _received(address)
        await asyncio.sleep(QUIET_SECONDS)
        quiet = (await _received(address) - before) / QUIET_SECONDS
        came = await _requests_when_one_comes(address) - ARRIVAL_SECONDS * (fleet.heartbeats + fleet.looks_again)
        await asyncio.sleep(SETTLE_SECONDS)  # the last has gone again
        before = await _received(address)
        await servers.redis[0].kill()
        await asyncio.sleep(SETTLE_SECONDS)
        change = await _received(address) - before - quiet * SETTLE_SECONDS
        await asyncio.sleep(2 * FOLLOWER_PATIENCE)
        before = await _received(address)
        await asyncio.sleep(AWAY_SECONDS)
        away = (await _received(address) - before) / AWAY_SECONDS - fleet.requests
        page = await _page_seconds(servers.redis[1].url)
        reply = await _list_bytes(address)
    least, most = CLIENTS * requests.VIEW_READ, fleet.burst
    paged = requests.CALL_SECONDS + OWNERS_PAGE * requests.OWNER_SECONDS
    return [
        Compared(f"requests per second of {CLIENTS} waiting consumers", f"{fleet.requests:.3g}", quiet),
        Compared(f"requests of {CLIENTS} consumers when a server dies", f"{least:.0f} to {most:.0f}", change),
        Compared("more per second as long as it is away", f"{fleet.while_away:.0f}", away),
        Compared(f"requests of {CLIENTS} consumers when another comes, on average", f"{fleet.arrival:.0f}", came),
        Compared(f"bytes of a list of {CHILDREN:,} consumers", f"{sizes.children_reply(CHILDREN):,}", reply),
        Compared(f"µs of Redis for a page of {OWNERS_PAGE} owners", f"{1e6 * paged:,.0f}", 1e6 * page),
    ]


@asynccontextmanager
async def _consumer(servers: local.Servers) -> AsyncGenerator[None]:
    """Open a client that has handled an item and waits for the next."""
    async with zkrq.connect(servers.redis_urls, servers.zookeeper_hosts, namespace="check") as cluster:
        queue = cluster.queue("check")
        handled = asyncio.Event()

        async def work() -> None:
            async for claim in queue.pop():
                async with claim:
                    handled.set()

        working = asyncio.create_task(work())
        await queue.push("item")
        with suppress(TimeoutError):
            await asyncio.wait_for(handled.wait(), 2.0)  # another consumer may have taken it
        try:
            yield
        finally:
            working.cancel()
            await asyncio.wait([working])


async def _received(address: Address) -> int:
    """Return the number of packets that a ZooKeeper server has received."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(b"srvr")
    text = (await reader.read()).decode()
    writer.close()
    found = re.search(r"^Received: (\d+)$", text, re.MULTILINE)
    assert found, text
    return int(found[1])


async def _page_seconds(url: str) -> float:
    """Return Redis' processor time, in seconds, for a page of owners as ``owners.lua`` reads it."""
    script = (
        b"local page, names = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', 500), {} "
        b"for i = 1, #page[2], 2 do names[#names + 1] = page[2][i] end return {'OK', page[1], names}"
    )
    redis = await RawRedis.open(url)
    try:
        await redis.ask(b"HSET", b"owners", *(f"{n // 2:015x}-01234567".encode() for n in range(20 * OWNERS_PAGE)))
        before, cursor = await _processor_seconds(redis), b"0"
        for _ in range(PAGES):
            _, cursor, _ = cast("list[bytes]", await redis.ask(b"EVAL", script, b"1", b"owners", cursor))
        return (await _processor_seconds(redis) - before) / PAGES
    finally:
        redis.close()


async def _processor_seconds(redis: RawRedis) -> float:
    told = cast("bytes", await redis.ask(b"INFO", b"cpu")).decode()
    return sum(float(each) for each in re.findall(r"used_cpu_(?:user|sys):([\d.]+)", told))


async def _list_bytes(address: Address) -> int:
    """Return the bytes of the answer with ``CHILDREN`` znodes, counted between a client and the server."""
    counted = 0

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(address.host, address.port)

        async def send() -> None:
            while data := await reader.read(1 << 16):
                back.write(data)
            back.close()

        sending = asyncio.create_task(send())
        nonlocal counted
        while data := await there.read(1 << 16):
            counted += len(data)
            writer.write(data)
        writer.close()
        await sending

    async with await asyncio.start_server(relay, "127.0.0.1", 0) as relaying:
        port: int = relaying.sockets[0].getsockname()[1]
        async with _link(Address("127.0.0.1", port)) as link:
            await link.create("/list")
            for n in range(CHILDREN):
                await link.create(f"/list/{n:015x}-01234567")
            before = counted
            await link.children("/list")
            return counted - before


@asynccontextmanager
async def _link(address: Address) -> AsyncGenerator[ZooKeeperLink]:
    """Open a session that sends nothing by itself while this lasts."""
    link = ZooKeeperLink(address, lambda _: None)
    await link.open(Greeting(0, b"\x00", 60.0), 0)
    serving = asyncio.create_task(link.serve(600.0))
    try:
        yield link
    finally:
        await link.close()
        await serving


async def _requests_when_one_comes(address: Address) -> float:
    """Return the requests that follow the znode of a new consumer, without its own, on average."""
    counted = 0
    async with _link(address) as link:
        for _ in range(ARRIVALS):
            before = await _received(address)
            await link.create("/check/consumers/0-0", b"{}", ephemeral=True)
            await asyncio.sleep(ARRIVAL_SECONDS)
            counted += await _received(address) - before - 1
            await link.delete("/check/consumers/0-0")  # a link that is closed leaves it until the session ends
            await asyncio.sleep(GONE_SECONDS)
    return counted / ARRIVALS


def _address(hosts: str) -> Address:
    host, _, port = hosts.partition(",")[0].rpartition(":")
    return Address(host, int(port))
