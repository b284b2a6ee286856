"""Read the settings of ``connect()`` from environment variables: each stands in for an argument that is not given.

The argument comes first, then the variable ``ZKRQ_<SETTING>``, then the default.  An empty variable counts as not set.
``ZKRQ_<SETTING>_FILE`` names a file that has the text instead, as secrets are given to containers.  The command line
uses the same table.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from zkrq.base.checks import read_duration
from zkrq.base.credentials import LoginFile, Source, parse_logins
from zkrq.base.errors import ConfigError
from zkrq.base.settings import Settings
from zkrq.base.tls import read_tls
from zkrq.client.addresses import join_hosts, name_shards
from zkrq.replication.urls import address, redact

_FLAGS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def read_flag(text: str) -> bool:
    """Read ``1`` or ``0``, or the usual words.  Raises ``ValueError``."""
    flag = _FLAGS.get(text.strip().lower())
    if flag is None:
        raise ValueError(text)
    return flag


_BETWEEN_SERVERS = re.compile(r",(?=\s*(?:$|,|(?:[^,@=?]+=)?(?:redis|rediss|unix)://))")


def read_servers(text: str) -> Mapping[str, str] | list[str]:
    """Read ``url,url`` or ``name=url,name=url``.

    A comma before anything but a server's URL, or its name and URL, is a part of the URL: of a password, as a rule.
    Raises ``ConfigError`` if only some have names.
    """
    urls = [url.strip() for url in _BETWEEN_SERVERS.split(text) if url.strip()]
    named = {name: url for name, found, url in (url.partition("=") for url in urls) if found and "://" not in name}
    if 0 < len(named) < len(urls):
        bare = next(url for url in urls if url not in {f"{name}={url}" for name, url in named.items()})
        raise ConfigError(
            f"{redact(bare)!r} has no name, and others have one: write NAME={redact(bare)}; a server that was added "
            f"without a name is called {address(bare)}"
        )
    return named if len(named) == len(urls) else urls


@dataclass(frozen=True, slots=True)
class Variable:
    """Describe how the text of a setting is written, read (``ValueError``) and checked (``ConfigError``).

    ``read_file``: reads the file that ``ZKRQ_<SETTING>_FILE`` names; None: it has the same text.  ``secret``: no error
    quotes the text.
    """

    form: str
    read: Callable[[str], object]
    check: Callable[[Any], object]
    read_file: Callable[[str], object] | None = None
    secret: bool = False


def _setting(name: str, form: str, read: Callable[[str], object]) -> Variable:
    return Variable(form, read, lambda value: Settings(**{name: value}))


def _login(name: str, **more: bool) -> Variable:
    return Variable("user:password", parse_logins, partial(Source, name, **more), LoginFile, secret=True)


_TLS_FORM = "1 or ca_certs=FILE,certfile=FILE,keyfile=FILE"


def _unchecked(value: object) -> None:
    """Accept what was checked when it was read."""


VARIABLES: Mapping[str, Variable] = {
    "redis": Variable("url,url,url or name=url,name=url,name=url", read_servers, name_shards),
    "redis_auth": _login("redis_auth", nameless=True),
    "redis_tls": Variable(_TLS_FORM, read_tls, _unchecked),
    "zookeeper": Variable("host:port,host:port,host:port", str, join_hosts),
    "zookeeper_auth": _login("zookeeper_auth"),
    "zookeeper_tls": Variable(_TLS_FORM, read_tls, _unchecked),
    "namespace": _setting("namespace", "a name", str),
    "found": _setting("found", "1 or 0", read_flag),
    "min_replicas": _setting("min_replicas", "a whole number", int),
    "description": _setting("description", "a text", str),
    "auto_upgrade": _setting("auto_upgrade", "1 or 0", read_flag),
    "session_timeout": _setting("session_timeout", "seconds", read_duration),
    "command_timeout": _setting("command_timeout", "seconds", read_duration),
    "operation_timeout": _setting("operation_timeout", "seconds", read_duration),
}
"""Settings that may come from the environment, by the name of the argument."""


FILE = "_FILE"
"""End of the name of a variable that names a file."""


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
    described, variable = VARIABLES[setting], variable_of(setting)
    text, path = os.environ.get(variable), os.environ.get(f"{variable}{FILE}")
    if text and path:
        raise ConfigError(f"the environment variables {variable} and {variable}{FILE} are both set: unset one of them")
    if not text and not path:
        return None
    if path:
        variable += FILE
    try:
        value = described.read(text) if text else _read_file(described, str(path))
    except OSError as error:
        raise ConfigError(f"the environment variable {variable} names a file that cannot be read: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"the environment variable {variable}: {error}") from error
    except ValueError as error:
        shown = "wrong" if described.secret or path else repr(text)
        cause = None if described.secret or path else error
        raise ConfigError(f"the environment variable {variable} is {shown}: {described.form} expected") from cause
    try:
        described.check(value)
    except ConfigError as error:
        raise ConfigError(f"the environment variable {variable}: {error}") from error
    return value


def _read_file(described: Variable, path: str) -> object:
    if described.read_file:
        return described.read_file(path)
    return described.read(Path(path).read_text().strip())
