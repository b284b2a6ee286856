"""Mutants of flows: what holds one up, and when it may end."""

from __future__ import annotations

from tests.mutants.trial import LUA, Mutant, Suite

_SCRIPTS = Suite("tests/lua/test_flows.py")
_SCENARIOS = Suite("tests/simulation/test_scenarios_of_flows.py")

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "flow-ends-beside-a-dead-letter",
        LUA + "_flows.lua",
        "local HOLDS_UP = {'L', 'D', 'M'}",
        "local HOLDS_UP = {'L', 'M'}",
        "a flow is done only if nothing holds it up",
        _SCRIPTS,
    ),
    Mutant(
        "flow-takes-plain-pushes-after-the-seal",
        LUA + "push_plain.lua",
        "return not name or select(2, flows.stage_of(name)) == 'O'",
        "return not name or select(2, flows.stage_of(name)) ~= 'E'",
        "a server that was asked what is left takes no plain push of a member",
        _SCRIPTS,
    ),
    Mutant(
        "flow-keeps-its-stamp",
        LUA + "_flows.lua",
        "flows.keep(flow, sealed, stamp + 1, keep_ms)",
        "flows.keep(flow, sealed, stamp, keep_ms)",
        "a member that comes to life after the seal raises the stamp",
        _SCRIPTS,
    ),
    Mutant(
        "flow-forgets-what-was-cancelled",
        LUA + "_tombstones.lua",
        "flows.of(r) ~= nil and flows.needs(r)",
        "false",
        "the tombstone of a member that was removed otherwise than by an ack stays while its flow runs",
        _SCRIPTS,
    ),
    Mutant(
        "held-item-comes-from-another-shard",
        LUA + "_bundle.lua",
        "if string.byte(r.states, position) ~= REQUEUED or tails.field(r, 'W') then return nil end",
        "if string.byte(r.states, position) ~= REQUEUED then return nil end",
        "what is held for a flow is not taken for what another shard has sent",
        _SCRIPTS,
    ),
    Mutant(
        "flow-asks-the-primary-alone",
        "zkrq/protocol/flows.py",
        "answers: Answers = yield Ask(view.epoch, view.members, call)",
        "primary = view.primary(queue)\n"
        "            answers: Answers = yield Ask(view.epoch, {primary: view.members[primary]}, call)",
        "a flow ends only if no server in sync knows of a living member",
        _SCENARIOS,
    ),
    Mutant(
        "flow-ends-below-min-replicas",
        "zkrq/protocol/flows.py",
        "return view.writable and not view.learners and not view.eligible",
        "return True",
        "no flow ends while a server may come back with what it has",
        _SCENARIOS,
    ),
)
