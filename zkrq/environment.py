"""Read the settings of ``connect()`` from environment variables: each stands in for an argument that is not given.

The argument comes first, then the variable ``ZKRQ_<SETTING>``, then the default.  An empty variable counts as not set.
The command line uses the same table.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from zkrq.addresses import join_hosts, name_servers
from zkrq.checks import check_login
from zkrq.errors import ConfigError
from zkrq.settings import Settings

_FLAGS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def read_flag(text: str) -> bool:
    """Read ``1`` or ``0``, or the usual words.  Raises ``ValueError``."""
    flag = _FLAGS.get(text.strip().lower())
    if flag is None:
        raise ValueError(text)
    return flag


def read_servers(text: str) -> Mapping[str, str] | list[str]:
    """Read ``url,url`` or ``name=url,name=url``."""
    urls = [url.strip() for url in text.split(",") if url.strip()]
    named = {name: url for name, found, url in (url.partition("=") for url in urls) if found and ":" not in name}
    return named if len(named) == len(urls) else urls


def read_login(text: str) -> tuple[str, str]:
    """Read ``user:password``."""
    user, _, password = text.partition(":")
    return user, password


@dataclass(frozen=True, slots=True)
class Variable:
    """Describe how the text of a setting is written, read (``ValueError``) and checked (``ConfigError``)."""

    form: str
    read: Callable[[str], object]
    check: Callable[[Any], object]


def _setting(name: str, form: str, read: Callable[[str], object]) -> Variable:
    return Variable(form, read, lambda value: Settings(**{name: value}))


VARIABLES: Mapping[str, Variable] = {
    "redis": Variable("url,url,url or name=url,name=url,name=url", read_servers, name_servers),
    "zookeeper": Variable("host:port,host:port,host:port", str, join_hosts),
    "zookeeper_auth": Variable("user:password", read_login, partial(check_login, "zookeeper_auth")),
    "namespace": _setting("namespace", "a name", str),
    "found": _setting("found", "1 or 0", read_flag),
    "min_replicas": _setting("min_replicas", "a whole number", int),
    "description": _setting("description", "a text", str),
    "session_timeout": _setting("session_timeout", "seconds", float),
    "command_timeout": _setting("command_timeout", "seconds", float),
    "operation_timeout": _setting("operation_timeout", "seconds", float),
}
"""Settings that may come from the environment, by the name of the argument."""


def variable_of(setting: str) -> str:
    """Return the name of a setting's environment variable."""
    return f"ZKRQ_{setting.upper()}"


def complete(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are given, i.e. not None, and those of the others that the environment has.

    Raises ``ConfigError`` that names the variable.
    """
    values = {name: _from_environment(name) if value is None else value for name, value in given.items()}
    return {name: value for name, value in values.items() if value is not None}


def _from_environment(setting: str) -> object:
    variable, text = variable_of(setting), os.environ.get(variable_of(setting))
    if not text:
        return None
    described = VARIABLES[setting]
    try:
        value = described.read(text)
    except ValueError as error:
        raise ConfigError(f"the environment variable {variable} is {text!r}: {described.form} expected") from error
    try:
        described.check(value)
    except ConfigError as error:
        raise ConfigError(f"the environment variable {variable}: {error}") from error
    return value
