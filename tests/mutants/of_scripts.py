"""Mutants of what every script does: its door, records, tombstones and ids."""

from __future__ import annotations

from tests.mutants.trial import LUA, Mutant, Suite

_WITHOUT_TOMBSTONES = """write('HSET', records, new.records)
    for at = 2, new.records.n, 2 do
      local r = read_record(new.records[at])
      if not string.find(r.states, ALIVE) then redis.call('HDEL', records, new.records[at - 1]) end
    end"""

MUTANTS: tuple[Mutant, ...] = (
    # -- the door of every script --------------------------------------------------------------------------------------
    Mutant(
        "gate-takes-any-generation",
        LUA + "_gate.lua",
        "if known[1] ~= generation then",
        "if not known[1] then",
        "a server answers only in the life in which the view knows it",
        Suite("tests/lua/test_gate.py"),
        quick=True,
    ),
    Mutant(
        "gate-takes-an-old-epoch",
        LUA + "_gate.lua",
        "if epoch < seen then",
        "if false then",
        "a client with an old view decides nothing",
        Suite("tests/lua/test_gate.py"),
    ),
    Mutant(
        "gate-adopts-no-epoch",
        LUA + "_gate.lua",
        "redis.call('HSET', server, 'epoch', epoch)",
        "known[2] = epoch",
        "a server that has seen a view refuses older ones from then on",
        Suite("tests/lua/test_gate.py"),
    ),
    # -- one call and the next -----------------------------------------------------------------------------------------
    Mutant(
        "call-finds-bundles-of-the-one-before",
        LUA + "_state.lua",
        "opened, order, noted, taken_now = {}, {damaged = {}}, {}, {}",
        "opened, order, noted, taken_now = opened or {}, {damaged = {}}, {}, {}",
        "a server keeps the variables of a library, so each call begins with new ones",
        Suite("tests/simulation/test_isolation.py"),
        quick=True,
    ),
    Mutant(
        "call-writes-what-one-before-has-left",
        LUA + "_state.lua",
        "  removals, readied, openings = 0, 0, {freed = 0, later = false}",
        "  removals, readied, openings = removals or 0, readied or 0, openings or {freed = 0, later = false}",
        "what a call has left that failed half-way is no other call's",
        Suite("tests/simulation/test_isolation.py"),
    ),
    # -- records -------------------------------------------------------------------------------------------------------
    Mutant(
        "apply-installs-anything",
        LUA + "apply.lua",
        "if not held or newer(r, held) then",
        "if true then",
        "a record is installed only if its version is greater",
        Suite("tests/lua/test_apply.py"),
    ),
    Mutant(
        "versions-ignore-the-epoch",
        LUA + "_record.lua",
        "return a.epoch > b.epoch or (a.epoch == b.epoch and a.n > b.n)",
        "return a.n > b.n",
        "what a later view decided wins",
        Suite("tests/lua/test_apply.py"),
    ),
    Mutant(
        "removal-leaves-no-tombstone",
        LUA + "_index.lua",
        "write('HSET', records, new.records)",
        _WITHOUT_TOMBSTONES,
        "a late push finds the tombstone of what was removed",
        Suite("tests/lua/test_settle.py"),
    ),
    Mutant(
        "cancel-tells-of-no-earlier-removal",
        LUA + "cancel.lua",
        "if state == 'X' and (named or executed_before) then",
        "if false then",
        "a cancel whose reply was lost is told to the other servers, and its caller what it found",
        Suite("tests/lua/test_dead_letters.py", "tests/simulation/test_scenarios_of_removals.py"),
    ),
    Mutant(
        "superseded-by-version-alone",
        LUA + "apply.lua",
        "if position > held.size or string.byte(held.states, position) ~= state",
        "if true or string.byte(held.states, position) ~= state",
        "a later decision about its siblings takes no item from its holder",
        Suite("tests/lua/test_apply.py", "tests/lua/test_bundles.py"),
    ),
    Mutant(
        "row-is-dropped-too-early",
        LUA + "_bundle.lua",
        "if name and string.find(r.named, name, 1, true) or",
        "if is_live(r, row) or",
        "a repeated settling finds what it has done",
        Suite("tests/lua/test_bundles.py", "tests/lua/test_histories.py"),
    ),
    Mutant(
        "repeated-apply-counts-again",
        LUA + "_index.lua",
        "tally[old_state] = (tally[old_state] or 0) - size",
        "tally[old_state] = tally[old_state] or 0",
        "the counters agree with a recount",
        Suite("tests/lua/test_apply.py", "tests/lua/test_bundles.py"),
    ),
    Mutant(
        "cut-drops-what-is-needed",
        LUA + "_cutting.lua",
        "local payload = not (is_gone and named[position])",
        "local payload = not named[position]",
        "a payload is dropped only where its item is gone",
        Suite("tests/lua/test_cutting.py", "tests/lua/test_bundles.py"),
    ),
    Mutant(
        "repeated-decision-keeps-its-epoch",
        LUA + "_bundle.lua",
        "if r.epoch < epoch then touch(r) else r.told = true end",
        "r.told = true",
        "what was decided before the view changed is stamped with the new epoch",
        Suite("tests/lua/test_settle.py", "tests/lua/test_push_decided.py"),
    ),
)
