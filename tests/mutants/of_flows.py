"""Mutants of flows: what holds one up, and when it may end."""

from __future__ import annotations

from tests.mutants.trial import LUA, Mutant, Suite

_SCRIPTS = Suite("tests/lua/test_flows.py")
_SCENARIOS = Suite("tests/simulation/test_scenarios_of_flows.py")

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "flow-ends-beside-a-dead-letter",
        LUA + "flow.lua",
        "local is_done = not string.find(left, 'D', 1, true)",
        "local is_done = true",
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
        "          says.stamp = says.stamp + 1\n          flows.say(flow, says)",
        "          flows.say(flow, says)",
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
    Mutant(
        "flow-ends-whatever-its-stamp-is",
        LUA + "flow.lua",
        "if says.stamp ~= given.stamp or string.find(left, 'L', 1, true) then return end",
        "if string.find(left, 'L', 1, true) then return end",
        "the end is decided under the stamp that was read before the servers were asked",
        _SCRIPTS,
    ),
    Mutant(
        "flow-forgets-what-is-left-in-its-legs",
        LUA + "flow.lua",
        "local left = given.kinds .. string.match(given.remaining, '^%a*')",
        "local left = given.kinds",
        "what is left in a leg holds the flow up",
        _SCRIPTS,
    ),
    Mutant(
        "flow-is-closed-before-its-legs-have-opened",
        LUA + "flow.lua",
        "  if says.legs == '' and not string.find(given.kinds,",
        "  if not string.find(given.kinds,",
        "a flow that has ended stays due until each of its queues has opened what it holds",
        _SCRIPTS,
    ),
    Mutant(
        "flow-opens-the-continuation-of-a-failure",
        LUA + "flow_open.lua",
        "local OPENS = {done = '[TA]', failed = '[FA]'}",
        "local OPENS = {done = '[TA]', failed = '[TFA]'}",
        "what follows a flow that is done is dropped when it has failed",
        _SCRIPTS,
    ),
    Mutant(
        "flow-looks-at-its-legs-once",
        "zkrq/protocol/flows.py",
        "has_moved = has_moved or told.stamp != stamps[leg]",
        "has_moved = False",
        "what came to life in a leg while others were asked holds the flow up",
        _SCENARIOS,
    ),
    Mutant(
        "leg-of-an-earlier-flow-ends-that-of-the-next",
        LUA + "flow_open.lua",
        "if is_leg and stage ~= 'U' and r.pushed_at ~= tonumber(life) then return {'OK', 0, 0, {}} end",
        "",
        "only what is told of the flow of a leg ends it",
        _SCRIPTS,
    ),
    Mutant(
        "failing-flow-takes-members",
        LUA + "_flows.lua",
        "return stage == 'O' or stage == 'S'\n  end\n\n  -- Return the outcome",
        "return stage ~= 'U' and stage ~= 'E'\n  end\n\n  -- Return the outcome",
        "nothing is pushed into a flow that is failing",
        _SCRIPTS,
    ),
    Mutant(
        "failing-flow-stops-claimed-members",
        LUA + "flow_open.lua",
        "if state == CLAIMED and outcome == 'cancelled' and stop == '1' then",
        "if state == CLAIMED then",
        "what is claimed of a flow that is failing goes on",
        _SCRIPTS,
    ),
    Mutant(
        "flow-outlives-its-deadline",
        LUA + "_flows.lua",
        "if string.find(says.policy, 'd', 1, true) and flow.due + flow.shift <= now_us then return true end",
        "if string.find(says.policy, 'd', 1, true) and flow.due + flow.shift <= 0 then return true end",
        "a flow fails once its deadline has passed",
        _SCRIPTS,
    ),
)
