"""Mutants of saved states: who may save, which text is given, how long it is kept, and where it goes."""

from __future__ import annotations

from tests.mutants.trial import LUA, Mutant, Suite

_SCRIPTS = Suite("tests/lua/test_saving.py")
_CALLS = Suite("tests/behaviour/test_saving.py")
_COPIES = Suite("tests/behaviour/test_copies.py")

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "save-needs-no-claim",
        LUA + "_settling.lua",
        "local is_mine = row > 0 and token_at(r, row) == token",
        "local is_mine = row > 0 and (verb.is_late or token_at(r, row) == token)",
        "only the holder saves",
        _SCRIPTS,
    ),
    Mutant(
        "save-of-any-size",
        LUA + "_settling.lua",
        "if name == 'save' and not beside.read_save(text) then token = '' end",
        "",
        "a text that no client sends is not saved",
        _SCRIPTS,
    ),
    Mutant(
        "late-save-replaces-a-later-one",
        LUA + "_settling.lua",
        "return beside.read_save(text) < (tails.save_of(r, position) or 0)",
        "return false",
        "a save that is executed late changes nothing",
        _SCRIPTS,
    ),
    Mutant(
        "save-counts-attempts-anew",
        LUA + "_settling.lua",
        "if anew then count_attempts(r, position, position, 1 - attempts_at(r, position)) end",
        "count_attempts(r, position, position, 1 - attempts_at(r, position))",
        "attempts begin anew only for those who want it",
        _SCRIPTS,
    ),
    Mutant(
        "older-state-takes-the-place-of-a-newer-one",
        LUA + "_notes.lua",
        "return newer({epoch = epoch_of, n = n_of}, {epoch = epoch_held, n = n_held})",
        "return true",
        "only a greater version of a saved text takes the place of another",
        _SCRIPTS,
    ),
    Mutant(
        "saved-text-of-any-size-is-sent",
        LUA + "_notes.lua",
        "return bytes <= VERSION_BYTES + STATE_MAX and bytes or 0",
        "return bytes",
        "a text that does not fit into the length before it is not sent",
        _SCRIPTS,
    ),
    Mutant(
        "saved-text-of-any-size-stays",
        LUA + "_notes.lua",
        "#held < VERSION_BYTES or #held > VERSION_BYTES + STATE_MAX then return true end",
        "#held < VERSION_BYTES then return true end",
        "what somebody has put beside an item keeps no save away",
        _SCRIPTS,
    ),
    Mutant(
        "given-state-is-not-everywhere",
        LUA + "_claiming.lua",
        "    beside.save_again(r, from, to)\n  end",
        "    beside.recall_saved(r, from, to)\n  end",
        "the claim that gives a state saves it again, under its own version",
        _SCRIPTS,
    ),
    Mutant(
        "claim-goes-on-counting-saves",
        LUA + "_claiming.lua",
        "for _, position in ipairs(tails.saved_in(r, from, to)) do tails.set_save(r, position, 0) end",
        "",
        "each claim numbers its saves anew",
        _SCRIPTS,
    ),
    Mutant(
        "states-do-not-count-in-a-reply",
        LUA + "_claiming.lua",
        "#part + (r.fields ~= '' and beside.saved_bytes(r, from, to) or 0)",
        "#part",
        "the saved states of a claim count in its mebibyte",
        _SCRIPTS,
    ),
    Mutant(
        "cut-takes-states-of-the-living",
        LUA + "_cutting.lua",
        "      local is_gone = not string.find(r.states, '^[QRCD]', position)\n      if is_gone and (items",
        "      local is_gone = true\n      if is_gone and (items",
        "a saved state is dropped only with its item",
        Suite("tests/lua/test_saving.py", "tests/model/test_scripts.py"),
    ),
    Mutant(
        "state-stays-behind-on-another-shard",
        LUA + "adopt.lua",
        "    if saved then beside.save(r, position, saved) end\n",
        "",
        "an item that comes home brings what was saved of it",
        _SCRIPTS,
    ),
    Mutant(
        "step-runs-again",
        "zkrq/consuming/saving.py",
        "        if not self.done:\n            value = call()",
        "        if True:\n            value = call()",
        "a step whose value is saved is not run again",
        _CALLS,
    ),
    Mutant(
        "move-drops-what-was-saved",
        "zkrq/cli/moving.py",
        "        letter.saved_bytes,\n",
        "        None,\n",
        "a copy of a letter has what was saved of it",
        _COPIES,
    ),
    Mutant(
        "export-drops-what-was-saved",
        "zkrq/client/copies.py",
        "    if item.saved_bytes is not None:\n",
        "    if False:\n",
        "a line of export has what was saved of the item",
        _COPIES,
    ),
    Mutant(
        "copy-is-given-what-it-began-with",
        "zkrq/base/saved.py",
        "return begun if text is None else text",
        "return text if begun is None else begun",
        "what a copy has saved itself takes the place of what it began with",
        _COPIES,
    ),
    Mutant(
        "copy-brings-what-was-saved-too-early",
        "zkrq/client/queue.py",
        "        parts.everywhere.shards.placement.check(Feature.SAVES)\n",
        "        pass\n",
        "a copy brings what was saved only at a level that has it",
        _CALLS,
    ),
)
