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
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from urllib.parse import urlsplit

from zkrq.base.errors import ConfigError
from zkrq.serve.problems import FORBIDDEN, MISDIRECTED, UNAUTHORIZED, Kind
from zkrq.serve.rights import Caller, Right, Token, needed, read_tokens

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

    ``tokens``: any of these lets in and operates, ``readers`` only see, ``administrators`` do everything; each a token,
    or the name of its holder, a space and the token.  Where all are empty nobody needs a token, and everybody operates.
    ``hosts``: names and addresses by which it answers, None: any.
    ``read_only``: refuse whatever changes anything.  ``ended``: sessions that were ended before their time, the first
    of them first; see ``end_session``.  Raises ``ConfigError`` for tokens that are no good.
    """

    tokens: tuple[str, ...] = ()
    hosts: frozenset[str] | None = LOOPBACK
    read_only: bool = False
    readers: tuple[str, ...] = ()
    administrators: tuple[str, ...] = ()
    ended: dict[str, None] = field(default_factory=dict[str, None], compare=False)
    known: tuple[Token, ...] = field(init=False)
    """All tokens."""

    def __post_init__(self) -> None:
        kinds = (
            (self.tokens, Right.OPERATE),
            (self.readers, Right.READ),
            (self.administrators, Right.ADMINISTER),
        )
        known = tuple(token for lines, right in kinds for token in read_tokens(lines, right))
        if len({token.text for token in known}) < len(known):
            raise ConfigError("one token is given twice: each is of one kind, and of one holder")
        object.__setattr__(self, "known", known)

    def __repr__(self) -> str:
        return f"<Policy of {len(self.known)} tokens{', read-only' * self.read_only}>"


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


def policy_for(
    host: str,
    tokens: Iterable[str],
    hosts: Iterable[str],
    *,
    read_only: bool = False,
    readers: Iterable[str] = (),
    administrators: Iterable[str] = (),
) -> Policy:
    """Make the policy of a server that listens on ``host``.

    ``hosts``: further names by which it may be asked, as those of a proxy in front of it.  Raises ``ConfigError`` if it
    would let anybody in from other machines.
    """
    named = frozenset(map(host_of, hosts))
    policy = Policy(tuple(tokens), None, read_only, tuple(readers), tuple(administrators))
    if not policy.known and not is_loopback(host):
        raise ConfigError(
            f"{host} can be reached from other machines, and there is no token: set ZKRQ_SERVE_TOKEN_FILE to a file "
            "with a long random text, or listen on 127.0.0.1"
        )
    if policy.known and not named:
        return policy
    return replace(policy, hosts=named | LOOPBACK | {host_of(f"[{host}]" if ":" in host else host)})


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


def judge(policy: Policy, asked: Asked, caller: Caller | None) -> Refusal | None:
    """Decide about a request; ``caller``: see ``caller_of``.  None: it is let in."""
    host = asked.headers.get("host", "")
    if policy.hosts is not None and host_of(host) not in policy.hosts:
        return Refusal(MISDIRECTED, f"this server does not answer as {host[:100]!r}")
    if not asked.is_safe and not _is_own(asked, host):
        return Refusal(FORBIDDEN, "the request comes from a page of another site")
    if is_open(asked.path):
        return None
    if caller is None:
        return Refusal(UNAUTHORIZED, "a token is needed")
    is_safe = asked.is_safe or asked.path == "/logout"
    if policy.read_only and not is_safe:
        return Refusal(FORBIDDEN, "this server only shows: it was started with --read-only")
    need = needed(asked.path, is_safe=is_safe)
    if caller.right < need.right:
        return Refusal(FORBIDDEN, f"this needs a token with the right to {need.right.name.lower()}: {need.what}")
    return None


def caller_of(policy: Policy, asked: Asked, now: float) -> Caller | None:
    """Return who has sent a request, and what it may do; None: it needs a token, and has none.

    ``now``: in seconds since 1970.
    """
    if not policy.known:
        return Caller("", Right.READ if policy.read_only else Right.OPERATE)
    token = _bearer(policy, asked) or session_token(policy, asked.cookie, now)
    return token and Caller(token.name, Right.READ if policy.read_only else token.right)


def is_known(policy: Policy, asked: Asked, caller: Caller | None) -> bool:
    """Tell whether a request that was let in is one of a client: it has a token, or asks for what needs one."""
    return not is_open(asked.path) or bool(policy.known and caller)


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


def _bearer(policy: Policy, asked: Asked) -> Token | None:
    scheme, _, given = asked.headers.get("authorization", "").partition(" ")
    return find_token(policy, given.strip()) if scheme.lower() == "bearer" else None


def find_token(policy: Policy, given: str) -> Token | None:
    """Return the token that this is, None for any other text; takes as long for any wrong text."""
    sent = given.encode(errors="replace")
    return next((token for token in policy.known if hmac.compare_digest(token.text.encode(), sent)), None)


# -- the session of a browser ------------------------------------------------------------------------------------------


def make_session(token: Token, now: float, name: str) -> str:
    """Return a cookie that lets a browser do for ``SESSION_SECONDS`` what the token does; only its holder can have made
    it.

    ``name``: hexadecimal, another one for each session, so that one can end without the others.
    """
    text = f"{int(now) + SESSION_SECONDS}.{name}"
    return f"{text}.{_sign(token.text, text)}"


def session_token(policy: Policy, cookie: str, now: float) -> Token | None:
    """Return the token for which a cookie was made, None if it has expired or was ended here, or there is no such."""
    text, _, signature = cookie.rpartition(".")
    until, given = text.partition(".")[0], signature.encode(errors="replace")
    if not (until.isdecimal() and int(until) > now and cookie not in policy.ended):
        return None
    return next((each for each in policy.known if hmac.compare_digest(_sign(each.text, text).encode(), given)), None)


def end_session(policy: Policy, cookie: str, now: float) -> None:
    """Let a browser in no more, in this process; the last ``ENDED_MAX`` sessions that ended are remembered."""
    if session_token(policy, cookie, now):
        policy.ended[cookie] = None
        while len(policy.ended) > ENDED_MAX:
            del policy.ended[next(iter(policy.ended))]


def _sign(token: str, text: str) -> str:
    return hmac.new(token.encode(), f"zkrq session {text}".encode(errors="replace"), hashlib.sha256).hexdigest()
