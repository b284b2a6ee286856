"""The headers of the scripts are contracts: each is compared with the text below it, and with its use in Python."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from functools import cache
from importlib import resources

from tests.bytecode import read
from tests.every import every
from zkrq.protocol import keys as key_table
from zkrq.protocol import records, scripts
from zkrq.protocol.keys import key, script_keys
from zkrq.protocol.replies import Status
from zkrq.protocol.scripts import LIBRARY, SCRIPTS, Script, assemble, read_files

FOLDER = resources.files("zkrq.protocol") / "lua"
FILES = {entry.name: entry.read_text() for entry in FOLDER.iterdir()}
PARTS = sorted(name for name in FILES if name.startswith("_"))

MAX_LASTING = 185
"""Variables of the library's text that are in no block; Lua's limit is 200, and blocks need some."""

MAX_UPVALUES = 55
"""Variables of the text that one function may use; Lua's limit is 60."""

GLOBALS = frozenset(
    (
        *("assert", "error", "ipairs", "math", "next", "pairs", "pcall", "redis", "select"),
        *("string", "struct", "table", "tonumber", "type", "unpack"),
    )
)
"""What Redis offers to functions, as far as scripts use it."""

MAY_RUN_OUT_OF_MEMORY = {"adopt", "apply_new", "room", "push_decided", "push_plain"}
"""Scripts that only add: they are refused when the server's memory is full; the others go on."""

OUTSIDE_THE_VIEW = {"enrol", "reserve"}
"""Scripts that ask servers which are in no view."""

GATE_STATUSES = {"NOTINSYNC", "STALE"}

KEY_VARIABLES = {"index", "key"}
"""Locals in scripts that stand for one of several keys."""

DURATION_WORDS = re.compile(r"delay|window|lease|left|timeout|deadline|duration|age|ttl|grace|seconds|time|moment")

CHUNK = read(LIBRARY.text.partition("\n")[2])

every_script = every("script", SCRIPTS.values())


def code_of(text: str) -> str:
    """Without comments and string literals."""
    return re.sub(r"'(?:[^'\\]|\\.)*'", "''", re.sub(r"--.*", "", text))


def own_text(script: Script) -> str:
    """The file that has its contract and code, which may be another operation's."""
    shared = header(FILES[f"{script.name}.lua"], "body") or [script.name]
    return FILES[f"{shared[0]}.lua"]


def header(text: str, field: str) -> list[str]:
    return re.findall(rf"^-- {field}: (.*)$", text, re.MULTILINE)


def known_keys() -> set[str]:
    """Names in the table of keys.py and in the sentence above it."""
    doc = key_table.__doc__ or ""
    per_queue = re.findall(r"^(\w+) +(?:hash|zset|list|set) ", doc, re.MULTILINE)
    return {"server", "queues", *per_queue}


def definitions() -> Iterator[tuple[frozenset[str], str]]:
    """The names that each statement of a shared part defines, and its text; all but the variables of a call."""
    for part in PARTS:
        for code in re.split(r"^(?=local )", re.sub(r"--.*", "", FILES[part]), flags=re.MULTILINE):
            names = re.match(r"local (?:function )?([\w, ]+)", code)
            if names and part != "_state.lua":
                yield frozenset(names[1].strip().split(", ")), code


DEFINITIONS = tuple(definitions())


def reached(script: Script) -> str:
    """The script's own code, and that of all shared parts that it uses."""
    return _reached(script.name)


@cache
def _reached(name: str) -> str:
    script = SCRIPTS[name]
    text = re.sub(r"--.*", "", script.code) + (FILES["_gate.lua"] if script.is_gated else "")
    while True:
        words = set(re.findall(r"\w+", text))
        more = [code for names, code in DEFINITIONS if names & words and code not in text]
        if not more:
            return text
        text += "".join(more)


def key_arguments(text: str) -> Iterator[tuple[str, str]]:
    """Command and key of every redis.call."""
    for match in re.finditer(r"redis\.p?call\(([^,()]+)(?:,\s*([^,()]*(?:\[[^\]]*\])?))?", re.sub(r"--.*", "", text)):
        yield match[1].strip("'"), (match[2] or "").strip()


# -- headers -------------------------------------------------------------------------------------------------------


def test_every_file_is_in_the_library() -> None:
    assert sorted(f"_{name}.lua" for name in scripts.PARTS) == PARTS
    assert {f"{name}.lua" for name in SCRIPTS} == FILES.keys() - set(PARTS)
    code = [line for text in FILES.values() for line in text.splitlines() if line and not line.startswith("--")]
    lines = set(LIBRARY.text.splitlines())
    assert [line for line in code if line not in lines and not line.startswith("#!")] == []


@every("name", FILES)
def test_every_file_says_what_it_is_for(name: str) -> None:
    (purpose,) = header(FILES[name], "purpose")
    assert len(purpose) > 10


@every_script
def test_header_has_one_line_of_each(script: Script) -> None:
    text = own_text(script)
    assert [len(header(text, field)) for field in ("purpose", "KEYS", "ARGV")] == [1, 1, 1]
    assert header(text, "reply")


@every_script
def test_keys_are_known(script: Script) -> None:
    assert set(script.keys) <= known_keys()
    assert len(set(script.keys)) == len(script.keys)
    assert script.keys[0] == "server"


@every_script
def test_arguments_begin_with_epoch_and_generation(script: Script) -> None:
    """Rule 3: every script carries (epoch, generation)."""
    assert script.arguments[:2] == ("epoch", "generation")


@every_script
def test_durations_travel_in_milliseconds(script: Script) -> None:
    """Durations travel, never timestamps."""
    for name in (*script.arguments, *script.repeated):
        assert name.endswith("ms") or not DURATION_WORDS.search(name), name
        assert not re.search(r"_(us|s|sec|at)$", name), name


@every_script
def test_replies_are_those_of_the_header(script: Script) -> None:
    of_gate = GATE_STATUSES if script.is_gated else set[str]()
    assert set(re.findall(r"return \{'([A-Z]+)'", script.code)) | of_gate == set(script.replies)
    assert len(script.replies) == len(header(own_text(script), "reply"))


@every_script
def test_every_value_of_a_reply_is_understood(script: Script) -> None:
    """A list has the names of its values before its semicolon; words that are no values stand after one."""
    for line in header(own_text(script), "reply"):
        lists = re.findall(r"\[([^\]]*)\]", line)
        words = re.sub(r"\[[^\]]*\]\??", "list", line).partition(";")[0].split()[1:]
        shape = script.replies[line.split()[0]]
        assert [value.width > 0 for value in shape] == [word == "list" for word in words]
        assert [value.width for value in shape if value.width] == [
            len(each.partition(";")[0].split()) for each in lists
        ]
        for name in " ".join(each.partition(";")[0] for each in lists).split():
            assert re.fullmatch(r"[a-z_]+", name), name


@every_script
def test_values_that_follow_a_status_are_its_shape(script: Script) -> None:
    """As far as the text shows: a refusal names its values where it returns them."""
    for status, values in re.findall(r"return \{'([A-Z]+)'((?:, [^{}\n]*)?)\}", script.code):
        without_calls = re.sub(r"\([^()]*\)", "", re.sub(r"\([^()]*\([^()]*\)[^()]*\)", "", values))
        assert without_calls.count(",") == len(script.replies[status]), status


@every_script
def test_replies_are_known_to_python(script: Script) -> None:
    assert set(script.replies) <= {status.value for status in Status}


@every_script
def test_every_return_names_its_status(script: Script) -> None:
    """A reply without a status would be BROKEN."""
    operation = script.code[script.code.index("local function operation(") :]
    for statement in re.findall(r"^  (?:if .* then )?return (.*?)(?: end)?$", operation, re.MULTILINE):
        assert re.match(r"\{'[A-Z]+'", statement), statement


@every_script
def test_an_operation_takes_the_arguments_of_its_header(script: Script) -> None:
    """Epoch and generation are the gate's."""
    (operation,) = re.findall(r"^local function operation\(([^)]*)\)", script.code, re.MULTILINE)
    assert tuple(re.findall(r"\w+", operation)) == script.arguments[2:]


@every_script
def test_declared_keys_are_used(script: Script) -> None:
    assert {name for name in script.keys if not re.search(rf"\b{name}\b", reached(script))} == set()


@every_script
def test_declared_arguments_are_used(script: Script) -> None:
    _, body = re.split(r"^local function operation\([^)]*\)", script.code, flags=re.MULTILINE)
    assert {name for name in script.arguments[2:] if not re.search(rf"\b{name}\b", body)} == set()


@every_script
def test_keys_that_are_used_are_declared(script: Script) -> None:
    """An undeclared one is nil."""
    code = re.sub(r"\b\w+ = (?=found\[)", "", code_of(reached(script)))  # fields of the numbers (_lead.lua)
    mentioned = set(re.findall(r"(?<![.\w])\w+", code)) & known_keys()
    assert mentioned <= set(script.keys)


@every_script
def test_no_call_touches_an_undeclared_key(script: Script) -> None:
    """Only declared keys are touched, so that all of them are known before the script runs."""
    calls = [(command, name) for command, name in key_arguments(reached(script)) if command not in ("TIME", "PUBLISH")]
    assert calls
    assert {name for _, name in calls} <= {*script.keys, *KEY_VARIABLES}


@every_script
def test_variables_that_stand_for_keys_stand_for_declared_ones(script: Script) -> None:
    listed = re.findall(r"ipairs\(\{([^}]*)\}\)|\b[QCDX] = \{([^}]*)\}", reached(script))
    names = {name.strip() for lists in listed for part in lists for name in part.split(",") if name.strip()}
    names |= set(re.findall(r"\beach_in\((\w+), ''", reached(script)))
    names |= set(re.findall(r"\bwrite\('\w+', (\w+)", reached(script)))
    names |= set(re.findall(r"\[(\w+)\] = list\(\)", reached(script)))
    assert names - KEY_VARIABLES <= set(script.keys)


# -- what scripts may do -------------------------------------------------------------------------------------------


@every_script
def test_gate_is_asked_for_all_but_servers_outside_the_view(script: Script) -> None:
    """Rule 3.  Only servers outside the view are enrolled and reserved."""
    assert script.is_gated == (script.name not in OUTSIDE_THE_VIEW)
    assert not script.is_gated or set(script.replies) >= GATE_STATUSES


def test_gate_stands_before_everything_else() -> None:
    """Rule 3: nothing is read or created on the way."""
    execute, gate = FILES["_execute.lua"], FILES["_gate.lua"]
    assert re.findall(r"\b(gate|read_clock|reset|unpack)[.(]", execute)[0] == "gate"
    assert [command for command, _ in key_arguments(gate)] == ["HMGET", "HSET"]
    assert gate.index("'STALE'") < gate.index("redis.call('HSET'")


READING = {"EXISTS", "TIME", "SSCAN", "SCARD", "LRANGE", "LLEN"} | {
    *("HGET", "HMGET", "HLEN", "HEXISTS", "HSCAN", "HSTRLEN"),
    *("ZCARD", "ZCOUNT", "ZLEXCOUNT", "ZMSCORE", "ZRANGE", "ZRANGEBYLEX", "ZRANGEBYSCORE", "ZRANK", "ZSCAN", "ZSCORE"),
}


@every_script
def test_what_writes_nothing_writes_nothing(script: Script) -> None:
    """But the epoch, which the gate adopts for clients that do not only look."""
    if not script.writes:
        found = {(command, key) for command, key in key_arguments(reached(script)) if command not in READING}
        assert found == {("HSET", "server")}
        assert script.looking.startswith("zkrq_look_")


@every_script
def test_only_scripts_that_add_items_are_refused_when_memory_is_full(script: Script) -> None:
    """Memory pressure: scripts that free memory are flagged allow-oom, so that a full queue can drain."""
    assert script.flags == (() if script.name in MAY_RUN_OUT_OF_MEMORY else ("allow-oom",))


@every("name", FILES)
def test_nothing_is_left_to_chance_or_to_another_clock(name: str) -> None:
    code = code_of(FILES[name])
    assert not re.search(r"\b(os|io|random|randomseed|require|loadstring|dofile)\b", code)
    assert ("'TIME'" in FILES[name]) == (name == "_clock.lua")


def test_no_global_is_assigned_and_none_is_read_but_those_of_redis() -> None:
    """A name that is written wrongly is one; Redis would refuse it in the branch in which it stands."""
    assert set[str]().union(*(each.assigns for each in CHUNK.all())) == set()
    assert set[str]().union(*(each.reads for each in CHUNK.all())) <= GLOBALS


def test_lua_has_room_for_more() -> None:
    assert len(CHUNK.lasting) <= MAX_LASTING
    assert max(len(each.upvalues) for each in CHUNK.all()) <= MAX_UPVALUES


def test_functions_assign_no_variable_of_the_library_but_those_of_the_call() -> None:
    """What else they assigned would be seen by the next call."""
    of_a_call = set(read(FILES["_state.lua"]).lasting)
    changed = set[str]().union(*(each.changes for each in CHUNK.all()))
    assert of_a_call < set(CHUNK.lasting)
    assert changed & set(CHUNK.lasting) <= of_a_call


def test_every_variable_of_a_call_is_set_before_an_operation_begins() -> None:
    variables = set(read(FILES["_state.lua"]).lasting) - set(re.findall(r"function (\w+)", FILES["_state.lua"]))
    before = read("\n".join(FILES[f"_{part}.lua"] for part in ("state", "clock", "gate", "execute")))
    set_before = set[str]().union(*(each.changes for each in before.all()))
    every_key = {name for script in SCRIPTS.values() for name in script.keys}
    assert variables == set_before | every_key
    binding = [each for each in CHUNK.inner if each.parameters == ("KEYS", "at")]
    assert len(binding) == len([script for script in SCRIPTS if not header(FILES[f"{script}.lua"], "body")])
    assert [each for each in binding if each.changes != every_key] == [], "keys that are not declared are forgotten"


# -- as Python sends them ------------------------------------------------------------------------------------------


def test_library_and_functions_are_named_by_the_text() -> None:
    """Those of another version stand beside them."""
    files = read_files()
    other = assemble({**files, "room": files["room"] + "\n-- another version\n"})
    assert assemble(files) == SCRIPTS
    names = {script.function for script in (*SCRIPTS.values(), *other.values())}
    assert len(names) == 2 * len(SCRIPTS)
    assert other["room"].library.name != LIBRARY.name
    assert LIBRARY.text.startswith(f"#!lua name={LIBRARY.name}\n")
    assert all(re.fullmatch(r"\w+", name) for name in names)


@every_script
def test_keys_are_sent_in_the_order_of_the_header(script: Script) -> None:
    sent = script_keys("shop", "emails", script.name)
    assert [name.rpartition(":")[2] for name in sent] == list(script.keys)


@every_script
def test_all_keys_of_a_call_share_one_hash_tag(script: Script) -> None:
    for name in script_keys("shop", "emails", script.name):
        assert name.startswith("{shop}:")
        assert name.count("{") == 1


def test_names_of_keys_do_not_meet() -> None:
    """No queue's key is another's, nor the server's, whatever the queues are called."""
    queues = ["a", "a:ready", "q", "server", "queues", "a:q:b"]
    names = [key("n", queue, name) for queue in queues for name in sorted(known_keys() - {"server", "queues"})]
    names += [key("n", "", name) for name in ("server", "queues")]
    assert len(set(names)) == len(names)


# -- the same in Lua and in Python ---------------------------------------------------------------------------------


def lua_number(part: str, name: str) -> int:
    text = FILES.get(f"_{part}.lua") or FILES[f"{part}.lua"]
    for names, numbers in re.findall(r"^ *local ([\w, ]+) = ([\d, ]+)", text, re.MULTILINE):
        if name in (known := names.split(", ")):
            return int(numbers.split(", ")[known.index(name)])
    raise AssertionError(f"{part}.lua has no number {name}")


def test_format_is_the_same_on_both_sides() -> None:
    assert lua_number("record", "FORMAT") == records.FORMAT


def test_fields_stand_where_lua_looks_for_them() -> None:
    version = records.Version(0x01020304, 0x05060708)
    empty = records.Bundle(version, "CQ", priority=9, is_alone=False, pushed_at_ms=4.0, due_us=5.0)
    packed = records.pack(empty)
    whole = {
        "MARKED_AT": b"\x09",
        "COUNT_AT": b"\x02",
        "PUSHED_AT": struct.pack("<dd", 4.0, 5.0),
    }
    for name, field in whole.items():
        at = lua_number("push_plain", name)
        assert packed[at - 1 : at - 1 + len(field)] == field, name
    assert lua_number("entries", "HEAD_LENGTH") == records.VERSION_BYTES.stop
    row, own = records.Row("ann", 1), records.Own(0)
    lengths = [
        len(records.pack(bundle))
        for bundle in (empty, empty._replace(rows=[row]), empty._replace(rows=[row, row]), empty._replace(own={1: own}))
    ]
    assert lua_number("record", "SHIFT_BYTES") == struct.calcsize("<d")
    assert _length("ROW_BYTES") == lengths[2] - lengths[1]
    assert _length("OWN_BYTES") == lengths[3] - lengths[0]
    assert _length("NONE", "NONE") == empty_row_byte(packed)


def _length(name: str, of: str = "") -> int:
    match = re.search(rf"^local (?:\w+, )?{of or name} = (?:'[^']*', )?(\d+)", FILES["_record.lua"], re.MULTILINE)
    assert match
    return int(match[1])


def empty_row_byte(packed: bytes) -> int:
    """How an item without a claim names its row."""
    (row,) = {*packed[-7 - 2 : -7]}
    return row


def test_priorities_are_the_same_on_both_sides() -> None:
    assert lua_number("scores", "PRIORITIES") == len(records.PRIORITIES)


def test_scores_of_all_priorities_are_exact() -> None:
    """A score is a double: whole numbers up to 2^53; and a due time of ten years from now fits into one step."""
    step, first = lua_number("scores", "PRIORITY_STEP"), lua_number("scores", "FIRST_MOMENT")
    assert len(records.PRIORITIES) * step <= 2**53
    year_us = 366 * 86_400 * 1_000_000
    assert first + step > 2_030 * 365.25 * 86_400e6 - 1_970 * 365.25 * 86_400e6 + 10 * year_us
