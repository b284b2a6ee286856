"""What the page says before servers are changed, and which forms it takes."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import urlencode

import pytest

from tests.every import every
from tests.unit.page_values import GOOD, NOON
from zkrq.base.errors import ConfigError
from zkrq.client.inspection import Sizes
from zkrq.protocol.view import Life, ServerId, View
from zkrq.serve.server_page import Wanted, done, left, question, read
from zkrq.serve.shown import NO_FIGURES
from zkrq.serve.watching import Look

NAMES = [ServerId(f"redis-{number}") for number in (1, 2, 3)]
URL = "redis://10.0.0.4:6379"
THREE = View(
    1,
    {name: Life("run", "generation") for name in NAMES[1:]},
    {},
    {},
    {name: f"redis://{name}" for name in NAMES},
    min_replicas=2,
    by="",
)
"""The first server is dead."""
COPIED = "1,200 items copied, with those of which only the end is remembered"
FOUND, STOP = "those that run have found the change by themselves.", "The Redis of redis-1 may be stopped."
LOOK = Look(GOOD, NOON, {"a": NO_FIGURES._replace(sizes=Sizes(5, 4, 3, 2)), "b": NO_FIGURES})


@every(
    ("wanted", "says"),
    [
        (
            Wanted("replace", "redis-1", URL),
            (
                "14 items of 2 queues are copied to 10.0.0.4:6379",
                "redis-1 is out of sync. It is removed once the new one is in sync",
                "Then 3 of 3 servers are in sync; a push needs 2: 1 of them may fail before pushes stop.",
            ),
        ),
        (
            Wanted("add", "", URL),
            ("All that it holds of this namespace is wiped", "Then 3 of 4 servers are in sync"),
        ),
        (
            Wanted("remove", "redis-1"),
            ("redis-1 is out of sync. It is removed, and", "Then 2 of 2 servers", "if one of them fails, pushes stop"),
        ),
        (Wanted("remove", "redis-2"), ("redis-2 is in sync. It is removed, and", "Then 1 of 2 servers")),
    ],
)
def test_a_change_says_in_figures_what_it_does(wanted: Wanted, says: tuple[str, ...]) -> None:
    told = " ".join(question(wanted, THREE, LOOK))
    assert all(text in told for text in says), told
    assert question(wanted, replace(THREE), LOOK) == question(wanted, THREE, LOOK)


@every(
    ("wanted", "name", "was", "to_do"),
    [
        (
            Wanted("replace", "redis-1", URL),
            "redis-4",
            f"redis-1 was replaced by redis-4 in 40 s, {COPIED}",
            f"Write redis-4={URL} in the place of redis-1 into ZKRQ_REDIS of all programs; {FOUND} {STOP}",
        ),
        (
            Wanted("add", "", URL),
            "10.0.0.4:6379",
            f"10.0.0.4:6379 was added in 40 s, {COPIED}",
            f"Write {URL} into ZKRQ_REDIS of all programs; {FOUND}",
        ),
        (
            Wanted("remove", "redis-1"),
            "",
            "redis-1 was removed",
            f"Take redis-1 out of ZKRQ_REDIS of all programs; {FOUND} {STOP}",
        ),
        (
            Wanted("remove", "b-1", shard="b"),
            "",
            "b-1 was removed",
            "The Redis of b-1 may be stopped.",
        ),
    ],
)
def test_what_was_done_and_what_is_left_to_do_is_said(wanted: Wanted, name: str, was: str, to_do: str) -> None:
    assert done(wanted, name, 40.0, 1200) == was
    assert left(wanted, name) == to_do
    assert "copied" not in done(wanted, name, 40.0, None)


@pytest.mark.parametrize(
    ("verb", "fields", "says"),
    [
        ("add", {}, "URL|url|scheme"),
        ("add", {"url": "http://10.0.0.4"}, "URL|url|scheme"),
        ("add", {"url": "redis://user:secret@10.0.0.4:6379"}, "leave user and password out"),
        ("replace", {"url": URL}, "names no server"),
        ("remove", {"name": " "}, "names no server"),
        ("remove", {str(number): "x" for number in range(20)}, "too many fields"),
    ],
)
def test_a_form_that_says_too_little_or_too_much_is_refused(verb: str, fields: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as error:
        read(verb, urlencode(fields).encode())
    assert "secret" not in str(error.value)


def test_a_form_is_read_and_sent_again_as_it_was() -> None:
    wanted, is_confirmed = read("replace", urlencode({"name": " redis-1 ", "url": URL}).encode())
    assert (wanted, is_confirmed) == (Wanted("replace", "redis-1", URL), False)
    assert read("add", urlencode({"url": "10.0.0.4:6379"}).encode())[0].url == URL, "as servers are shown"
    assert read("replace", urlencode({**wanted.fields, "confirmed": "yes"}).encode()) == (wanted, True)
