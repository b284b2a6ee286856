"""Define the commands for trying zkrq out on private servers: ``demo`` and ``dev``."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
from argparse import Namespace

from zkrq import local
from zkrq.base.errors import ConfigError, ZkrqError
from zkrq.base.settings import DEFAULTS, Settings
from zkrq.cli.command import Command, Line, Lines
from zkrq.cli.demo import story
from zkrq.cli.demo.words import Display, describe
from zkrq.cli.flags import Flag, duration
from zkrq.client.connecting import found
from zkrq.client.environment import complete, variable_of

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


async def _demo(args: Namespace) -> Lines:
    display = Display(sys.stderr if args.json else sys.stdout)
    result = await story.run(display, seconds=args.seconds, rate=args.rate)
    yield Line(describe(result), dataclasses.asdict(result))
    if not result.clean:
        raise ZkrqError("the demo failed")


async def _dev(args: Namespace) -> Lines:
    settings = Settings(**complete({"min_replicas": None}))
    if (settings.min_replicas or 1) > args.redis:
        variable = f"{variable_of('min_replicas')} is {settings.min_replicas}"
        raise ConfigError(f"{variable}, and --redis starts {args.redis}: unset it, or start more servers")
    async with local.servers(args.redis, args.zookeeper) as servers:
        urls, hosts = list(servers.redis_urls.values()), servers.zookeeper_hosts
        for namespace in {DEFAULTS.namespace, os.environ.get("ZKRQ_NAMESPACE") or DEFAULTS.namespace}:
            await found(urls, hosts, namespace=namespace)
        text = SNIPPET.format(redis=json.dumps(urls), zookeeper=json.dumps(hosts), urls=",".join(urls), hosts=hosts)
        yield Line(text, {"redis": urls, "zookeeper": hosts})
        await asyncio.Event().wait()  # until a signal arrives


COMMANDS = (
    Command(
        "demo",
        "run workers on private servers, kill some, and check that no item gets lost",
        _demo,
        (
            duration("seconds", "how long to push items", story.SECONDS),
            Flag("rate", "at most this many pushes per second", float, story.RATE),
        ),
        connected=False,
    ),
    Command(
        "dev",
        "run private servers for trying things out",
        _dev,
        (
            Flag("redis", "number of Redis servers", int, 3, "N"),
            Flag("zookeeper", "number of ZooKeeper servers", int, 3, "N"),
        ),
        connected=False,
    ),
)
