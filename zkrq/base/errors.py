"""Define every error that zkrq raises, sorted by what the caller should do next.

    ZkrqError
      ConfigError         fix it: bad argument, name, URL or policy; servers that disagree
      CodecError          fix the item or the codec
      PayloadTooLarge     make the item smaller; nothing was written
      QueueFull           retry later, or slow down: the queue has reached its max_size; nothing was written
      NotEnoughReplicas   retry: fewer in-sync servers than min_replicas
      OutcomeUnknown      retry with the same id: it may have happened
      Unavailable         retry later: no in-sync server, or no ZooKeeper where one is needed
      ClaimLost           stop the work: another consumer may hold the item
      FlowEnded           begin another flow, or leave it: nothing comes into this one any more; nothing was written
      NoResult            look at the item: it died, was cancelled, or has not ended in time
      Closed              stop: the cluster is closed; or open it, with `async with`
      WrongLoop           fix the program: the cluster was opened on another event loop, or before a fork

The docstring of a class is its default message.  Exceptions of redis and aiozk never leave the package: they are the
``__cause__`` of one of these.

Receipts are defined here too: an error of ``push_many`` carries them, and they carry the errors of single items.
"""

from __future__ import annotations

import copy
import os
import traceback
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import PurePath
from types import FrameType
from typing import NamedTuple, Self, TypeVar, overload

E = TypeVar("E", bound=Exception)


class Receipt(NamedTuple):
    """Tell what a push did: the item ``id`` is on ``replicas`` servers.

    ``duplicate``: nothing was pushed, because another item with the same key is queued, scheduled or claimed, or its
    window is not over; ``id`` is the id of that item.  ``done``: nothing was pushed, because an item with this
    id was pushed before, by an earlier push or an earlier attempt of this one, and is already acked, cancelled, cleared
    or dropped.  ``duplicate`` and ``done``: that is so of the item that began the window.  ``new``: whether this
    push put the item into the queue; False also if an item with this id is there from an earlier push.  None: not
    known, because a server died or a connection broke, and the push was repeated: it may have found its own item.
    ``replaced``: ids of the queued items with the same key in whose place this one was put (``push(replace=True)``).
    """

    id: str
    replicas: int
    duplicate: bool = False
    done: bool = False
    new: bool | None = True
    replaced: tuple[str, ...] = ()


class ZkrqError(Exception):
    """Something went wrong in zkrq.

    ``outcomes``: the receipts and errors of the single items if ``push_many`` raises this error, otherwise None.
    """

    outcomes: Receipts | None = None

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").split("\n", 1)[0])

    def __reduce__(self) -> tuple[object, ...]:
        """Copy and pickle by message and attributes, because the constructors take other arguments."""
        return _restore, (type(self), self.args, self.__dict__)


def _restore(kind: type[ZkrqError], args: tuple[object, ...], attributes: dict[str, object]) -> ZkrqError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


class Receipts(Sequence[Receipt]):
    """The receipts of a ``push_many``, one per item, in order; each is made when it is read.

    As the ``outcomes`` of an error it holds, for every item that was not pushed, the error of that item: reading such
    a receipt raises it.
    """

    @overload
    def __getitem__(self, index: int) -> Receipt: ...

    @overload
    def __getitem__(self, index: slice) -> list[Receipt]: ...

    def __getitem__(self, index: int | slice) -> Receipt | list[Receipt]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        outcome = self.outcome(index)
        if isinstance(outcome, ZkrqError):
            raise outcome
        return outcome

    def __add__(self, others: Sequence[Receipt]) -> list[Receipt]:
        return [*self, *others]

    @abstractmethod
    def outcome(self, index: int) -> Receipt | ZkrqError:
        """Return the receipt of the item at this position, or the error that kept it from being pushed."""

    def outcomes(self) -> Iterator[Receipt | ZkrqError]:
        """Iterate over the receipts and errors of all items, in order."""
        return map(self.outcome, range(len(self)))

    @property
    @abstractmethod
    def errors(self) -> list[ZkrqError]:
        """Errors of the items that were not pushed, in order."""


class ConfigError(ZkrqError, ValueError):
    """An argument or a server's configuration is wrong; nothing was written."""


class NotLetIn(ConfigError):
    """A server does not let this client in: correct its credentials or rights.  Users catch ``ConfigError``."""


class ContradictsOrder(ConfigError):
    """A delay, a moment or a priority contradicts the order that the queue keeps.  Users catch ``ConfigError``."""


class NotInFlow(ConfigError):
    """A push into a flow cannot be as it was asked for.  Users catch ``ConfigError``."""


class CodecError(ZkrqError, ValueError):
    """The item cannot be encoded, or what is stored cannot be decoded."""


class PayloadTooLarge(ZkrqError, ValueError):
    """The encoded item, or its encoded result, is larger than the limit; nothing was written."""

    def __init__(self, size: int, limit: int, message: str | None = None) -> None:
        usual = f"the encoded item has {size} bytes, max_payload_bytes is {limit}; nothing was written"
        super().__init__(message or usual)
        self.size = size
        self.limit = limit


class QueueFull(ZkrqError):
    """As many items are queued or claimed as the queue's max_size allows; nothing was written, retry later."""


class NotEnoughReplicas(ZkrqError):
    """Fewer servers are in sync than min_replicas asks for; retry later.

    ``causes``: sentences, why servers could not be brought back, as far as this client knows; correct these first.
    """

    def __init__(
        self, members: int, min_replicas: int, causes: tuple[str, ...] = (), *, step: str = "retry later"
    ) -> None:
        """``step``: what to do next."""
        in_sync = f"{members} server(s) in sync, min_replicas is {min_replicas}"
        super().__init__("; ".join((in_sync, *causes, step)))
        self.members = members
        self.min_replicas = min_replicas
        self.causes = causes


class OutcomeUnknown(ZkrqError):
    """The time ran out in the middle: it may have happened.  Retry with the same id.

    ``ids`` are the items concerned; pushing them again under these ids cannot double them.
    """

    def __init__(self, message: str | None = None, *, ids: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.ids = ids

    @property
    def id(self) -> str | None:
        """Id of the item concerned, or None unless there is exactly one."""
        return self.ids[0] if len(self.ids) == 1 else None


class Unavailable(ZkrqError):
    """No in-sync server can be reached, or no ZooKeeper where it is needed; retry later."""


class ClaimLost(ZkrqError):
    """The claim no longer holds: another consumer may have the item.  Stop working on it.

    ``in_doubt``: a nack, release or burial raised this, and may have been carried out before the item went to another
    consumer.  False: it was not.
    """

    in_doubt: bool = False

    def __init__(self, message: str | None = None, *, id: str | None = None, in_doubt: bool = False) -> None:
        super().__init__(message or (f"the claim on item {id} no longer holds; stop working on it" if id else None))
        self.id = id
        self.in_doubt = in_doubt


class NoResult(ZkrqError):
    """The item has no result: it is a dead letter, was removed, or has not ended in time."""

    def __init__(self, message: str | None = None, *, id: str | None = None) -> None:
        super().__init__(message)
        self.id = id


class FlowEnded(ZkrqError):
    """The flow has ended, or was never begun: nothing comes into it any more; nothing was written, begin another one.

    ``outcome``: done, failed or cancelled; None: that is not known here.
    """

    def __init__(self, message: str | None = None, *, outcome: str | None = None) -> None:
        super().__init__(message)
        self.outcome = outcome


class Closed(ZkrqError):
    """The cluster is closed: to continue, open another one with connect().

    Of a cluster that was never opened the message says so.
    """


class WrongLoop(ZkrqError):
    """The cluster was opened on another event loop or in another process; open one of its own in each.

    Nothing has happened, and the cluster still works where it was opened.
    """


class HandlerError(Exception):
    """A handler has failed in a process of its own, or the process has died.

    ``outcome.error`` of hooks is one of these if the worker has a ``pool``, because exceptions do not leave a process.
    ``kinds``: full names of the exception's class and its bases, as ``"builtins.ValueError"``; empty if the process has
    died.  ``trace``: its traceback as a text, which is also a note of this error.
    """

    def __init__(self, message: str, *, reason: str = "", kinds: tuple[str, ...] = (), trace: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message
        """What is kept with the item."""
        self.kinds = kinds
        self.trace = trace
        if trace:
            self.add_note(trace)


def own(error: E) -> E:
    """Return a copy of an error for one of several callers, who each add to it: a traceback, the id of an item."""
    copied = copy.copy(error)
    copied.__cause__ = error
    return copied


class Changes:
    """Count what a call of several steps has changed.

    As a context it keeps the call honest: if a later step fails with an error that says that nothing happened, although
    an earlier step has changed something, it raises ``OutcomeUnknown`` instead.
    """

    def __init__(self) -> None:
        self.made = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self.made and isinstance(error, Unavailable | NotEnoughReplicas | ConfigError | Closed):
            raise OutcomeUnknown(f"a part was done before this failed: {error}; call it again") from error


# -- reasons of failures, as they are kept with items: one text, with a summary of the traceback ----------------------

REASON_MAX = 1000
"""Characters that are kept in total; ``lua/settle.lua`` has the same limit, in bytes."""

MESSAGE_MAX = 500
"""Characters that are kept of an exception's own message."""

FRAMES_MAX = 5
"""Innermost calls of the traceback that are kept."""

LEAVES_SHOWN = 5
"""Exceptions of a group whose messages are kept."""

LEAVES_MAX = 1_000
"""Exceptions of a group that are looked at."""

_OUR_OWN = f"{PurePath(__file__).parents[1]}{os.sep}"

_BEHIND = "\0"
"""Separates the reason from the traceback; no reason contains it."""


def text_of(error: object) -> str:
    """Return the text of an exception of user code, whose ``__str__`` may raise, or return something else."""
    try:
        return str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as problem:
        return f"(it has no text: its __str__ raised {type(problem).__name__})"


def message_of(error: BaseException, *, most: int = MESSAGE_MAX) -> str:
    """Return an exception's type and text, of a group those of its leaves; ``most``: characters that are kept."""
    if _is_group(error):
        messages = list(dict.fromkeys(message_of(leaf, most=most) for leaf in leaves_of(error)))
        shown, more = messages[:LEAVES_SHOWN], len(messages) - LEAVES_SHOWN
        each = most // len(shown)
        joined = "; ".join(message[:each] for message in shown)
        return f"{joined[:most]}; and {more} more" if more > 0 else joined[:most]
    if isinstance(error, HandlerError):  # its text names the type
        return text_of(error).replace(_BEHIND, " ")[:most]
    return f"{type(error).__name__}: {text_of(error)}".replace(_BEHIND, " ")[:most]


def leaves_of(error: BaseException) -> list[BaseException]:
    """Return the exceptions of a group, and of the groups in it: at most ``LEAVES_MAX``; of any other, itself."""
    leaves: list[BaseException] = []
    left = [error]
    while left and len(leaves) < LEAVES_MAX:
        each = left.pop()
        if _is_group(each):
            left += reversed(_exceptions_of(each))
        else:
            leaves.append(each)
    return leaves


def _is_group(error: BaseException) -> bool:
    return isinstance(error, BaseExceptionGroup)


_exceptions_of: Callable[[BaseException], Sequence[BaseException]] = vars(BaseExceptionGroup)["exceptions"].__get__
"""Return what a group was made of: at least one exception, whatever a subclass says."""


def reason_of(error: BaseException) -> str:
    """Return what is kept of an exception: its type and message, then its traceback, innermost call first.

    Of a group it is the messages of its leaves, and the traceback to the first one."""
    if isinstance(error, HandlerError):
        return error.reason
    places = [
        f"{'/'.join(PurePath(frame.f_code.co_filename).parts[-2:])}:{line} in {frame.f_code.co_name}"
        for frame, line in deque(_calls(error), FRAMES_MAX)
    ]
    message = message_of(error)
    return _BEHIND.join((message, "\n".join(reversed(places)))) if places else message


def _calls(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """Iterate over the calls of users' code that led to an exception, outermost first."""
    while True:
        for frame, line in traceback.walk_tb(error.__traceback__):
            if not frame.f_code.co_filename.startswith(_OUR_OWN):
                yield frame, line
        if not _is_group(error):
            return
        error = _exceptions_of(error)[0]


def add_note(error: BaseException, text: str) -> None:
    """Add a note to an exception of user code, unless its class does not let it have one."""
    with suppress(Exception):
        error.add_note(text)


def split(note: str) -> tuple[str | None, str | None]:
    """Return the reason and the summary of the traceback, None for one that is missing."""
    reason, _, summary = note.partition(_BEHIND)
    return reason or None, summary or None
