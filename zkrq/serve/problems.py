"""Say over HTTP what went wrong: each error has a status, and tells whether anything happened and what to do next.

The table is the contract.  A client in any language decides by ``happened``: after ``nothing`` a call may be
repeated as it was; after ``unknown`` a push is repeated under the same id, and a settling under the same claim; after
``partly`` some items of several were pushed, and the outcome of each is reported.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from zkrq.base.errors import (
    ClaimLost,
    Closed,
    CodecError,
    ConfigError,
    ContradictsOrder,
    FlowEnded,
    NoResult,
    NotEnoughReplicas,
    NotInFlow,
    OutcomeUnknown,
    PayloadTooLarge,
    QueueFull,
    Unavailable,
    ZkrqError,
)
from zkrq.client.cursors import BadCursor
from zkrq.client.declaring import BadSettings, SettingsChanged
from zkrq.client.quieting import NoSuchConsumer

Happened = Literal["nothing", "partly", "unknown"]

RETRY_SECONDS = 1
"""What ``Retry-After`` says."""


class Busy(ZkrqError):
    """This server has as much to do, or holds as many claims, as it is allowed to: retry later; nothing happened."""


class NoSuchItem(ZkrqError):
    """The queue has no item with this id: it was never pushed, or it is done."""


class NoSuchSchedule(ZkrqError):
    """The queue has no schedule of this name."""


class NoneNamed(ZkrqError):
    """nothing says which items are meant: ids, or a condition"""


class BadQuery(ZkrqError):
    """Parameters of an address contradict each other."""


class BadServer(ZkrqError):
    """The servers, or the level, cannot be changed in this way."""


class BadSchedule(ZkrqError):
    """The schedule cannot be stored."""


class Kind(NamedTuple):
    """Describe one kind of error: its name in replies, the HTTP status, what happened, what the client does next."""

    name: str
    status: int
    happened: Happened
    next: str

    @property
    def passes(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in (429, 503)


BAD_REQUEST = Kind("BadRequest", 400, "nothing", "fix the request")
UNAUTHORIZED = Kind("Unauthorized", 401, "nothing", "send the token: Authorization: Bearer TOKEN")
FORBIDDEN = Kind("Forbidden", 403, "nothing", "ask another server, or from another page")
NOT_FOUND = Kind("NotFound", 404, "nothing", "look at /v1/openapi.json")
NOT_ALLOWED = Kind("MethodNotAllowed", 405, "nothing", "look at /v1/openapi.json")
TIMEOUT = Kind("RequestTimeout", 408, "nothing", "send the request faster")
TOO_LARGE = Kind("BodyTooLarge", 413, "nothing", "send less at a time")
NOT_JSON = Kind("NotJson", 415, "nothing", "send JSON, with Content-Type: application/json")
MISDIRECTED = Kind("WrongHost", 421, "nothing", "ask for the server by a name that it knows: zkrq serve --hosts")
INTERNAL = Kind("InternalError", 500, "unknown", "look at the server's log")

KINDS: dict[type[ZkrqError], Kind] = {
    CodecError: Kind("CodecError", 400, "nothing", "fix the item"),
    PayloadTooLarge: Kind("PayloadTooLarge", 413, "nothing", "make the item smaller"),
    QueueFull: Kind("QueueFull", 429, "nothing", "retry later"),
    NotEnoughReplicas: Kind("NotEnoughReplicas", 503, "nothing", "retry later"),
    Unavailable: Kind("Unavailable", 503, "nothing", "retry later"),
    ContradictsOrder: BAD_REQUEST._replace(next="push without a delay and a priority"),
    NotInFlow: BAD_REQUEST,
    BadSettings: BAD_REQUEST,
    BadCursor: BAD_REQUEST,
    SettingsChanged: Kind("SettingsChanged", 409, "unknown", "read the settings again, then repeat"),
    Busy: Kind("Busy", 503, "nothing", "retry later"),
    NoSuchItem: Kind("NoSuchItem", 404, "nothing", "nothing: there is no such item"),
    NoSuchSchedule: Kind("NoSuchSchedule", 404, "nothing", "nothing: there is no such schedule"),
    BadQuery: BAD_REQUEST,
    NoneNamed: BAD_REQUEST,
    NoSuchConsumer: BAD_REQUEST,
    BadServer: BAD_REQUEST,
    BadSchedule: Kind("BadSchedule", 400, "nothing", "fix the request"),
    Closed: Kind("Closed", 503, "nothing", "retry with another server, or later"),
    # Other arguments are checked before: what is left lies with the servers, or with this one's rights.
    ConfigError: Kind("ConfigError", 503, "nothing", "correct the server's settings"),
    OutcomeUnknown: Kind("OutcomeUnknown", 504, "unknown", "repeat: a push under the same id, the rest as it was"),
    FlowEnded: Kind("FlowEnded", 409, "nothing", "begin another flow"),
    NoResult: Kind("NoResult", 409, "nothing", "look at the item's state"),
    ClaimLost: Kind("ClaimLost", 410, "nothing", "stop working on the item"),
}
"""The kind of every error of the library that a call can raise."""


def page_status(error: ZkrqError | TimeoutError) -> int:
    """Return the status of a page that says this error: what a form or an address had wrong is one of the request."""
    if isinstance(error, TimeoutError):
        return 503
    return 400 if isinstance(error, ConfigError) else kind_of(error).status


def kind_of(error: ZkrqError) -> Kind:
    """Return the kind of an error, that of its closest class in the table."""
    if isinstance(error, ClaimLost) and error.in_doubt:
        return KINDS[ClaimLost]._replace(happened="unknown")
    return next((KINDS[kind] for kind in type(error).__mro__ if kind in KINDS), INTERNAL)


def describe(kind: Kind, message: str) -> dict[str, object]:
    """Return the body of a reply that reports an error; see ``bodies.Problem``."""
    return {"error": kind.name, "happened": kind.happened, "next": kind.next, "message": message}


def describe_error(error: ZkrqError) -> dict[str, object]:
    """Return the body of a reply that reports an error of the library."""
    told = describe(kind_of(error), " ".join(str(error).split()))
    return {**told, "ids": list(error.ids)} if isinstance(error, OutcomeUnknown) else told


def headers_of(kind: Kind) -> dict[str, str]:
    """Return the headers that belong to a kind of error."""
    if kind.passes:
        return {"Retry-After": str(RETRY_SECONDS)}
    return {"WWW-Authenticate": "Bearer"} if kind is UNAUTHORIZED else {}
