"""Settings of a client and of a queue: their defaults, and what is refused."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

import zkrq
from tests.every import every
from zkrq.base.errors import ConfigError
from zkrq.base.settings import (
    AS_DECLARED,
    DEFAULTS,
    MAX_DESCRIPTION,
    MAX_OPERATION_TIMEOUT,
    QUEUE_DEFAULTS,
    ProgramOptions,
    QueueOptions,
    Settings,
)


@every(
    ("name", "value"),
    [
        ("namespace", ""),
        ("namespace", "a b"),
        ("namespace", 7),
        ("min_replicas", 0),
        ("min_replicas", True),
        ("description", 7),
        ("session_timeout", 0),
        ("session_timeout", "10"),
        ("command_timeout", -1),
        ("command_timeout", float("nan")),
        ("operation_timeout", 0),
        ("operation_timeout", MAX_OPERATION_TIMEOUT * 1.001),
    ],
)
def test_bad_setting_of_a_client_is_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        Settings(**{name: value})


@every(
    ("name", "value"),
    [
        ("claim_timeout", 0),
        ("claim_timeout", "30"),
        ("retry", 3),
        ("dead_letters", 100),
        ("max_size", 0),
        ("max_payload_bytes", 0),
    ],
)
def test_bad_setting_of_a_queue_is_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        ProgramOptions(**{name: value})


def test_longest_operation() -> None:
    assert Settings(operation_timeout=MAX_OPERATION_TIMEOUT).operation_timeout == MAX_OPERATION_TIMEOUT


def test_replicas_that_these_servers_cannot_give() -> None:
    settings = Settings(min_replicas=3)
    settings.check_servers(3)
    with pytest.raises(ConfigError, match="min_replicas is 3: must be at least 1, at most 2"):
        settings.check_servers(2)
    Settings().check_servers(1)


def test_description() -> None:
    assert Settings(description="mailer").describe() == "mailer"
    assert Settings(description="x" * 1000).describe() == "x" * MAX_DESCRIPTION
    for none in (None, ""):
        assert Settings(description=none).describe().endswith(f":{os.getpid()}")


@pytest.mark.parametrize(
    "entry",
    [zkrq.embedded, zkrq.testing.cluster, zkrq.testing.Servers.connect],
    ids=lambda entry: entry.__qualname__,
)
def test_public_arguments_have_the_defaults_of_the_settings(entry: Callable[..., object]) -> None:
    """A test's client is described as one: its only default of its own."""
    given = {name: each.default for name, each in inspect.signature(entry).parameters.items()}
    defaults = {each.name: each.default for each in fields(Settings)}
    shared = given.keys() & defaults.keys()
    assert "min_replicas" in shared
    own = {"description"} if given.get("description") == "test" else set[str]()
    assert {name: given[name] for name in shared - own} == {name: defaults[name] for name in shared - own}


def test_a_queue_without_options_has_the_defaults_of_its_settings() -> None:
    given = inspect.signature(zkrq.Cluster.queue).parameters
    assert given["codec"].default is AS_DECLARED
    of_the_type = {"codec", "results"}  # which the type of the queue depends on
    assert of_the_type | QueueOptions.__annotations__.keys() == {each.name for each in fields(ProgramOptions)}
    assert QUEUE_DEFAULTS.updated({"codec": AS_DECLARED}) == QUEUE_DEFAULTS


def test_an_option_that_a_queue_has_not_is_named_beside_those_that_it_has() -> None:
    with pytest.raises(TypeError, match=r"a queue has no option 'max_sice', only claim_timeout, codec, .*max_size"):
        QUEUE_DEFAULTS.updated({"max_sice": 3})


def test_arguments_that_the_environment_may_stand_in_for_have_no_default() -> None:
    for entry in (zkrq.connect, zkrq.found):
        given = inspect.signature(entry).parameters
        assert all(each.default is None for each in given.values())


def test_defaults_are_values() -> None:
    assert Settings() == DEFAULTS
    assert ProgramOptions() == QUEUE_DEFAULTS
