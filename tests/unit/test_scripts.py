"""The headers of the scripts are contracts: each is compared with the text below it, and with its use in Python."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from importlib import resources

from tests.every import every
from zkrq.protocol import keys as key_table
from zkrq.protocol import records
from zkrq.protocol.keys import key, script_keys
from zkrq.protocol.replies import Status
from zkrq.protocol.scripts import SCRIPTS, Script, sha

FOLDER = resources.files("zkrq.protocol") / "lua"
FILES = {entry.name: entry.read_text() for entry in FOLDER.iterdir()}
PARTS = sorted(name for name in FILES if name.startswith("_"))

MAX_LOCALS_WITHIN = 20
"""At most so many in any one block or function."""

MAX_LOCALS = 200
"""Lua's limit for one function."""

MAY_RUN_OUT_OF_MEMORY = {"apply_new", "room", "push_decided", "push_plain"}
"""Scripts that only add: they are refused when the server's memory is full; the others go on."""

OUTSIDE_THE_VIEW = {"enrol", "reserve"}
"""Scripts that ask servers which are in no view."""

GATE_STATUSES = {"NOTINSYNC", "STALE"}

KEY_VARIABLES = {"index", "key"}
"""Locals in scripts that stand for one of several keys."""

DURATION_WORDS = re.compile(r"delay|window|lease|left|timeout|deadline|duration|age|ttl|grace|seconds|time|moment")

every_script = every("script", SCRIPTS.values())


def code_of(text: str) -> str:
    """Without comments and string literals."""
    return re.sub(r"'(?:[^'\\]|\\.)*'", "''", re.sub(r"--.*", "", text))


def own_text(script: Script) -> str:
    """The file that has its contract and body, which may be another operation's."""
    shared = header(FILES[f"{script.name}.lua"], "body") or [script.name]
    return FILES[f"{shared[0]}.lua"]


def header(text: str, field: str) -> list[str]:
    return re.findall(rf"^-- {field}: (.*)$", text, re.MULTILINE)


def known_keys() -> set[str]:
    """Names in the table of keys.py and in the sentence above it."""
    doc = key_table.__doc__ or ""
    per_queue = re.findall(r"^(\w+) +(?:hash|zset|list|set) ", doc, re.MULTILINE)
    return {"server", "queues", *per_queue}


def code_by_queue(text: str) -> str:
    """The code without the loop over the queues of a call, parts included."""
    return text.partition("\nlocal replies, at, parts = ")[0]


def used(text: str) -> str:
    """The same without the lines that declare keys and arguments."""
    return code_of(code_by_queue(text).split("first, last\n", 1)[1])


def key_arguments(text: str) -> Iterator[tuple[str, str]]:
    """Command and key of every redis.call."""
    for match in re.finditer(r"redis\.p?call\(([^,()]+)(?:,\s*([^,()]*(?:\[[^\]]*\])?))?", re.sub(r"--.*", "", text)):
        yield match[1].strip("'"), (match[2] or "").strip()


# -- headers -------------------------------------------------------------------------------------------------------


def test_every_file_is_loaded_or_included() -> None:
    included = {name for text in FILES.values() for line in header(text, "include") for name in line.split()}
    assert {f"_{name}.lua" for name in included} == set(PARTS)
    assert {f"{name}.lua" for name in SCRIPTS} == FILES.keys() - set(PARTS)


@every("name", FILES)
def test_every_file_says_what_it_is_for(name: str) -> None:
    (purpose,) = header(FILES[name], "purpose")
    assert len(purpose) > 10


@every_script
def test_header_has_one_line_of_each(script: Script) -> None:
    text = own_text(script)
    assert [len(header(text, field)) for field in ("purpose", "KEYS", "ARGV")] == [1, 1, 1]
    assert len(header(text, "include")) <= 1
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
    assert set(re.findall(r"return \{'([A-Z]+)'", script.body)) == set(script.replies)
    assert len(script.replies) == len(header(own_text(script), "reply"))


@every_script
def test_every_value_of_a_reply_is_understood(script: Script) -> None:
    """A list has the names of its values before its semicolon; words that are no values stand after one."""
    for line in header(own_text(script), "reply"):
        lists = re.findall(r"\[([^\]]*)\]", line)
        words = re.sub(r"\[[^\]]*\]", "list", line).partition(";")[0].split()[1:]
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
    for status, values in re.findall(r"return \{'([A-Z]+)'((?:, [^{}\n]*)?)\}", script.body):
        without_calls = re.sub(r"\([^()]*\)", "", re.sub(r"\([^()]*\([^()]*\)[^()]*\)", "", values))
        assert without_calls.count(",") == len(script.replies[status]), status


@every_script
def test_replies_are_known_to_python(script: Script) -> None:
    assert set(script.replies) <= {status.value for status in Status}


@every_script
def test_every_return_names_its_status(script: Script) -> None:
    """A reply without a status would be BROKEN."""
    for statement in re.findall(r"^(?:if .* then )?return (.*?)(?: end)?$", code_by_queue(script.body), re.MULTILINE):
        assert re.match(r"\{'[A-Z]+'", statement), statement


@every_script
def test_declared_keys_are_used(script: Script) -> None:
    unused = {name for name in script.keys if not re.search(rf"\b{name}\b", used(script.body))}
    assert not unused


@every_script
def test_declared_arguments_are_used(script: Script) -> None:
    gated = "gate" in " ".join(header(own_text(script), "include")).split()
    unused = {name for name in script.arguments if not re.search(rf"\b{name}\b", used(script.body))}
    assert not unused or not gated


@every_script
def test_keys_that_are_used_are_declared(script: Script) -> None:
    """An undeclared one would be a global, so nil."""
    mentioned = set(re.findall(r"(?<![.\w])\w+", used(script.body))) & known_keys()
    assert mentioned <= set(script.keys)


@every_script
def test_no_call_touches_an_undeclared_key(script: Script) -> None:
    """Only declared keys are touched, so that all of them are known before the script runs."""
    calls = [(command, name) for command, name in key_arguments(script.body) if command not in ("TIME", "PUBLISH")]
    assert calls
    assert {name for _, name in calls} <= {*script.keys, *KEY_VARIABLES}


@every_script
def test_variables_that_stand_for_keys_stand_for_declared_ones(script: Script) -> None:
    listed = re.findall(r"ipairs\(\{([^}]*)\}\)|\b[QCDX] = \{([^}]*)\}", used(script.body))
    names = {name.strip() for lists in listed for part in lists for name in part.split(",") if name.strip()}
    names |= set(re.findall(r"\beach_in\((\w+), ''", used(script.body)))
    names |= set(re.findall(r"\bwrite\('\w+', (\w+)", script.body))
    names |= set(re.findall(r"\[(\w+)\] = list\(\)", script.body))
    assert names - KEY_VARIABLES <= set(script.keys)


# -- what scripts may do -------------------------------------------------------------------------------------------


@every_script
def test_gate_stands_before_everything_else(script: Script) -> None:
    """Rule 3: nothing is read or created on the way.  Only servers outside the view are enrolled and reserved."""
    if script.name in OUTSIDE_THE_VIEW:
        return
    assert header(own_text(script), "include")[0].split()[0] == "gate"
    assert set(script.replies) >= GATE_STATUSES
    first_calls = list(key_arguments(script.body))[:2]
    assert [command for command, _ in first_calls] == ["HMGET", "HSET"]
    assert script.body.index("'STALE'") < script.body.index("redis.call('HSET'")


@every_script
def test_only_scripts_that_add_items_are_refused_when_memory_is_full(script: Script) -> None:
    """Memory pressure: scripts that free memory are flagged allow-oom, so that a full queue can drain."""
    expected = "#!lua" if script.name in MAY_RUN_OUT_OF_MEMORY else "#!lua flags=allow-oom"
    assert script.shebang == FILES[f"{script.name}.lua"].splitlines()[0] == expected


@every("name", FILES)
def test_nothing_is_left_to_chance_or_to_another_clock(name: str) -> None:
    code = code_of(FILES[name])
    assert not re.search(r"\b(os|io|random|randomseed|require|loadstring|dofile)\b", code)
    assert ("'TIME'" in FILES[name]) == (name == "_clock.lua")


@every_script
def test_locals_are_few_enough(script: Script) -> None:
    """Lua counts by function; most are the chunk's own."""
    own = [
        names.split(",") for names in re.findall(r"^local (?:function )?([\w, ]+)", code_of(script.body), re.MULTILINE)
    ]
    assert sum(map(len, own)) < MAX_LOCALS - MAX_LOCALS_WITHIN


@every_script
def test_no_global_is_assigned(script: Script) -> None:
    """Redis refuses that at run time; here it is found in every branch."""
    code = re.sub(r"\{[^{}]*\}", "{}", used(script.body))
    declared = {
        name.strip()
        for names in re.findall(
            r"\blocal (?:function )?([\w, ]+)|\bfor ([\w, ]+) (?:in|=)|function ?\w*\(([\w, ]*)\)", code
        )
        for part in names
        for name in part.split(",")
    }
    targets = re.findall(r"^\s*([a-z_]\w*(?:, [a-z_]\w*)*) = ", code, re.MULTILINE)
    assigned = {name for target in targets for name in target.split(", ")}
    fields = set(re.findall(r"^ +(\w+) = \{", code, re.MULTILINE))
    assert assigned - declared - fields - {*script.keys, *script.arguments, "first"} == set()


# -- as Python sends them ------------------------------------------------------------------------------------------


@every_script
def test_text_with_and_without_flags(script: Script) -> None:
    """Servers before Redis 7 do not know the first line."""
    assert script.text() == f"{script.shebang}\n{script.text(flags=False)}"
    assert not script.text(flags=False).startswith("#!")
    assert sha(script.text()) != sha(script.text(flags=False))


def test_sha_is_what_redis_calls_a_script() -> None:
    assert sha("return 1") == "e0e1f9fabfc9d4800c877a703b823ac0578ff8db"


@every_script
def test_keys_are_sent_in_the_order_of_the_header(script: Script) -> None:
    sent = script_keys("shop", "emails", script.name)
    assert [name.rpartition(":")[2] for name in sent] == list(script.keys)
    assert script.body.startswith(f"local {', '.join(script.keys)} = unpack(KEYS)\n")


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
    for names, numbers in re.findall(r"^local ([\w, ]+) = ([\d, ]+)", FILES[f"_{part}.lua"], re.MULTILINE):
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
        at = lua_number("record", name)
        assert packed[at - 1 : at - 1 + len(field)] == field, name
    assert lua_number("record", "HEAD_LENGTH") == records.VERSION_BYTES.stop
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
    assert lua_number("index", "PRIORITIES") == len(records.PRIORITIES)


def test_scores_of_all_priorities_are_exact() -> None:
    """A score is a double: whole numbers up to 2^53; and a due time of ten years from now fits into one step."""
    step, first = lua_number("index", "PRIORITY_STEP"), lua_number("index", "FIRST_MOMENT")
    assert len(records.PRIORITIES) * step <= 2**53
    year_us = 366 * 86_400 * 1_000_000
    assert first + step > 2_030 * 365.25 * 86_400e6 - 1_970 * 365.25 * 86_400e6 + 10 * year_us
