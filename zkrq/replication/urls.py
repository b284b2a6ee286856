"""Check URLs of Redis servers, show them without credentials, and connect to the server that they name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from zkrq.base.errors import ConfigError

if TYPE_CHECKING:
    from zkrq.base.credentials import Source
    from zkrq.base.tls import TLS
    from zkrq.replication.wire import Dial, Wire

_ADDRESS = re.compile(r"[\w.-]+:\d+")  # host and port, as servers without a name of their own are shown


@dataclass(frozen=True, slots=True)
class Dialler:
    """Make wires to Redis servers; a ``Dial``.

    ``auth``: for URLs without user and password.  ``tls``: for ``rediss://`` without options of its own; then the
    password is not sent to a server that is named without encryption.
    """

    auth: Source | None = None
    tls: TLS | None = None

    def __call__(self, url: str, timeout: float) -> Callable[[], Wire]:
        """Return a maker of wires to the server of this URL; connecting may take ``timeout`` seconds.

        Raises ``ConfigError``.
        """
        from zkrq.replication.redis_wire import wires  # redis-py takes as long to load as all the rest

        auth = None if self.tls and url.startswith("redis://") else self.auth
        try:
            return wires(_parts(url), timeout, auth, self.tls)
        except ValueError as error:
            raise ConfigError(f"{redact(url)!r} has options that a connection does not take: {error}") from error


dial = Dialler()
"""Makes wires from URLs alone."""


@dataclass(frozen=True, slots=True)
class Told:
    """What this program was told about reaching its servers.  It holds for servers that others have named, too.

    The view names servers that this program was not given.  Of such a URL only scheme, host, port, path and database
    count; user, password and options are those of this program's first URL.  Anybody who can write the view could
    otherwise have this program send its password to a server of their own, without the checks that it was told to make.

    ``urls``: those that the program was given.  ``dial``: what connects to them.  If it has ``redis_tls``, that holds
    also where the first URL has options for TLS, because these are for that one server.
    """

    urls: Sequence[str] = field(repr=False)  # with their passwords
    dial: Dial = dial

    @property
    def has_tls(self) -> bool:
        """Whether the program was given ``redis_tls``."""
        return isinstance(self.dial, Dialler) and self.dial.tls is not None

    def url_for(self, url: str) -> str:
        """Return a URL of the view as this program uses it.

        Raises ``ConfigError`` if it is none, and if it lacks TLS.
        """
        public = without_credentials(url)
        if self.lacks_tls(public):
            raise ConfigError(f"the view has it at {public}, and this client was told to use TLS")
        return with_credentials_of(public, self.urls[0], keep_tls=not self.has_tls)

    def lacks_tls(self, url: str) -> bool:
        """Tell whether this program was told to use TLS, and never to connect in the way of this URL."""
        schemes = {urlsplit(given).scheme for given in self.urls}
        encrypts = self.has_tls or "rediss" in schemes
        return encrypts and urlsplit(url).scheme not in {"rediss", *schemes}


def redact(url: str) -> str:
    """Return the URL without its password, for logs and ``repr``; values of unknown options are left out, too."""
    scheme, separator, rest = url.rpartition("://")
    place, _, query = rest.partition("?")
    if "@" in query and "@" not in place and not place.startswith("/") and "=" not in query.partition("@")[0]:
        place, query = rest.rpartition("@")[2], ""  # a password that is not properly escaped
    options = "&".join(_shown(option) for option in query.split("&") if option and "password" not in option)
    return f"{scheme}{separator}{place.rpartition('@')[2]}" + (f"?{options}" if options else "")


_HARMLESS = ("ssl_", "socket_", "db", "client_name", "protocol", "health_check_interval", "retry_on_timeout")
"""Beginnings of the options whose values may be shown; another one may be a password by a misspelt name."""


def _shown(option: str) -> str:
    name, is_set, _ = option.partition("=")
    return option if name.startswith(_HARMLESS) or not is_set else f"{name}=..."


def without_credentials(url: str) -> str:
    """Return the URL for other clients: no user, no password, none of this client's options."""
    parts = _parts(url)
    database = parts.get("db")
    if "path" in parts:
        return f"unix://{quote(parts['path'])}" + ("" if database is None else f"?db={database}")
    host = parts.get("host", "localhost")
    scheme, host = urlsplit(url).scheme, f"[{host}]" if ":" in host else host
    port = f":{parts['port']}" if "port" in parts else ""
    return f"{scheme}://{host}{port}" + ("" if database is None else f"/{database}")


def with_credentials_of(url: str, other: str, *, keep_tls: bool = True) -> str:
    """Return a URL that has neither with the user and the password of another URL, and with its options if it is of the
    same kind; ``keep_tls``: also with those for TLS."""
    parts, known = urlsplit(url), urlsplit(other)
    credentials, at, _ = known.netloc.rpartition("@")
    options = [option for option in parse_qsl(known.query) if option[0] != "db"]
    if parts.scheme != known.scheme:
        options = [option for option in options if option[0] in ("username", "password")]
    if (known.scheme, parts.scheme) == ("rediss", "redis"):
        credentials, at, options = "", "", []  # what is sent encrypted is not sent in the clear because a view says so
    if not keep_tls:
        options = [option for option in options if not option[0].startswith("ssl_")]
    query = urlencode(options + parse_qsl(parts.query))
    return f"{parts.scheme}://{credentials}{at}{parts.netloc}{parts.path}" + (f"?{query}" if query else "")


def address(url: str) -> str:
    """Return host, port and database of a URL, or a socket's path: the name of a server that was given none."""
    parts = _parts(url)
    database = f"/{parts['db']}" if parts.get("db") else ""
    if "path" in parts:
        return parts["path"] + database
    return f"{parts.get('host', 'localhost')}:{parts.get('port', 6379)}{database}"


def check_url(url: str) -> None:
    """Check a Redis URL.  Raises ``ConfigError``."""
    _parts(url)


def _parts(url: str) -> Mapping[str, Any]:
    if not isinstance(url, str) or not url.startswith(("redis://", "rediss://", "unix://")):  # pyright: ignore[reportUnnecessaryIsInstance]
        meant = f": did you mean 'redis://{url}'?" if _ADDRESS.fullmatch(str(url)) else ""
        raise ConfigError(f"{redact(str(url))!r} is not a Redis URL: redis://, rediss:// or unix:// expected{meant}")
    from zkrq.replication.redis_wire import read_url

    try:
        url.encode()  # UnicodeEncodeError is a ValueError
        parts = read_url(url)
    except (ValueError, TypeError):
        # Without the parser's words, which may quote a password that is not properly escaped.
        raise ConfigError(f"{redact(url)!r} is not a Redis URL: it cannot be parsed") from None
    if not _is_host(parts.get("host", "localhost")):
        raise ConfigError(f"{redact(url)!r} is not a Redis URL: no host is called that")
    if url.startswith("unix://") and "path" not in parts:
        raise ConfigError(f"{redact(url)!r} is not a Redis URL: it names no path")
    return parts


def _is_host(text: str) -> bool:
    """Tell whether a URL can be made of this host again: quoted, it may contain what ends the host in a URL, and begins
    options there."""
    if ":" in text:
        try:
            return bool(IPv6Address(text))
        except ValueError:
            return False
    return set("/?#@[]\\").isdisjoint(text)
