"""The commands for trying zkrq out on private servers: ``demo`` and ``dev``."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
from argparse import Namespace

from zkrq import local
from zkrq.cli import demo
from zkrq.cli.command import Command, Flag, Line, Lines
from zkrq.connecting import found
from zkrq.errors import ZkrqError
from zkrq.settings import DEFAULTS

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
    with demo.display(sys.stderr if args.json else sys.stdout) as display:
        result = await demo.run(display, seconds=args.seconds, rate=args.rate)
    yield Line(demo.describe(result), dataclasses.asdict(result))
    if not result.clean:
        raise ZkrqError("the demo did not end as it should")


async def _dev(args: Namespace) -> Lines:
    async with local.servers(args.redis, args.zookeeper) as servers:
        urls, hosts = list(servers.redis_urls.values()), servers.zookeeper_hosts
        for namespace in {DEFAULTS.namespace, os.environ.get("ZKRQ_NAMESPACE") or DEFAULTS.namespace}:
            await found(urls, hosts, namespace=namespace)
        text = SNIPPET.format(redis=json.dumps(urls), zookeeper=json.dumps(hosts), urls=",".join(urls), hosts=hosts)
        yield Line(text, {"redis": urls, "zookeeper": hosts})
        await asyncio.Event().wait()  # until a signal comes


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
)
