"""Levels: which views a release reads and writes, what it says of others; nothing of a later one is dropped."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.levels import LATER, RELEASE, Later, later_release
from tests.unit.views import view_of, views
from zkrq.base.version import __version__
from zkrq.cli.upgrade import raised
from zkrq.protocol import shards
from zkrq.protocol.levels import (
    FIRST_LEVEL,
    RELEASES,
    SPOKEN,
    UNNAMED,
    AtLevel,
    ClientInfo,
    Feature,
    Levels,
    OtherLevel,
    missing,
)
from zkrq.protocol.levels import decode as decode_client
from zkrq.protocol.levels import encode as encode_client
from zkrq.protocol.shards import FIRST, ShardMap, ShardName, joined
from zkrq.protocol.view import View, accuse, decode, encode, evict, found, plan, raise_level, recover

texts = st.text(max_size=12)


def test_this_release_speaks_its_level_and_the_one_before() -> None:
    """And no release is named twice: a level is closed when its release is."""
    assert SPOKEN.highest == max(RELEASES)
    assert SPOKEN.lowest <= max(FIRST_LEVEL, SPOKEN.highest - 1)
    assert [*RELEASES] == [*range(FIRST_LEVEL, SPOKEN.highest + 1)]
    assert list(RELEASES.values()) == sorted({*RELEASES.values()})
    assert all(feature.level in SPOKEN for feature in Feature)


def test_a_raised_view_is_read_as_it_was_written() -> None:
    with later_release():
        raised = raise_level(view_of("a", "b"), LATER, RELEASE, by="w")
        assert decode(encode(raised)) == raised
    with pytest.raises(OtherLevel):
        decode(encode(raised))


def test_the_command_says_what_it_has_raised_and_who_is_refused() -> None:
    late = {"session": UNNAMED._replace(description="mailer", version="0.1.9")}
    told = raised(1, 2, RELEASES[2], late)
    assert told.text.startswith("raised from level 1 to level 2, that of zkrq 0.3.0; it brings saved states, flows, ")
    assert told.text.endswith("; 1 client refused from now on: mailer (0.1.9)")
    assert told.value["refused"] == ["mailer (0.1.9)"]
    assert raised(2, 2, RELEASES[2], {}).text == "level 2 is active, as before"


def test_raising_a_level_is_a_new_epoch_and_is_never_undone() -> None:
    """Without the new epoch a client that was paused meanwhile would go on under the view that it has."""
    view = view_of("a", "b")
    raised = raise_level(view, 2, "0.2.0", by="w")
    assert (raised.level, raised.raised_by, raised.epoch, raised.by) == (2, "0.2.0", view.epoch + 1, "w")
    assert raise_level(raised, 1, "0.1.0", by="x") is raised
    assert raise_level(raised, 2, "0.2.1", by="x") is raised


@pytest.mark.parametrize("level", [0, SPOKEN.highest + 1, 99])
def test_a_view_of_an_unknown_level_is_refused_with_both_releases(level: int) -> None:
    content = json.loads(encode(replace(view_of("a"), level=2, raised_by="9.9.9"))) | {"level": level}
    with pytest.raises(OtherLevel) as refusal:
        decode(json.dumps(content).encode())
    text = str(refusal.value)
    assert f"level {level}" in text
    assert "9.9.9" in text
    assert RELEASES[SPOKEN.highest] in text
    assert ("install zkrq 9.9.9" if level > SPOKEN.highest else "zkrq upgrade --level") in text
    assert "nothing was written" in text


@given(views(), st.dictionaries(st.text(min_size=1, max_size=5).map("x-{}".format), st.integers() | texts, min_size=1))
def test_fields_of_a_later_release_are_kept_by_every_change(view: View, later: dict[str, int | str]) -> None:
    read = decode(json.dumps(json.loads(encode(replace(view, unknown={}))) | later).encode())
    assert read.unknown == later
    one = next(iter(read.members))
    changes = [
        accuse(read, [one], client="me"),
        recover(read, read.members, by="w", now_ms=7),
        raise_level(read, 2, "0.2.0", by="w"),
        *([evict(read, [one], by="w", now_ms=7)] if len(read.members) > 1 else []),
    ]
    for changed in changes:
        assert json.loads(encode(changed)).items() >= later.items()


def test_fields_of_the_map_are_kept_by_every_change() -> None:
    data = json.loads(shards.encode(joined(ShardMap(), ShardName("b"), "views/b", "w"))) | {"later": [1]}
    known = shards.decode(json.dumps(data).encode())
    assert known.unknown == {"later": [1]}
    changed = shards.opened(known, ShardName("b"), by="x")
    assert changed.number == known.number + 1
    assert json.loads(shards.encode(changed))["later"] == [1]
    assert FIRST in shards.decode(shards.encode(changed)).shards


def test_a_namespace_is_founded_at_the_latest_level_or_at_that_of_its_first_shard() -> None:
    lives, urls = view_of("a").members, view_of("a").servers
    assert found(plan(lives, urls, min_replicas=1, by="w"), by="x").level == SPOKEN.highest
    assert found(plan(lives, urls, min_replicas=1, by="w", level=1), by="x").level == 1


@pytest.mark.parametrize("feature", [*Feature, *Later])
def test_a_missing_feature_names_the_level_and_the_step(feature: AtLevel) -> None:
    assert missing(feature, feature.level) is None
    with later_release():
        text = missing(feature, feature.level - 1)
    assert text
    release = (RELEASES | {LATER: RELEASE})[feature.level]
    for part in (f"level {feature.level}", f"level {feature.level - 1}", release, "`zkrq upgrade`"):
        assert part in text


@given(texts, texts, texts, st.integers(0, 9), st.integers(0, 9), texts)
def test_an_entry_is_read_as_it_was_written(
    description: str, host: str, version: str, lowest: int, highest: int, library: str
) -> None:
    info = ClientInfo(description, host, version, Levels(lowest, highest), library)
    assert decode_client(encode_client(info)) == info
    assert decode_client(json.dumps(json.loads(encode_client(info)) | {"later": 1})) == info


@given(st.text() | st.sampled_from(["[]", "{}", '{"levels":1}', '{"levels":[1]}', "null", '{"levels":[1,2]}']))
def test_anything_else_is_of_a_client_that_names_nothing(text: str) -> None:
    assert decode_client(text) == UNNAMED


def test_this_release_has_a_level() -> None:
    """The version is raised with the release; until then that of the release before is read."""
    assert __version__ in RELEASES.values() or __version__ > RELEASES[SPOKEN.highest]
