"""The index of flows on one server says otherwise than its records: a scrub finds it, either way."""

from __future__ import annotations

from tests.simulation.agreement import disagreements
from tests.simulation.stage import Stage, scenario
from tests.simulation.test_scenarios_of_flows import Maker, begun
from tests.simulation.world import NAMESPACE
from zkrq.protocol.flows import DONE
from zkrq.protocol.flows import Stage as Step
from zkrq.protocol.keys import key

SCRUB_SECONDS = 600
"""Within so long a scrub has seen every item."""


def write(stage: Stage, server: str, command: bytes, maker: Maker, *arguments: bytes) -> None:
    """Change the index of a server, as by hand."""
    stage.world.servers[server].redis.execute(command, key(NAMESPACE, maker.queue, "members").encode(), *arguments)


@scenario()
async def test_a_member_that_one_server_does_not_name_is_named_again(stage: Stage) -> None:
    """Otherwise the flow ends early, once this server is the only one left."""
    near = await stage.enter("near")
    maker = Maker(near)
    await begun(maker, "a")
    write(stage, stage.heir, b"ZREM", maker, b"\xfeL" + maker.flow.encode() + b"\0a")
    assert list(disagreements(stage.world, scrubbed=True))
    await stage.until(lambda: not list(disagreements(stage.world, scrubbed=True)), SCRUB_SECONDS)
    assert (await maker.end()).stage is Step.SEALED
    await near.ack("a")
    assert (await maker.end()).outcome == DONE
    await near.ack("then")


@scenario()
async def test_a_member_that_is_not_there_holds_no_flow_up_for_ever(stage: Stage) -> None:
    near = await stage.enter("near")
    maker = Maker(near)
    await begun(maker, "a")
    for server in (stage.primary, stage.heir):
        for entry in (b"L%b\0a", b"L%b\0nothing", b"D%b\0a"):
            write(stage, server, b"ZADD", maker, b"0", b"\xfe" + entry % maker.flow.encode())
    assert list(disagreements(stage.world, scrubbed=True))
    await stage.until(lambda: not list(disagreements(stage.world, scrubbed=True)), SCRUB_SECONDS)
    await near.ack("a")
    assert (await maker.end()).outcome == DONE
    await near.ack("then")
    stage.expect_agreement()
