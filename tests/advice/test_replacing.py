"""Next steps for operators, on real servers: servers that are gone, and servers that come."""

from __future__ import annotations

import re

import pytest

import zkrq
from tests.advice.operator import RULES, Operator, texts
from tests.advice.registry import leads_out_of
from tests.harness import command, is_whole, until
from zkrq import local

pytestmark = pytest.mark.anyio


@leads_out_of(RULES, "if it will not come back, `zkrq servers add URL` another one", "take it out of ZKRQ_REDIS")
@leads_out_of("cli/servers.py", "into ZKRQ_REDIS")
@leads_out_of(
    "operations.md",
    "    zkrq servers add redis://10.0.0.4 ",
    "    zkrq servers remove 10.0.0.1:6379",
)
@leads_out_of("operations.md", "machine is gone for good")
async def test_a_dead_server_is_replaced(operator: Operator, spare: local.LocalRedis) -> None:
    """And programs that are started afterwards may be given the new one by the name that was printed."""
    dead, *others = operator.servers.redis
    await operator.do("zkrq push emails 1")
    await dead.kill()
    await operator.do("zkrq push emails 2")
    text = (await operator.doctor())["unreachable"]
    added, removed = await operator.follow(text, URL=spare.url)
    assert removed == f"{dead.name} is removed\n"
    said = await operator.doctor()
    assert "unreachable" not in said

    written = re.fullmatch(rf"redis-4 is in sync in [^;]+; write (redis-4={spare.url}) into ZKRQ_REDIS\n", added)
    assert written
    assert said["stranger"].endswith("take it out of ZKRQ_REDIS")
    operator.environment["ZKRQ_REDIS"] = written[1]
    assert "emails          2" in await operator.do("zkrq stats")
    operator.environment["ZKRQ_REDIS"] += "".join(f",{server.name}={server.url}" for server in others)
    assert await operator.doctor() == {}
    assert await operator.do("zkrq pop emails --count 2") == "1\n2\n"


@leads_out_of("replication/causes.py", "`zkrq servers add URL`", "bring back {}; or {}; then retry")
@leads_out_of(RULES, "bring back {}, or `zkrq servers add URL` another one")
async def test_one_more_server_where_too_few_are_in_sync(operator: Operator, spare: local.LocalRedis) -> None:
    _, *dead = operator.servers.redis
    async with operator.client() as cluster:
        await cluster.queue("emails").push(1)
        for server in dead:
            await server.kill()
        refusal = ""
        while "`zkrq servers add URL`; then retry" not in refusal:
            with pytest.raises(zkrq.ZkrqError) as refused:
                await cluster.queue("emails").push(2, id="two")
            refusal = str(refused.value)
    assert "pushes are refused; bring back redis-2, redis-3, or `" in (await operator.doctor())["redundancy"]
    await operator.follow(refusal, URL=spare.url)
    await operator.do("zkrq push emails 2 --id two")


@leads_out_of("replication/causes.py", "`zkrq servers add URL --shard {}`")
@leads_out_of("shards.md", "`zkrq servers add --shard b`", "zkrq shards add b redis-4")
async def test_one_more_server_of_a_shard(operator: Operator, spare: local.LocalRedis) -> None:
    one, *others = operator.servers.redis
    operator.move_to("shards")
    operator.name_servers({one.name: one.url})
    await operator.found()
    await operator.do(f"zkrq shards add b {others[0].name}={others[0].url} {others[1].name}={others[1].url}")
    assert "b: open" in await operator.do("zkrq shards list")
    async with operator.client(operation_timeout=1.0) as cluster:
        queues = [cluster.queue(f"queue-{number}") for number in range(8)]
        await others[1].kill()
        refusals: list[str] = []
        while not (steps := [text for text in refusals if "--shard b`" in text]):
            for queue in queues:  # one of them is at home in the shard
                try:
                    await queue.push(1, id=f"id-{len(refusals)}")
                except (zkrq.Unavailable, zkrq.NotEnoughReplicas, zkrq.OutcomeUnknown) as error:
                    refusals.append(str(error))
    await operator.follow(steps[0], URL=spare.url)
    await others[1].start()
    async with zkrq.connect(
        {one.name: one.url}, operator.servers.zookeeper_hosts, namespace=operator.namespace
    ) as cluster:
        for queue in queues:
            await cluster.queue(queue.name).push(1, id="after")


@leads_out_of(RULES, "`zkrq servers add URL` one more")
async def test_one_more_server_than_pushes_need(operator: Operator, spare: local.LocalRedis) -> None:
    operator.move_to("two")
    operator.name_servers({server.name: server.url for server in operator.servers.redis[:2]})
    await operator.found()
    await operator.follow((await operator.doctor())["redundancy"], URL=spare.url)
    assert "redundancy" not in await operator.doctor()


@leads_out_of(RULES, "found a namespace with 2, and move the items there")
async def test_a_namespace_with_another_min_replicas(operator: Operator) -> None:
    operator.move_to("one")
    await operator.found(min_replicas=1)
    await operator.do("zkrq push emails 7")
    assert "move the items there" in (await operator.doctor())["redundancy"]
    lines = await operator.do("zkrq export emails")
    operator.environment["ZKRQ_NAMESPACE"] += "-two"
    await operator.do("zkrq found --min-replicas 2")
    code, _, err = await operator.shell.run("import", "emails", stdin=lines)
    assert code == 0, err
    assert "redundancy" not in await operator.doctor()
    assert await operator.do("zkrq pop emails") == "7\n"


@leads_out_of(RULES, "`zkrq servers add {} --name {}`, or {}", "name it so in ZKRQ_REDIS")
@leads_out_of("protocol/founding.py", "name it so here, too")
@leads_out_of("cli/servers.py", "write so in ZKRQ_REDIS")
@leads_out_of("operations.md", "zkrq servers rename 10.0.0.4:6379 redis-4")
async def test_a_server_that_is_not_known_by_its_name(operator: Operator, spare: local.LocalRedis) -> None:
    urls = operator.servers.redis_urls
    operator.name_servers({**urls, "spare": spare.url})
    said = (await operator.doctor())["stranger"]
    await operator.follow(said, URL=spare.url)
    assert "stranger" not in await operator.doctor()

    assert await operator.do("zkrq servers rename spare redis-4") == "spare is called redis-4; write so in ZKRQ_REDIS\n"
    assert "redis-4: member" in await operator.do("zkrq servers list")
    assert (await operator.doctor())["stranger"].endswith(
        f"it is called redis-4 in namespace {operator.namespace}; name it so in ZKRQ_REDIS"
    )
    operator.name_servers({**urls, "redis-4": spare.url})
    assert "stranger" not in await operator.doctor()
    assert "redis-4: member" in await operator.do("zkrq servers list")


@leads_out_of(RULES, "give it that name in ZKRQ_REDIS, as in all clients")
@leads_out_of("protocol/founding.py", "give every server one name, the same in every client")
async def test_names_that_are_exchanged(operator: Operator) -> None:
    one, two, three = operator.servers.redis
    operator.name_servers({one.name: two.url, two.name: one.url, three.name: three.url})
    assert "give it that name in ZKRQ_REDIS" in (await operator.doctor())["name"]
    refused = await operator.run("zkrq stats")
    assert (refused.code, "give every server one name" in refused.err) == (2, True)
    names = dict(re.findall(r"(\S+) is the server that all others call (\S+);", "\n".join(await texts(operator))))
    operator.name_servers({name: url for url, name in names.items()} | {three.name: three.url})
    assert "name" not in await operator.doctor()
    await operator.do("zkrq stats")


@leads_out_of(RULES, "look whether it is the right server; `zkrq servers add {} --name {} --force` wipes it")
@leads_out_of("protocol/catchup.py", "or let `zkrq servers add URL --name {} --force` wipe it")
@leads_out_of("repair/roster.py", "with force=True (--force)")
@leads_out_of("protocol/refounding.py", "then bring each of these back")
@leads_out_of("operations.md", "`zkrq servers add URL --name NAME --force` wipes and copies")
@leads_out_of("operations.md", "`zkrq servers add --force` takes it over")
@pytest.mark.parametrize("count", [2, 3], ids=["as few as pushes need", "one more"])
async def test_a_server_with_the_items_of_another_deployment(
    operator: Operator, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    """With two servers none can be removed first."""
    operator.move_to(str(count))
    *_, other = chosen = operator.servers.redis[:count]
    operator.name_servers({server.name: server.url for server in chosen})
    await operator.found()
    entry = f"{{{operator.namespace}}}:server"
    await command(other, "HSET", entry, "generation", "theirs", "deployment", "theirs")
    await command(other, "SADD", f"{{{operator.namespace}}}:queues", "theirs")
    text = (await operator.doctor())["foreign"]
    refused = await operator.run(f"zkrq servers add {other.url} --name {other.name}")
    assert (refused.code, "(--force)" in refused.err) == (2, True)
    await operator.follow(text)
    assert "foreign" not in await operator.doctor()
    await operator.do("zkrq push emails 1")


@leads_out_of(RULES, "a client evicts it and copies everything to it", "a client brings back what answers")
@leads_out_of("operations.md", "Start a server that is out")
@leads_out_of("deploying.md", "zkrq servers list                  #")
async def test_a_server_that_was_restarted_alone(operator: Operator) -> None:
    """The next step names what a client does: so it does, and tells."""
    await operator.servers.redis[1].restart(wipe=True)
    assert (await operator.doctor())["restarted"].endswith("see its log")
    async with operator.client() as cluster:
        await cluster.queue("emails").push("x")
        await until(lambda: is_whole(cluster))
    said = await operator.doctor()
    assert not said.keys() & {"restarted", "redundancy", "unreachable"}
    assert (await operator.do("zkrq servers list")).count(": member") == 3
