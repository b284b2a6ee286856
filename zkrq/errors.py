"""Every error that zkrq raises, sorted by what the caller should do next.

    ZkrqError
      ConfigError         fix it: bad argument, name, URL or policy; servers that disagree
      CodecError          fix the item or the codec
      PayloadTooLarge     make the item smaller; nothing was written
      QueueFull           retry later, or slow down: the queue has reached its max_size; nothing was written
      NotEnoughReplicas   retry: fewer in-sync servers than min_replicas
      OutcomeUnknown      retry with the same id: it may have happened
      Unavailable         retry later: no in-sync server, or no ZooKeeper where one is needed
      ClaimLost           stop the work: somebody else may hold the item
      Closed              stop: the queue or the cluster is closed
      WrongLoop           fix the program: the cluster was opened on another event loop, or before a fork

The docstring of a class is its message where none is given.  Exceptions of redis and aiozk never leave the
package: they are the ``__cause__`` of one of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zkrq.producing.pusher import Receipts


class ZkrqError(Exception):
    """Something went wrong in zkrq.

    ``outcomes`` is what became of each item where ``push_many`` raises it, otherwise None.
    """

    outcomes: Receipts | None = None

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").split("\n", 1)[0])

    def __reduce__(self) -> tuple[object, ...]:
        """Copied and pickled by its message and attributes: the constructors take other arguments."""
        return _restore, (type(self), self.args, self.__dict__)


def _restore(kind: type[ZkrqError], args: tuple[object, ...], attributes: dict[str, object]) -> ZkrqError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


class ConfigError(ZkrqError, ValueError):
    """An argument or a server's configuration is wrong; nothing was written."""


class NotLetIn(ConfigError):
    """A server does not let this client in: correct its credentials or rights.  Users catch ``ConfigError``."""


class CodecError(ZkrqError, ValueError):
    """The item cannot be encoded, or what is stored cannot be decoded."""


class PayloadTooLarge(ZkrqError, ValueError):
    """The encoded item is larger than the limit; nothing was written."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"the encoded item has {size} bytes, max_payload_bytes is {limit}; nothing was written")
        self.size = size
        self.limit = limit


class QueueFull(ZkrqError):
    """As many items are queued or claimed as the queue's max_size allows; nothing was written, retry later."""


class NotEnoughReplicas(ZkrqError):
    """Fewer servers are in sync than min_replicas asks for; retry later."""

    def __init__(self, members: int, min_replicas: int) -> None:
        super().__init__(f"{members} server(s) in sync, min_replicas is {min_replicas}; retry later")
        self.members = members
        self.min_replicas = min_replicas


class OutcomeUnknown(ZkrqError):
    """The time ran out in the middle: it may have happened.  Retry with the same id.

    ``ids`` are the items concerned; pushing them again under these ids cannot double them.
    """

    def __init__(self, message: str | None = None, *, ids: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.ids = ids

    @property
    def id(self) -> str | None:
        """The only item concerned, or None where there is not exactly one."""
        return self.ids[0] if len(self.ids) == 1 else None


class Unavailable(ZkrqError):
    """No server that may be believed can be reached, or no ZooKeeper where one is needed; retry later."""


class ClaimLost(ZkrqError):
    """The claim no longer holds: somebody else may have the item.  Stop working on it."""

    def __init__(self, message: str | None = None, *, id: str | None = None) -> None:
        super().__init__(message or (f"the claim on item {id} no longer holds; stop working on it" if id else None))
        self.id = id


class Closed(ZkrqError):
    """The queue or the cluster is closed."""


class WrongLoop(ZkrqError):
    """The cluster was opened on another event loop or in another process; open one of its own in each.

    Nothing has happened, and the cluster works on where it was opened.
    """
