"""The table of operations: checks, rules, and the signatures that follow it."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any, get_args, get_type_hints

import pytest

from zkrq import Claim, ConfigError, Queue, Receipt
from zkrq.base.limits import DeadLetters, Limits, QueueSettings
from zkrq.base.progress import WorkProgress
from zkrq.base.results import Result, ResultState
from zkrq.client.consumers import Consumer
from zkrq.client.groups import Group
from zkrq.client.inspection import Sizes, Statistics
from zkrq.client.items import EndedItem, EndState, Item, ItemState
from zkrq.operations.claims import CLAIMED
from zkrq.operations.items import ENDED, ENDS, FATES, ITEM, RESULT_OF_ITEM, STATE, WORK_PROGRESS
from zkrq.operations.kinds import Choice, Count, Flag, Header, Many, Moment, Number, Past, Seconds, Text, Texts
from zkrq.operations.labels import Labels
from zkrq.operations.operation import Parameter, Section, Wording
from zkrq.operations.push import PUSH, PUSH_MEMBER, RECEIPT, ManyOptions, MemberOptions, PushOptions
from zkrq.operations.queues import CONSUMER, FIGURES, GROUP_FIGURES
from zkrq.operations.schedules import LEFT_OUT, OPTIONS
from zkrq.operations.settings import CHANGE_SETTINGS, CHANGED_LIMITS, STORED
from zkrq.operations.table import OPERATIONS, PLACES


def test_a_push_in_python_has_the_options_of_the_table() -> None:
    push: Callable[..., object] = Queue[Any].push
    signature = inspect.signature(push).parameters
    options = {name: each.default for name, each in signature.items() if each.kind is each.KEYWORD_ONLY}
    assert options == PUSH.defaults
    assert get_type_hints(PushOptions).keys() == PUSH.defaults.keys()
    assert not [name for name in options if f"``{name}``" not in (push.__doc__ or "")]


def test_a_push_of_a_member_has_the_options_of_the_table() -> None:
    assert get_type_hints(MemberOptions).keys() == PUSH_MEMBER.defaults.keys()
    with pytest.raises(ConfigError, match="name and id exclude each other"):
        PUSH_MEMBER.check({"name": "a", "id": "b"})
    for bad in ("", "x" * 64, "a/b", ".a", 7):
        with pytest.raises(ConfigError, match="name"):
            PUSH_MEMBER.check({"name": bad})
    assert PUSH_MEMBER.check({"name": "x" * 63, "id": None}) == {"name": "x" * 63}


def test_a_push_of_many_has_the_options_of_its_type() -> None:
    many: Callable[..., object] = Queue[Any].push_many
    names = {name for name, each in inspect.signature(many).parameters.items() if each.kind is each.KEYWORD_ONLY}
    assert get_type_hints(ManyOptions).keys() == names <= PUSH.defaults.keys()


def test_a_receipt_has_the_fields_of_the_table() -> None:
    assert RECEIPT.names == Receipt._fields


def test_what_says_no_more_than_its_absence_is_left_out() -> None:
    assert PUSH.check(dict(PUSH.defaults)) == {}
    assert PUSH.check({"priority": 0, "delay": 0, "replace": False}) == {"delay": 0.0}
    assert PUSH.check({"delay": timedelta(minutes=1), "key": "k", "replace": True}) == {
        "delay": 60.0,
        "key": "k",
        "replace": True,
    }


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"delay": 1, "at": datetime(2040, 1, 1, tzinfo=UTC)}, "exclude each other"),
        ({"ttl": 5, "delay": 5}, "not longer than the delay of 5 s"),
        ({"replace": True}, "replace=True needs a key: key='user-42'"),
        ({"key_window": 5.0}, "key_window needs a key: key='user-42'"),
        ({"at_latest": 5.0, "key": "k"}, "at_latest needs a replace: replace=True"),
        ({"at_latest": 5.0, "key": "k", "replace": True, "delay": 6}, "at_latest is 5 s, less than the delay of 6 s"),
        ({"at_latest": 0.0, "key": "k", "replace": True}, "at_latest is 0"),
        ({"key_window": 5.0, "key": "k", "replace": True}, "exclude each other"),
        ({"id": "zkrq-x"}, "only ids that zkrq makes"),
        ({"priority": 10}, "at most 9"),
        ({"priority": None}, "must be an int"),
    ],
)
def test_what_contradicts_is_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        PUSH.check(given)


class _Flags(Wording):
    def name(self, name: str) -> str:
        return f"--{name}"

    def given(self, name: str, value: Any) -> str:
        return f"--{name}" if value is True else f"--{name} {value}"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"replace": True}, "--replace needs a key: --key user-42"),
        ({"key_window": 5.0, "key": "k", "replace": True}, "use --key_window alone, or --replace with a delay"),
        ({"delay": 1, "at": datetime(2040, 1, 1, tzinfo=UTC)}, "--delay and --at exclude each other"),
        ({"at": datetime(9040, 1, 1, tzinfo=UTC)}, "--at is "),
        ({"ttl": 5, "delay": 5}, "--ttl is 5 s"),
        ({"id": "zkrq-x"}, "--id is 'zkrq-x'"),
        ({"group": ""}, "--group is ''"),
        ({"priority": 10}, "--priority is 10"),
    ],
)
def test_a_face_words_what_is_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(text)):
        PUSH.check(given, _Flags())


@pytest.mark.parametrize(
    ("kind", "word", "value"),
    [
        (Seconds(), "1.5", 1.5),
        (Seconds(), "1h30m", 5400.0),
        (Past(), "2040-01-01T00:00:00+00:00", datetime(2040, 1, 1, tzinfo=UTC)),
        (Count(), "7", 7),
        (Number(0, 1), "0.5", 0.5),
        (Flag(), "yes", True),
        (Flag(), "False", False),
        (Moment(), "2040-01-01T00:00:00+00:00", datetime(2040, 1, 1, tzinfo=UTC)),
        (Texts(), "a=b=c", {"a": "b=c"}),
        (Header(), "a=b=c", ("a", "b=c")),
        (Text(5), "äöüß", "äöüß"),
        (Text(10), "k", "k"),
        (Choice(("a", "b")), "b", "b"),
        (Many(Count(), 3), "1,2", [1, 2]),
    ],
)
def test_a_word_is_read_as_a_value(kind: Any, word: str, value: object) -> None:
    assert kind.check("it", kind.parse(word)) == value


def test_a_word_may_say_how_long_ago_a_moment_was() -> None:
    moment = Past().parse("2h")
    assert moment <= datetime.now(UTC) - timedelta(hours=2)
    for wrong in ("soon", "1e300", "nan"):
        with pytest.raises(ValueError, match="or how long ago"):
            Past().parse(wrong)


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (Seconds(1, 5), 0.5, "at least 1 s and at most 5 s"),
        (Seconds(1, 5), float("nan"), "it is nan"),
        (Seconds(1, 5), "3", "must be seconds"),
        (Seconds(positive=True), 0, "more than 0"),
        (Number(0, 1), 2, "at most 1"),
        (Number(0, 1), True, "must be a number"),
        (Choice(("a", "b")), "c", "must be one of 'a', 'b'"),
        (Many(Count(), 1), [1, 2], "the number of it"),
        (Text(3, 2), "ä", "it has 1 characters: must have at least 2, at most 3"),
        (Text(3), "äöüß", "it has 4 characters"),
        (Text(3), 5, "must be a str"),
        (Header(), ("campaign", 5), "must be a str"),
    ],
)
def test_a_value_of_another_kind_is_refused(kind: Any, value: object, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        kind.check("it", value)


LABELS = Labels(PUSH, "label", {"id": "the framework has ids of its own"}, prefix="zkrq_")


def test_labels_are_read_as_values_or_as_texts() -> None:
    told = {"zkrq_key": "k", "zkrq_delay": "1.5", "zkrq_priority": 7, "zkrq_ttl": None, "zkrq_headers": "{'a': 'b'}"}
    assert LABELS.read({**told, "zkrq_id": "x", "key": "y"}) == {
        "key": "k",
        "delay": 1.5,
        "priority": 7,
        "headers": {"a": "b"},
    }


@pytest.mark.parametrize(
    ("label", "told", "text"),
    [
        ("delay", "soon", "the label zkrq_delay is 'soon', must be seconds"),
        ("priority", "x", "the label zkrq_priority is 'x', "),
        ("replace", "perhaps", "must be true or false"),
        ("headers", "{1", "the label zkrq_headers is '{1', "),
        ("headers", "[1]", "must be a dict of texts"),
        ("headers", 1, "must be a dict of texts"),
        ("at", "tomorrow", "the label zkrq_at is 'tomorrow', "),
    ],
)
def test_a_label_that_cannot_be_read_is_refused(label: str, told: object, text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(text)):
        LABELS.read({f"zkrq_{label}": told})


def test_the_parameters_that_need_another_are_known() -> None:
    assert PUSH.needing("key") == {"replace", "key_window", "at_latest"}
    assert PUSH.needing("group") == frozenset()


@pytest.mark.parametrize(("kind", "word"), [(Flag(), "perhaps"), (Texts(), "a"), (Texts(), "=b"), (Count(), "x")])
def test_a_word_that_is_none_is_refused(kind: Any, word: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        kind.parse(word)


def test_what_a_result_is_in_python_is_in_the_table() -> None:
    assert set(ITEM.names) == {each.name for each in fields(Item)} - {"payload", "saved_bytes"}, "which are contents"
    assert ENDED.names == tuple(each.name for each in fields(EndedItem))
    assert set(CONSUMER.names) == set(Consumer._fields)
    assert GROUP_FIGURES.names == Group._fields
    assert set(FIGURES.names) == (set(Statistics._fields) | set(Sizes._fields) | {"limited"}) - {"sizes"}
    assert set(STORED.names) == set(QueueSettings._fields)
    assert set(WORK_PROGRESS.names) == {each.name for each in fields(WorkProgress)}
    renamed = {"has_value": "has_result", "value": "result"}
    assert set(RESULT_OF_ITEM.names) == {renamed.get(each.name, each.name) for each in fields(Result)}
    told = {name for name, each in vars(Claim).items() if isinstance(each, property)}
    assert set(CLAIMED.names) == (told - {"settled", "holds", "lost", "token"}) | {"item", "fencing"}


def test_words_of_states_are_those_of_python() -> None:
    assert get_args(ItemState) == STATE.words
    assert get_args(EndState) == ENDS
    assert {each.value for each in ResultState} == set(FATES)


def test_a_result_is_told_as_json_has_it() -> None:
    letter = DeadLetters(5, timedelta(minutes=1))
    figures = Statistics(Sizes(1, 2, 3, 4), False, None, 0, 0, 0, 0, limits=Limits(3, (50, 2.0)), dead_letters=letter)
    told = FIGURES.tell(figures)
    assert json.loads(json.dumps(told)) == told
    assert (told["ready"], told["dead"], told["limits"]) == (1, 4, {"concurrency": 3, "rate": 50, "seconds": 2.0})
    assert told["dead_letters"] == {"max_count": 5, "max_age": 60.0, "expired": False}
    ended = ENDED.tell(EndedItem("a", "done", datetime(2040, 1, 1, tzinfo=UTC), 1.5, None, 1, "k", None, None))
    assert (ended["ended_at"], ended["took"], ended["owner"]) == ("2040-01-01T00:00:00+00:00", 1.5, None)


def test_what_says_nothing_differs_from_what_is_left_out() -> None:
    """Null takes a setting away."""
    limits = {"concurrency": None, "rate": None}
    assert CHANGE_SETTINGS.check({"limits": limits, "history": 0, "max_size": None}) == {
        "limits": limits,
        "history": 0,
        "max_size": None,
    }
    assert CHANGE_SETTINGS.check({"limits": None}) == {"limits": None}
    with pytest.raises(ConfigError, match="seconds is the time of a rate"):
        CHANGE_SETTINGS.check({"limits": {"seconds": 5}})
    assert CHANGED_LIMITS.by_name["rate"].help.endswith("null: no limit. Left out: as it is.")


def test_every_sentence_is_one() -> None:
    for operation in OPERATIONS.values():
        told = [operation.sentence, *(each.sentence for each in operation.parameters)]
        told += [] if operation.result is None else [operation.result.sentence]
        assert not [each for each in told if not each.endswith(".")], operation.name
        assert set(operation.places) <= {*PLACES, *operation.by_name}


def named_in(parameter: Parameter) -> set[str]:
    """What a parameter's texts have as code: where that is the name of a parameter, a command shows its flag."""
    return set(re.findall(r"`([^`]+)`", f"{parameter.sentence} {parameter.absent} {parameter.null}"))


@pytest.mark.parametrize("operation", [*OPERATIONS.values(), OPTIONS], ids=lambda operation: operation.name)
def test_no_sentence_of_a_parameter_shows_a_flag_by_mistake(operation: Section) -> None:
    """Neither its own name is meant, nor a word that is one of its values and also the name of another parameter."""
    for each in operation.parameters:
        values = each.kind.words if isinstance(each.kind, Choice) else ()
        assert not named_in(each) & {each.name, *(operation.by_name.keys() & values)}, each.name


def test_no_sentence_of_a_schedule_names_an_option_that_it_does_not_have() -> None:
    for each in OPTIONS.parameters:
        assert not named_in(each) & LEFT_OUT.keys(), each.name
