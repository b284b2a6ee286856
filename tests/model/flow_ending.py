"""What of a flow must hold in the end, and how it is brought to its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from tests.model.bundle import CLAIMED, NEVER_US, Draft
from tests.model.content import QUEUE, Item, flow_id, stage_of
from tests.model.flowing import FLOW, INNER, Adder, Ender, FlowCanceller, LastEnder, Maker, is_living
from tests.model.membership import Steps
from tests.model.promises import Broken, Promise
from tests.model.repair import Scrubber
from tests.model.runner import Client
from tests.model.server import Server
from tests.model.waiting import waiters
from tests.model.world import World
from zkrq.protocol.calls import Settle, runs
from zkrq.protocol.flows import Stage
from zkrq.protocol.operations import Operations
from zkrq.protocol.records import HELD, VERSION_BYTES, Bundle
from zkrq.protocol.steps import Failure
from zkrq.protocol.view import ServerId, View


def check_flow(world: World, primaries: Iterable[Server]) -> None:
    """Raise ``Broken`` if what follows the flow waits, though nothing is left of it."""
    ledger = world.ledger
    primary, *others = primaries
    stage = stage_of(primary.held.records.get(flow_id(FLOW)))
    held = [item for each in (primary, *others) for item in held_items(each)]
    records = [each for server in (primary, *others) for each in server.records.items()]
    is_over = stage_of(primary.held.records.get(flow_id(INNER))) in (Stage.UNKNOWN, Stage.ENDED)
    living = [id for id, record in records if is_living(record) and not (is_over and Draft(id, record).nested)]
    ledger.flow.counts["ended"] += stage is Stage.ENDED
    if held and not living and stage is not Stage.UNKNOWN:
        raise Broken(Promise.NOTHING_FOLLOWS, f"{held} on {primary.id}, flow {stage}, {ledger.flow}")


def is_held(record: Bundle) -> bool:
    """Tell whether an item waits for the end of a flow."""
    return record.states == "R" and record.own[0].moment_us >= NEVER_US


def held_items(primary: Server) -> list[Item]:
    """What is held for the flow."""
    return [id for id, record in primary.records.items() if record.fields.get(HELD) and is_held(record)]


def settle_all(primary: Server) -> None:
    """Ack everything that the last request was given."""
    held = primary.held.records
    settlements = [
        (id.decode(), runs([at]), held[id][VERSION_BYTES], "the last/1", "ack")
        for id, record in primary.records.items()
        for at, state in enumerate(record.states)
        if state == CLAIMED
    ]
    primary.ask(Settle(QUEUE, 0, 0, settlements))


def clients_of_flow(world: World, *, names: bool) -> list[Client]:
    """Who makes the flow, adds to it, and ends it."""
    makers = (Maker(world, range(first, first + 3)) for first in (50, 60))
    adders = (Adder(world, range(first, first + 2)) for first in (70, 75))
    return [
        *makers,
        *adders,
        *(Ender(world) for _ in range(2)),
        FlowCanceller(world),
        *(waiters(world) if names else ()),
    ]


EARLY = 0.85
"""How often a rare step is left out because the flow has not ended yet."""


def is_early(world: World) -> bool:
    """Tell whether nothing happens yet that is rare."""
    flow = world.ledger.flow
    return not flow.outcome and not flow.let_go and world.chance(EARLY)


def end_flow(worlds: Sequence[World], carry_out: Callable[[Steps[Any]], Any]) -> None:
    """End what may end, and check that all that is owed is delivered in the end.  ``carry_out``: without faults."""
    world, ledger = worlds[0], worlds[0].ledger
    for each in worlds:
        if not Operations().is_settled(each.view) or not all(map(each.believes, each.view.members)):
            return
    ledger.counts["flows checked"] += 1
    with suppress(Failure):
        carry_out(LastEnder(world).work())
    for each in worlds:
        primary = primary_of(each)
        ledger.check_delivery(primary, each.register, besides=held_items(primary))
        settle_all(primary)
        carry_out(Scrubber(each).scrub())
    with suppress(Failure):
        carry_out(LastEnder(world).work())
    check_flow(world, map(primary_of, worlds))


def primary_of(world: World) -> Server:
    """The server that decides."""
    return world.servers[world.view.primary(QUEUE)]


def begin_leg(world: World, servers: str) -> World:
    """Found another queue, on servers of its own."""
    ledger = world.ledger
    own = {ServerId(id): Server(ServerId(id), world.on, ledger.clock, f"{id}1", world.nonce()) for id in servers}
    leg = world.beside("leg", own)
    members = {id: server.life for id, server in own.items()}
    leg.view = View(1, members, {}, {}, dict.fromkeys(own, ""), min_replicas=2, by=world.nonce())
    leg.version = 0
    ledger.flow.has_leg = True
    ledger.flow.is_followed_in_leg, ledger.flow.is_undone = world.chance(0.5), world.chance(0.5)
    return leg
