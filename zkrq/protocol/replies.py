"""Define what a server's answer means for the operation: plain tables, no I/O.

A reply is checked against the header of its script before anything reads it (``read_reply``), so every later reader may
rely on the number of values and on which of them are lists.  A server that replies otherwise, because something between
it and this client or in it is not what zkrq knows, gives the answer ``BROKEN``: it is reported, and nothing is
concluded from it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from zkrq.protocol.scripts import SCRIPTS, Shape
from zkrq.protocol.tuples import from_values


class Status(enum.Enum):
    """How one call of one script on one server ended."""

    __hash__ = object.__hash__  # that of enums is a function of Python, which costs every answer several calls

    OK = "OK"
    STALE = "STALE"  # the server knows a later epoch
    NOTINSYNC = "NOTINSYNC"  # it is alive, but not in the life that the view names
    FENCED = "FENCED"  # the owner was declared dead
    OUTDATED = "OUTDATED"  # the owner has made a later claim request
    MISMATCH = "MISMATCH"  # another client has enrolled this server
    HOLDSDATA = "HOLDSDATA"  # it holds queues of an unknown deployment
    LATE = "LATE"  # the call was in flight for too long
    DECIDE = "DECIDE"  # only the primary can decide this, because of the queue's settings
    TAKEN = "TAKEN"  # another client is repairing this server
    GONE = "GONE"  # another life of the process than the view names
    UNREACHABLE = "UNREACHABLE"  # no connection, or it broke twice
    TIMEOUT = "TIMEOUT"  # no answer within command_timeout; it may still be executed
    SILENT = "SILENT"  # it answers other clients, but not this one, which has therefore not sent the call
    UNFIT = "UNFIT"  # not a master
    DROPPING = "DROPPING"  # its maxmemory-policy lets it drop items
    ASKEW = "ASKEW"  # its clock differs from those of the others, so it refuses pushes that they accept
    REFUSED = "REFUSED"  # out of memory: nothing happened, and the server is not evicted for it
    BROKEN = "BROKEN"  # an error unknown to zkrq: reported to the caller, and the server is not evicted for it
    DENIED = "DENIED"  # the server is alive, and does not let this client in: password, rights, certificate, options
    CROWDED = "CROWDED"  # the server has no room for this client's connection; it may serve those who are connected
    HINDERED = "HINDERED"  # a problem of this client's host: it may pass


class Verdict(enum.Enum):
    """The next step of the operation."""

    DONE = "count this server"
    REFRESH = "read the view again"
    EVICT = "evict this server from the view"
    REFUSE = "tell the caller; nothing happened there"
    ACCUSE = "evict this server if it answers no other client either"
    CORRECT = "tell the caller what to correct; one client's own problem never evicts a server"
    WAIT = "retry; one client's own problem never evicts a server"


VERDICTS: Mapping[Status, Verdict] = {
    Status.OK: Verdict.DONE,
    Status.STALE: Verdict.REFRESH,
    Status.NOTINSYNC: Verdict.EVICT,
    Status.GONE: Verdict.EVICT,
    Status.UNREACHABLE: Verdict.EVICT,
    Status.TIMEOUT: Verdict.EVICT,
    Status.SILENT: Verdict.EVICT,
    Status.UNFIT: Verdict.EVICT,
    Status.DROPPING: Verdict.EVICT,
    Status.ASKEW: Verdict.EVICT,
    Status.BROKEN: Verdict.REFUSE,
    Status.FENCED: Verdict.REFUSE,
    Status.OUTDATED: Verdict.REFUSE,
    Status.REFUSED: Verdict.REFUSE,
    Status.MISMATCH: Verdict.REFUSE,
    Status.HOLDSDATA: Verdict.REFUSE,
    Status.LATE: Verdict.REFUSE,
    Status.DECIDE: Verdict.REFUSE,
    Status.TAKEN: Verdict.REFUSE,
    Status.DENIED: Verdict.CORRECT,
    Status.CROWDED: Verdict.ACCUSE,
    Status.HINDERED: Verdict.WAIT,
}

FAILURES: frozenset[Verdict] = frozenset({Verdict.EVICT, Verdict.ACCUSE, Verdict.CORRECT})
"""Verdicts after which the view may have to go on without the server."""

MAY_HAVE_HAPPENED: frozenset[Status] = frozenset({Status.OK, Status.TIMEOUT, Status.UNREACHABLE, Status.BROKEN})
"""Statuses after which the call may have been executed."""


IMPRESSIONS: frozenset[Status] = frozenset({Status.TIMEOUT, Status.UNREACHABLE, Status.SILENT, Status.CROWDED})
"""Statuses that one client concludes from silence, or from a lack of room, where other clients may be answered."""

NEVER_HALTING: frozenset[Status] = frozenset({Status.CROWDED, Status.DROPPING})
"""Statuses for which a server is never evicted below ``min_replicas``, because it still serves clients."""


class Answer(NamedTuple):
    """One server's answer to one call: ``body`` is what follows the status, ``reason`` is for people.

    ``repeated``: this answers the second try of a call whose first may have been executed.
    """

    status: Status
    body: tuple[object, ...] = ()
    reason: str = ""
    repeated: bool = False

    @property
    def verdict(self) -> Verdict:
        return VERDICTS[self.status]

    @property
    def may_have_happened(self) -> bool:
        """Whether the call may have been executed."""
        return self.repeated or self.status in MAY_HAVE_HAPPENED


class Why(NamedTuple):
    """Why the primary of a queue decides about every push: what the settings of the queue say, as servers tell it.

    ``order``: groups keep the order of their pushes, so pushes that follow one another wait for one another.  ``size``:
    the queue has a limit of its size.
    """

    order: bool
    size: bool

    @staticmethod
    def read(told: bytes) -> Why:
        """Read it as a script tells it (``limits.decide``); what a newer version adds is skipped."""
        return Why(b"o" in told, b"s" in told)

    @staticmethod
    def of(answers: Iterable[Answer]) -> Why:
        """Return what servers have said that refused a push which the primary has to decide about."""
        return Why.read(b"".join(cast("bytes", each.body[0]) for each in answers if each.status is Status.DECIDE))

    def __str__(self) -> str:
        return " and ".join(filter(None, ("keeps an order" * self.order, "has a limit of its size" * self.size)))


class _Known(NamedTuple):
    """A reply that a script may give."""

    status: Status
    name: str
    shape: Shape


_KNOWN: Mapping[str, Mapping[bytes, _Known]] = {
    script.name: {name.encode(): _Known(Status(name), name, shape) for name, shape in script.replies.items()}
    for script in SCRIPTS.values()
}
"""Known replies, by script and by the first word of the reply."""

LACKS_LIBRARY = "ERR Function not found"
"""How a server begins its reply to a call of a function of which it does not have the library."""

_ERRORS: tuple[tuple[str, Status], ...] = (
    ("OOM", Status.REFUSED),
    ("READONLY", Status.UNFIT),
    ("MASTERDOWN", Status.UNFIT),
    ("MISCONF", Status.UNFIT),
    ("LOADING", Status.UNREACHABLE),
    ("BUSY", Status.TIMEOUT),
    ("NOAUTH", Status.DENIED),
    ("WRONGPASS", Status.DENIED),
    ("NOPERM", Status.DENIED),
    ("DENIED Redis is running in protected mode", Status.DENIED),
    ("ERR invalid password", Status.DENIED),  # of a Redis before 6
    ("ERR Client sent AUTH, but no password is set", Status.DENIED),  # the same
    ("ERR AUTH <password> called without any password", Status.DENIED),
    ("ERR DB index is out of range", Status.DENIED),
    ("ERR invalid DB index", Status.DENIED),
    *((f"ERR unknown command '{name}'", Status.DENIED) for name in ("INFO", "FUNCTION", "FCALL")),
    ("ERR max number of clients", Status.CROWDED),
)
"""Known error replies of Redis, by how they begin."""

_SHOW_ANOTHER = "show one that the server trusts and that has not expired (certfile and keyfile of redis_tls)"

_OWN_URL = "give this client its own URL of that server, in redis"

_FUNCTIONS = (
    "give this client's user the rights +fcall +function|load, or only +fcall and have an administrator load zkrq's "
    "library of functions (docs/security.md says which is right)"
)

_ENABLE = (
    "have that server take this command (rename-command in redis.conf, or the settings of a managed service): "
    "zkrq needs INFO, FUNCTION and FCALL"
)

_NEXT_STEPS: tuple[tuple[str, str], ...] = (
    ("NOAUTH", "give this client a user and a password, by redis_auth or in the URL of that server"),
    ("WRONGPASS", "correct the user or the password of redis_auth, or in this client's URL of that server"),
    ("ERR invalid password", "correct the password of redis_auth, or in this client's URL of that server"),
    ("unknown command", _ENABLE),
    ("'fcall'", _FUNCTIONS),
    ("'function|load'", _FUNCTIONS),
    ("NOPERM", "give this client's user the right (ACL) to the keys, channels and commands of its namespace"),
    ("needs Redis 7", "upgrade that server, or keep the version of zkrq that it was used with"),
    ("DENIED", "let this client's host in: set a password or bind that server to a private address"),
    ("ERR DB index", "correct the database number in this client's URL of that server"),
    ("files of redis_tls", "correct them; they are read for each connection"),
    ("redis_auth", "correct what redis_auth names; it is read for each connection"),
    ("told to use TLS", _OWN_URL),
    ("is not a Redis URL", _OWN_URL),
    ("speaks no TLS", "write redis:// instead of rediss:// in this client's URL of that server, or name its TLS port"),
    ("speaks TLS", "write rediss:// instead of redis:// in this client's URL of that server, or name its other port"),
    (
        "certificate verify failed",
        "trust its authority (ca_certs of redis_tls), and use a name that the certificate has",
    ),
    ("refuses this client's certificate", _SHOW_ANOTHER),
    ("ALERT", _SHOW_ANOTHER),
)
"""What to do about a denial, by words of its reason."""


def read_reply(reply: object, script: str) -> Answer:
    """Read the reply of a script.

    Returns ``BROKEN`` if it is not what the script's header promises, so ``Call.read`` never gets a reply that it
    cannot read.  The elements of a list with one entry per item of the call are not checked here.
    """
    if isinstance(reply, list) and reply:
        words: list[Any] = reply  # pyright: ignore[reportUnknownVariableType]
        known = _KNOWN[script].get(words[0]) if isinstance(words[0], bytes) else None
        if known is not None:
            status, name, shape = known
            body: tuple[Any, ...] = tuple(words[1:])
            if len(body) == len(shape) - 1 and shape[-1].may_lack:
                body = (*body, [])
            if len(body) == len(shape):
                for value, (width, kinds, _) in zip(body, shape, strict=True):
                    if isinstance(value, list) != bool(width):
                        break
                    if width and value and (len(value) % width or (kinds and not _are(value, width, kinds))):
                        break
                else:
                    return _answer_of((status, body, name, False))
    return Answer(Status.BROKEN, (), f"{script} gave an unknown reply: {reply!r:.200}")


_answer_of = from_values(Answer)


def _are(elements: Sequence[Any], width: int, kinds: Sequence[type | None]) -> bool:
    """Tell whether the elements of a list are of these kinds, in turn."""
    return all(kind is None or {kind}.issuperset(map(type, elements[at::width])) for at, kind in enumerate(kinds))


def denial(server: str, answer: Answer) -> str:
    """Explain why this client cannot use a server, and what to do about it."""
    if answer.verdict is not Verdict.CORRECT:
        return f"server {server} cannot be used by this client for now: {answer.reason}"
    steps = (step for words, step in _NEXT_STEPS if words in answer.reason)
    step = next(steps, "correct this client's URL of that server, its options or its certificates")
    return f"server {server} does not let this client in ({answer.reason}): {step}"


def ends_connection(message: str) -> bool:
    """Tell whether an error reply of Redis is about the connection, whatever was asked on it."""
    return message.startswith(("ERR max number of clients", "NOAUTH", "DENIED"))


def read_error(message: str) -> Answer:
    """Read an error reply of Redis."""
    # Redis repeats the arguments of a command that it does not know, and those may be the whole library.
    if message.startswith("ERR unknown command"):
        message = message.partition(", with args")[0]
    for word, status in _ERRORS:
        if message.startswith(word) or f"{word} command not allowed" in message:
            return Answer(status, (), message)
    return Answer(Status.BROKEN, (), message)
