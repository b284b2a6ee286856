"""What others wrote never loosens what this program was told, as the table of docs/security.md says.

A client has every security setting.  Another client of its namespace, which needs no password of Redis for some of it,
writes what it likes into one of the places that they share.  Then each setting still holds.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import zkrq
import zkrq.typed
from tests.harness import HANG, SESSION_TIMEOUT, command, new_namespace, take, until
from tests.security import rights
from tests.security.conftest import Secured
from tests.security.znodes import link_of, opened
from zkrq.client.cluster import Cluster
from zkrq.client.connecting import read_given
from zkrq.client.examining.reading import read_facts
from zkrq.client.inner import client_of
from zkrq.coordination.coordinator import VIEW
from zkrq.producing.placement import MAP
from zkrq.protocol import shards
from zkrq.protocol import view as views
from zkrq.protocol.shards import Entry, ShardName, ShardState
from zkrq.protocol.view import Life, ServerId, View

pytestmark = pytest.mark.anyio

USER, PASSWORD = "told", "p4ssw0rd-of-the-told"
AUTH = ("told", "p4ssw0rd-for-znodes")
CODEC = zkrq.typed.Encrypted(zkrq.JSON, [zkrq.typed.new_key()])


class Thief:
    """A server of the forger's own.  It answers everything with an error, and keeps what it was told."""

    def __init__(self) -> None:
        self.connections = 0
        self.heard = b""

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while data := await reader.read(65536):
                self.heard += data
                writer.write(b"-ERR no\r\n" * data.count(b"*"))
        except OSError:
            pass
        finally:
            writer.close()


@dataclass
class World:
    """One client that was told everything, and servers of the forger."""

    secured: Secured
    namespace: str
    folder: Path
    urls: Mapping[str, str] = field(default_factory=dict[str, str])
    encrypted: Thief = field(default_factory=Thief)
    plain: Thief = field(default_factory=Thief)
    socket: Thief = field(default_factory=Thief)
    seen: list[object] = field(default_factory=list[object])
    cluster: Cluster = field(init=False)

    def connect(self, **options: Any) -> Cluster:
        return zkrq.connect(**{**self.given, **options})

    @property
    def given(self) -> dict[str, Any]:
        files = self.secured.files
        tls = zkrq.TLS(ca_certs=files("ca"), certfile=files("client"), keyfile=files.key("client"))
        return {
            "redis": self.secured.redis,
            "zookeeper": self.secured.zookeeper,
            "redis_auth": (USER, PASSWORD),
            "redis_tls": tls,
            "zookeeper_auth": AUTH,
            "zookeeper_tls": tls,
            "namespace": self.namespace,
            "session_timeout": 2 * SESSION_TIMEOUT,
            "command_timeout": 5,
        }

    @property
    def named(self) -> dict[str, str]:
        """URLs that a forger would write, by names of servers."""
        tls, plain = self.urls["encrypted"], self.urls["plain"]
        authority = f"ssl_ca_certs={self.secured.files('other')}&ssl_check_hostname=no"
        return {
            "checks-nothing": f"rediss://{tls}?ssl_cert_reqs=none&ssl_check_hostname=no",
            "trusts-another": f"rediss://{tls}?{authority}",
            "quoted": f"rediss://127.0.0.1%3Fssl_cert_reqs=none:{tls.partition(':')[2]}",
            "usual": f"rediss://{tls}",
            "in-the-clear": f"redis://{plain}",
            "no-url": f"http://{plain}",
            "with-a-login": f"redis://theirs:theirs@{plain}",
            "by-a-socket": f"unix://{self.urls['socket']}",
            "another-database": f"rediss://{tls}/1",
        }

    @property
    def forged_view(self) -> dict[str, Any]:
        """Fields of a view that no release reads, and which would change the settings if one did."""
        return {
            "zookeeper": self.urls["plain"],
            "namespace": "neighbour",
            "redis_auth": None,
            "redis_tls": None,
            "zookeeper_auth": None,
            "codec": "json",
        }


@pytest.fixture
async def world(secured: Secured, tmp_path: Path) -> AsyncGenerator[World]:
    world = World(secured, new_namespace(), tmp_path)
    await rights.each(secured.servers, "ACL", "SETUSER", *rights.rule(USER, PASSWORD, world.namespace))
    await rights.each(secured.servers, "ACL", "LOG", "RESET")
    await rights.each(secured.servers, "SET", "{neighbour}:server", "theirs")
    async with thieves(world), world.connect(found=True) as world.cluster:
        yield world
    await rights.each(secured.servers, "ACL", "DELUSER", USER)
    await rights.each(secured.servers, "DEL", "{neighbour}:server")


@asynccontextmanager
async def thieves(world: World) -> AsyncGenerator[None]:
    files = world.secured.files
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files("stranger"), files.key("stranger"))
    path = str(world.folder / "thief.sock")
    async with (
        await asyncio.start_server(world.encrypted, "127.0.0.1", 0, ssl=context) as encrypted,
        await asyncio.start_server(world.plain, "127.0.0.1", 0) as plain,
        await asyncio.start_unix_server(world.socket, path),
    ):
        ports = {name: each.sockets[0].getsockname()[1] for name, each in (("encrypted", encrypted), ("plain", plain))}
        world.urls = {**{name: f"127.0.0.1:{port}" for name, port in ports.items()}, "socket": path}
        yield


# -- what is shared ----------------------------------------------------------------------------------------------------


async def the_view(world: World) -> None:
    """Servers that need not be members, and fields of the forger's own."""
    coordinator = client_of(world.cluster).coordinator
    stored = await coordinator.read(VIEW)
    assert stored.data is not None
    content = json.loads(stored.data)
    content["servers"] |= world.named
    content |= {"epoch": content["epoch"] + 1, "nonce": "forged", **world.forged_view}
    assert await coordinator.swap(VIEW, json.dumps(content).encode(), stored.version)
    await until(lambda: set(world.named) <= world.cluster.health().servers.keys())
    await until(lambda: all(world.cluster.health().servers[id].reason for id in world.named))
    told = "\n".join(world.cluster.health().warnings)
    for id in world.named:
        assert f"{id} is not brought back" in told
    assert "in-the-clear is not brought back: the view has it at redis://" in told


async def the_shard_map(world: World) -> None:
    """Shards whose servers are the forger's, one whose register lies outside the namespace, and one that is no name."""
    coordinator = client_of(world.cluster).coordinator
    await (await link_of(world.cluster)).create("/neighbour", b"", ephemeral=True)
    registers = {"outside": "../neighbour", "nowhere": "/\0"}
    for id, url in world.named.items():
        registers[id] = f"views/{id}"
        life = {ServerId(id): Life("r" * 40, "g")}
        view = View(1, life, {}, {}, {ServerId(id): url}, 1, "forged", unknown=world.forged_view)
        assert await coordinator.swap(registers[id], views.encode(view), -1)
    entries = {ShardName(name): Entry(ShardState.JOINING, register) for name, register in registers.items()}
    map = shards.ShardMap()
    forged = replace(map, number=1, shards={**map.shards, **entries}, by="forged")
    assert await coordinator.swap(MAP, shards.encode(forged), -1)
    await until(lambda: client_of(world.cluster).shards.away.keys() == registers.keys())


async def other_znodes(world: World) -> None:
    """Entries of clients and consumers, and a schedule, of another client of the namespace."""
    link = await link_of(world.cluster)
    described = json.dumps({"host": world.urls["plain"], "redis": list(world.named.values()), **world.forged_view})
    for folder in ("clients", "consumers"):
        await link.create(f"/{world.namespace}/{folder}/forged", described.encode(), ephemeral=True)
    queue = world.cluster.queue("read", codec=CODEC)
    async with world.connect(description=described) as other, world.cluster.schedules().run():
        await other.schedules().add(other.queue("read"), "theirs", 0.5, "in the clear")
        await world.cluster.consumers()
        await world.cluster.clients()
        await refused_item(queue, world.seen)


async def stored_items(world: World) -> None:
    """An item that is not encrypted, with headers that say otherwise."""
    headers = {"codec": "json", "namespace": "neighbour", "content-type": "application/x-python-serialize"}
    async with world.connect() as other:
        await other.queue("read").push("in the clear", id="theirs", headers=headers)
        await refused_item(world.cluster.queue("read", codec=CODEC), world.seen)


async def messages(world: World) -> None:
    """A broadcast that is not encrypted, and wake-ups that name what is another namespace's."""
    async with world.cluster.listen("read", codec=CODEC) as listener, world.connect() as other:
        assert await other.broadcast("read", "in the clear") > 0
        assert await world.cluster.broadcast("read", "told", codec=CODEC) > 0
        world.seen.append(await asyncio.wait_for(anext(listener), HANG))
    queue = world.cluster.queue("read", codec=CODEC)
    taking = asyncio.create_task(take(queue))
    await until(lambda: bool(client_of(world.cluster).identity.owner))
    channel = client_of(world.cluster).shard.wakeups.channel
    for text in ("{neighbour}:q:read:ready", "{neighbour}:q:read:claimed x/1 theirs", f"SUBSCRIBE {world.urls}"):
        await rights.each(world.secured.servers, "PUBLISH", channel, text)
    await queue.push("told")
    world.seen.append((await taking).item)


async def refused_item(queue: zkrq.Queue[Any], seen: list[object]) -> None:
    """Consume, until what is not encrypted is among the dead letters."""
    async with zkrq.Worker().add(queue, seen.append):
        await queue.push("told")
        await until(lambda: "told" in seen)
        async with asyncio.timeout(HANG):
            while not (await queue.size()).dead:
                await asyncio.sleep(0.05)


SHARED: Mapping[str, Callable[[World], Awaitable[None]]] = {
    "the view": the_view,
    "the shard map": the_shard_map,
    "other znodes": other_znodes,
    "items, results": stored_items,
    "messages, wake-ups": messages,
}


# -- what the program was told -----------------------------------------------------------------------------------------


async def tls_holds(world: World) -> None:
    assert not world.encrypted.heard, "a server whose certificate is not trusted was spoken to"
    assert not world.plain.connections
    assert not world.socket.connections


async def the_password_is_kept(world: World) -> None:
    for thief in (world.encrypted, world.plain, world.socket):
        assert PASSWORD.encode() not in thief.heard


async def zookeeper_is_the_same(world: World) -> None:
    assert AUTH[1].encode() not in world.plain.heard
    assert await opened(world.cluster) == []


async def the_namespace_is_left_by_nothing(world: World) -> None:
    for server in world.secured.servers.redis:
        assert await command(server, "ACL", "LOG") == b"*0\r\n+OK\r\n", "something outside of its rights was tried"
        assert await command(server, "GET", "{neighbour}:server") == b"$6\r\ntheirs\r\n+OK\r\n"
        assert b"db1" not in await command(server, "INFO", "keyspace")


async def only_its_codec_is_used(world: World) -> None:
    await world.cluster.queue("told", codec=CODEC).push("told")
    world.seen.append((await take(world.cluster.queue("told", codec=CODEC))).item)
    assert set(world.seen) == {"told"}


TOLD: Mapping[str, Callable[[World], Awaitable[None]]] = {
    "`rediss://`, `redis_tls`, a URL's options for TLS": tls_holds,
    "user and password of Redis": the_password_is_kept,
    "`zookeeper`, `zookeeper_auth`, `zookeeper_tls`": zookeeper_is_the_same,
    "`namespace`, database number, chroot": the_namespace_is_left_by_nothing,
    "codec, `Encrypted` and its keys": only_its_codec_is_used,
}


def table() -> dict[str, dict[str, str]]:
    """The list of the page: what it says, by setting and by what is shared."""
    section = rights.PAGE.read_text().partition("## What others wrote\n")[2].partition("\n## ")[0]
    items = re.findall(r"^- \*\*(.+?)\*\*: (.+(?:\n  .+)*)", section, re.MULTILINE)
    assert items, "the page has no list"
    found: dict[str, dict[str, str]] = {}
    for setting, text in items:
        _, *parts = re.split(r"\*([^*]+)\*: ", " ".join(text.split()))
        found[setting] = {shared: said.rstrip("; .") for shared, said in zip(parts[::2], parts[1::2], strict=True)}
    return found


def test_the_page_has_each_setting_against_everything_that_is_shared() -> None:
    said = table()
    assert list(said) == list(TOLD)
    for setting, cells in said.items():
        assert list(cells) == list(SHARED), setting
        assert all(cells.values()), setting


@pytest.mark.parametrize("shared", SHARED)
async def test_what_others_wrote_loosens_nothing(world: World, shared: str) -> None:
    await SHARED[shared](world)
    for holds in TOLD.values():
        await holds(world)
    assert (await world.cluster.queue("told", codec=CODEC).push("told")).replicas == 3


async def test_zkrq_doctor_goes_by_what_it_was_told(world: World) -> None:
    await the_view(world)
    facts = await read_facts(read_given(world.given))
    assert all(facts.servers[ServerId(id)].refusal for id in world.named)
    await tls_holds(world)
    await the_password_is_kept(world)
