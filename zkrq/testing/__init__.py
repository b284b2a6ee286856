"""Provide a cluster for users' own tests: inside the process, without any server, with a clock that the test moves.

    async with zkrq.testing.cluster() as cluster:
        emails = cluster.queue("emails")
        await emails.push({"to": "ann@example.org"}, delay=3600)
        await cluster.clock.advance(3600)

    async with zkrq.testing.servers() as servers:       # two "processes", and a server that dies
        async with servers.connect() as ann, servers.connect() as bob:
            servers.kill("redis-1")

It runs zkrq's own Lua scripts with lupa: extra ``testing``.
"""

from zkrq.testing.clock import Clock
from zkrq.testing.in_process import Servers, TestCluster, cluster, servers

__all__ = ["Clock", "Servers", "TestCluster", "cluster", "servers"]
