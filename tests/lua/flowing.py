"""What tests of the scripts of flows do with one server."""

from __future__ import annotations

from tests.lua.entries import Decided, read_decided
from tests.lua.one_server import OneServer
from zkrq.protocol import calls
from zkrq.protocol.calls import bundle_and_position
from zkrq.protocol.flows import Stage
from zkrq.protocol.payloads import join
from zkrq.protocol.records import HELD, MEMBER, Opens, fresh, held_for, with_fields
from zkrq.protocol.replies import Status

FLOW = "import-7"
OTHER = "import-70"

RECORD = "\1flow import-7"
"""The id of the record of the flow."""

KEEP_MS = 60_000

LIFE = 1_750_000_000_000
"""When a flow of another queue has begun, in milliseconds."""


def steer(
    server: OneServer,
    verb: str,
    *,
    flow: str = FLOW,
    stamp: int = 0,
    keep_ms: int = KEEP_MS,
    policy: str = "",
    deadline_ms: int = 0,
    leg: str = "",
    life: int = 0,
    remaining: str = "",
    outer: str = "",
) -> calls.SteerReply:
    terms = stamp, keep_ms, policy, deadline_ms, leg, life, remaining, outer
    return server.ask(calls.Steer(server.queue, flow, verb, *terms))


def stage(server: OneServer, verb: str, *, flow: str = FLOW, stamp: int = 0, remaining: str = "") -> Stage:
    return Stage(steer(server, verb, flow=flow, stamp=stamp, remaining=remaining).now.decode())


def left(server: OneServer, flow: str = FLOW) -> tuple[str, set[str]]:
    """Kinds of what is left, and bundles that hold the flow up."""
    reply = server.ask(calls.FlowMembers(server.queue, flow))
    return reply.kinds.decode(), {bundle_and_position(item.id.decode())[0] for item in reply.items}


def member(server: OneServer, id: str, size: int = 0, *, flow: str = FLOW) -> calls.Put:
    record = with_fields(fresh(0, server.now_ms(), size=size or None), {MEMBER: flow.encode()})
    return calls.Put(id, record, join([b"payload"] * (size or 1)))


def following(server: OneServer, id: str, flow: str = FLOW, *, opens: Opens = Opens.THEN) -> calls.Put:
    return calls.Put(
        id, with_fields(fresh(0, server.now_ms()), {HELD: held_for(flow.encode(), opens)}), join([b"then"])
    )


def push_plain(server: OneServer, *puts: calls.Put) -> None:
    reply = server.ask(calls.PushPlain(server.queue, puts))
    assert (list(reply.late), reply.known) == ([], {})


def push_decided(server: OneServer, *puts: calls.Put) -> list[str]:
    reply = server.ask(calls.PushDecided(server.queue, puts, in_order=True))
    return [outcome.decode() for outcome in reply.outcomes]


def is_refused(server: OneServer, put: calls.Put) -> bool:
    """Whether a plain push has to be decided."""
    return server.answer(calls.PushPlain(server.queue, [put]), server.epoch).status is Status.DECIDE


def open_held(server: OneServer, flow: str = FLOW) -> tuple[int, dict[str, Decided]]:
    reply = server.ask(calls.OpenHeld(server.queue, flow))
    return reply.opened, read_decided(reply.records.flat)


def ack_all(server: OneServer) -> list[str]:
    """Claim and ack what is ready."""
    claimed = server.claim(count=100)
    if claimed.handed:
        server.settle(*claimed.settle("ack"))
    return claimed.ids
