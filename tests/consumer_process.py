"""A consumer in a process of its own, controlled by lines on its standard input:

claim N     claim up to N items; answers "claimed id ..."
ack         ack all of them; answers "acked A lost L"
"""

from __future__ import annotations

import asyncio
import sys

import zkrq


async def serve(redis: str, zookeeper: str, namespace: str, name: str, session_timeout: str) -> None:
    servers = dict(server.split("=", 1) for server in redis.split(","))
    claims: list[zkrq.Claim[object]] = []
    timeout = float(session_timeout)
    async with zkrq.connect(servers, zookeeper, namespace=namespace, found=True, session_timeout=timeout) as cluster:
        queue: zkrq.Queue[object] = cluster.queue(name)
        say("connected")
        while words := (await asyncio.to_thread(sys.stdin.readline)).split():
            match words:
                case ["claim", count]:
                    claims += await queue.pop_many(int(count), timeout=10)
                    say("claimed", *(claim.id for claim in claims))
                case ["ack"]:
                    results = await asyncio.gather(*(claim.ack() for claim in claims), return_exceptions=True)
                    lost = sum(isinstance(result, zkrq.ClaimLost) for result in results)
                    say("acked", str(results.count(None)), "lost", str(lost))
                    claims.clear()
                case _:
                    say("what?")


def say(*words: str) -> None:
    print(*words, flush=True)


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
