"""Servers that lose the library of functions, under load: it is loaded again, and no server is evicted for it."""

from __future__ import annotations

import pytest

import zkrq
from tests.harness import command, new_namespace, over_zookeeper, until
from tests.load import Load
from zkrq import local
from zkrq.protocol.scripts import LIBRARY

pytestmark = pytest.mark.anyio


async def has_library(server: local.LocalRedis) -> bool:
    return LIBRARY.name.encode() in await command(server, "FUNCTION", "LIST")


async def test_the_library_is_lost_under_load(servers: local.Servers) -> None:
    events: list[zkrq.Event] = []
    async with over_zookeeper(servers, new_namespace(), on_event=events.append) as cluster:
        load = Load(cluster)
        async with load.running():
            for n in range(1, 6):
                for server in servers.redis:
                    await command(server, "FUNCTION", "FLUSH")
                await until(load.progress(100 * n))
        assert cluster.view.epoch == 1
        assert not load.uncertain
        assert max(load.delivered.values()) == 1
    assert not [event for event in events if isinstance(event, zkrq.ServerEvicted)]
    assert all([await has_library(server) for server in servers.redis])


@pytest.mark.parametrize("wipe", [False, True], ids=["with its data", "empty"])
async def test_a_restarted_server_has_the_library_or_gets_it_again(servers: local.Servers, wipe: bool) -> None:
    async with over_zookeeper(servers, new_namespace()) as cluster:
        load = Load(cluster)
        async with load.running():
            await until(load.progress(100))
            server = servers.redis[0]
            await server.restart(wipe=wipe)
            await until(lambda: cluster.view.epoch > 1 and len(cluster.view.members) == 3)
            await until(load.progress(300))
        assert await has_library(server)
