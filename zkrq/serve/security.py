"""Decide which requests are let in.  Pure: a request is a value, the time an argument.

* A **token** lets programs in by ``Authorization: Bearer``, and people by a cookie that the login page gives for it.
  Without a token every request that reaches the server is let in, so then it listens on loopback alone.
* A **page of another site** may make a browser send requests here.  What changes anything must come from this server's
  own pages, as the browser says (``Sec-Fetch-Site``, otherwise ``Origin``), or from a program, which says neither.
* **DNS rebinding** makes such a page look like one of this server's own, under its own name.  So without a token the
  server answers only to names that it knows.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import urlsplit

from zkrq.base.errors import ConfigError
from zkrq.serve.problems import FORBIDDEN, MISDIRECTED, UNAUTHORIZED, Kind

LEAST_TOKEN = 16
"""Characters; a shorter token could be guessed."""

MAX_TOKENS = 8
"""Tokens that are accepted at the same time; two are usual while one is replaced."""

SESSION_SECONDS = 12 * 3600
"""Seconds for which the login page lets a browser in."""

ENDED_MAX = 10_000
"""Sessions that were ended by logging out, and are remembered."""

COOKIE = "zkrq-session"

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

OPEN_PATHS = frozenset({"/login", "/livez", "/readyz"})
"""Paths that need no token, as they tell nothing; so do the files of ``STATIC``."""

STATIC = "/static/"
"""The folder of the page's files, which has no folders in it."""

HOST_MAX = 300
"""Characters of a ``Host`` or ``Origin`` header that can be a name: 253 of the name, and its port and scheme."""

_SESSION = re.compile(rf'(?:^|;)[ \t]*{COOKIE}="?([0-9a-f.]*)')

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class Policy:
    """Describe the requests that a server lets in.

    ``tokens``: any of these, () if none is needed.  ``hosts``: names and addresses by which it answers, None: any.
    ``read_only``: refuse whatever changes anything.  ``ended``: sessions that were ended before their time, the first
    of them first; see ``end_session``.  Raises ``ConfigError`` for tokens that are no good.
    """

    tokens: tuple[str, ...] = ()
    hosts: frozenset[str] | None = LOOPBACK
    read_only: bool = False
    ended: dict[str, None] = field(default_factory=dict[str, None], compare=False)

    def __post_init__(self) -> None:
        if len(self.tokens) > MAX_TOKENS:
            raise ConfigError(f"{len(self.tokens)} tokens are given: at most {MAX_TOKENS} are accepted")
        for token in self.tokens:
            if len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
                raise ConfigError(f"a token must have at least {LEAST_TOKEN} printable ASCII characters, and no space")

    def __repr__(self) -> str:
        return f"<Policy of {len(self.tokens)} tokens{', read-only' * self.read_only}>"


@dataclass(frozen=True, slots=True)
class Asked:
    """Describe a request.  ``headers``: by their names in lower case; ``cookie``: the session's."""

    method: str
    path: str
    headers: Mapping[str, str]
    cookie: str = ""

    @property
    def is_safe(self) -> bool:
        """Whether it only reads."""
        return self.method in _SAFE


@dataclass(frozen=True, slots=True)
class Refusal:
    """Describe why a request is refused."""

    kind: Kind
    message: str


def policy_for(host: str, tokens: Iterable[str], hosts: Iterable[str], *, read_only: bool = False) -> Policy:
    """Make the policy of a server that listens on ``host``.

    ``hosts``: further names by which it may be asked, as those of a proxy in front of it.  Raises ``ConfigError`` if it
    would let anybody in from other machines.
    """
    accepted, named = tuple(tokens), frozenset(map(host_of, hosts))
    if not accepted and not is_loopback(host):
        raise ConfigError(
            f"{host} can be reached from other machines, and there is no token: set ZKRQ_SERVE_TOKEN_FILE to a file "
            "with a long random text, or listen on 127.0.0.1"
        )
    if accepted and not named:
        return Policy(accepted, None, read_only)
    return Policy(accepted, named | LOOPBACK | {host_of(f"[{host}]" if ":" in host else host)}, read_only)


def is_loopback(host: str) -> bool:
    """Tell whether only programs on this machine reach an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def session_of(cookies: str) -> str:
    """Return the session in a ``Cookie`` header, empty without one.

    It is found by one search, which reads the header once.  ``http.cookies`` reads a quoted value again for each of its
    escapes, before Python 3.11.10 and 3.12.6: a stranger's header of 60 KB took seconds.
    """
    found = _SESSION.search(cookies)
    return found[1] if found else ""


def is_open(path: str) -> bool:
    """Tell whether a path needs no token."""
    return path in OPEN_PATHS or (path.startswith(STATIC) and "/" not in path[len(STATIC) :])


def host_of(header: str) -> str:
    """Return the name or the address of a ``Host`` header, without its port; empty for nonsense."""
    if len(header) > HOST_MAX:
        return ""
    try:
        return (urlsplit(f"//{header}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def judge(policy: Policy, asked: Asked, now: float) -> Refusal | None:
    """Decide about a request; ``now`` is in seconds since 1970.  None: it is let in."""
    host = asked.headers.get("host", "")
    if policy.hosts is not None and host_of(host) not in policy.hosts:
        return Refusal(MISDIRECTED, f"this server does not answer as {host[:100]!r}")
    if not asked.is_safe and not _is_own(asked, host):
        return Refusal(FORBIDDEN, "the request comes from a page of another site")
    if is_open(asked.path):
        return None
    if policy.tokens and not _has_login(policy, asked, now):
        return Refusal(UNAUTHORIZED, "a token is needed")
    if policy.read_only and not asked.is_safe and asked.path != "/logout":
        return Refusal(FORBIDDEN, "this server only shows: it was started with --read-only")
    return None


def is_known(policy: Policy, asked: Asked, now: float) -> bool:
    """Tell whether a request that was let in is one of a client: it has a token, or asks for what needs one."""
    return not is_open(asked.path) or _has_login(policy, asked, now)


def _has_login(policy: Policy, asked: Asked, now: float) -> bool:
    return _has_token(policy, asked) or is_session(policy, asked.cookie, now)


def _is_own(asked: Asked, host: str) -> bool:
    """Tell whether a request was sent by one of this server's own pages, or by no page at all."""
    site = asked.headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = asked.headers.get("origin")
    if origin is None:
        return True
    if len(origin) > HOST_MAX:
        return False
    try:
        return urlsplit(origin).netloc == host != ""
    except ValueError:
        return False


def _has_token(policy: Policy, asked: Asked) -> bool:
    scheme, _, given = asked.headers.get("authorization", "").partition(" ")
    return scheme.lower() == "bearer" and is_token(policy, given.strip())


def is_token(policy: Policy, given: str) -> bool:
    """Tell whether this is one of the tokens; takes as long for any wrong text."""
    return any(hmac.compare_digest(token.encode(), given.encode(errors="replace")) for token in policy.tokens)


# -- the session of a browser ------------------------------------------------------------------------------------------


def make_session(policy: Policy, now: float, name: str) -> str:
    """Return a cookie that lets a browser in for ``SESSION_SECONDS``; only a holder of a token can have made it.

    ``name``: hexadecimal, another one for each session, so that one can end without the others.
    """
    text = f"{int(now) + SESSION_SECONDS}.{name}"
    return f"{text}.{_sign(policy.tokens[0], text)}"


def is_session(policy: Policy, cookie: str, now: float) -> bool:
    """Tell whether a cookie was made for one of the tokens, and has neither expired nor been ended here."""
    text, _, signature = cookie.rpartition(".")
    until, given = text.partition(".")[0], signature.encode(errors="replace")
    signed = any(hmac.compare_digest(_sign(token, text).encode(), given) for token in policy.tokens)
    return signed and until.isdecimal() and int(until) > now and cookie not in policy.ended


def end_session(policy: Policy, cookie: str, now: float) -> None:
    """Let a browser in no more, in this process; the last ``ENDED_MAX`` sessions that ended are remembered."""
    if is_session(policy, cookie, now):
        policy.ended[cookie] = None
        while len(policy.ended) > ENDED_MAX:
            del policy.ended[next(iter(policy.ended))]


def _sign(token: str, text: str) -> str:
    return hmac.new(token.encode(), f"zkrq session {text}".encode(errors="replace"), hashlib.sha256).hexdigest()
