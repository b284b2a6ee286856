"""What a server's answer means for the operation: plain tables, no I/O."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple, cast


class Status(enum.Enum):
    """How one call of one script on one server ended."""

    OK = "OK"
    STALE = "STALE"  # the server knows a later epoch
    NOTINSYNC = "NOTINSYNC"  # it lives, but not in the life that the view names
    FENCED = "FENCED"  # the owner was declared dead, or the request is an old one
    MISMATCH = "MISMATCH"  # somebody else enrolled this server
    HOLDSDATA = "HOLDSDATA"  # it holds queues that nobody vouches for
    LATE = "LATE"  # the call was on its way for too long
    TAKEN = "TAKEN"  # somebody else repairs this server
    GONE = "GONE"  # another life of the process than the view names
    UNREACHABLE = "UNREACHABLE"  # no connection, or it broke twice
    TIMEOUT = "TIMEOUT"  # no answer within command_timeout; it may still be executed
    UNFIT = "UNFIT"  # not a master, or it evicts keys
    REFUSED = "REFUSED"  # out of memory: nothing happened, and nobody is evicted for it
    BROKEN = "BROKEN"  # an error that zkrq does not know: told to the caller, and nobody is evicted for it


class Verdict(enum.Enum):
    """What the operation does next."""

    DONE = "count this server"
    REFRESH = "read the view again"
    EVICT = "take this server out of the view"
    REFUSE = "tell the caller; nothing happened there"


VERDICTS: Mapping[Status, Verdict] = {
    Status.OK: Verdict.DONE,
    Status.STALE: Verdict.REFRESH,
    Status.NOTINSYNC: Verdict.EVICT,
    Status.GONE: Verdict.EVICT,
    Status.UNREACHABLE: Verdict.EVICT,
    Status.TIMEOUT: Verdict.EVICT,
    Status.UNFIT: Verdict.EVICT,
    Status.BROKEN: Verdict.REFUSE,
    Status.FENCED: Verdict.REFUSE,
    Status.REFUSED: Verdict.REFUSE,
    Status.MISMATCH: Verdict.REFUSE,
    Status.HOLDSDATA: Verdict.REFUSE,
    Status.LATE: Verdict.REFUSE,
    Status.TAKEN: Verdict.REFUSE,
}

MAY_HAVE_HAPPENED: frozenset[Status] = frozenset({Status.OK, Status.TIMEOUT, Status.UNREACHABLE, Status.BROKEN})
"""After one of these the call may have been executed."""


class Answer(NamedTuple):
    """One server's answer to one call: ``body`` is what followed the status, ``reason`` is for people.

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


_STATUS_OF = {status.value.encode(): status for status in Status}

_ERRORS: tuple[tuple[str, Status], ...] = (
    ("OOM", Status.REFUSED),
    ("READONLY", Status.UNFIT),
    ("MASTERDOWN", Status.UNFIT),
    ("MISCONF", Status.UNFIT),
    ("NOAUTH", Status.UNFIT),
    ("NOPERM", Status.UNFIT),
    ("LOADING", Status.UNREACHABLE),
    ("BUSY", Status.TIMEOUT),
)
"""First words of Redis' error replies that are known."""


def read_reply(reply: object) -> Answer:
    """The answer in a script's reply."""
    if isinstance(reply, list) and reply:
        body = cast("list[object]", reply)
        status = _STATUS_OF.get(body[0]) if isinstance(body[0], bytes) else None
        if status is not None:
            return Answer(status, tuple(body[1:]), status.name)
    return Answer(Status.BROKEN, (), f"unknown reply {reply!r:.200}")


def read_error(message: str) -> Answer:
    """The answer in an error reply of Redis."""
    for word, status in _ERRORS:
        if message.startswith(word) or f"{word} command not allowed" in message:
            return Answer(status, (), message)
    return Answer(Status.BROKEN, (), message)
