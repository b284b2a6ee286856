"""Hold a batch of claims in a thread.

::

    with batch:            # no exception: acks what the body has not settled; an exception: nacks it
        insert(batch.items)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar, overload

from zkrq.sync.claims import Claim

if TYPE_CHECKING:
    from zkrq.base.checks import Duration
    from zkrq.consuming import batch
    from zkrq.sync.portal import Opened

T = TypeVar("T")


class Batch(Sequence[Claim[T]]):
    """Claims of one queue, to be settled together; ``zkrq.Batch`` for threads, with the same meanings and errors.

    Nothing interrupts a thread, so a body goes on even if none of its claims holds: ``ClaimLost`` is raised where it
    ends.
    """

    __slots__ = ("_batch", "_claims", "_opened")

    def __init__(self, opened: Opened, batch: batch.Batch[T]) -> None:
        """Made by ``pop_batches``."""
        self._opened = opened
        self._batch = batch
        self._claims = [Claim(opened, claim) for claim in batch]

    def __repr__(self) -> str:
        return repr(self._batch)

    # -- looking -------------------------------------------------------------------------------------------------------

    @overload
    def __getitem__(self, at: int) -> Claim[T]: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Claim[T]]: ...

    def __getitem__(self, at: int | slice) -> Claim[T] | Sequence[Claim[T]]:
        return self._claims[at]

    def __len__(self) -> int:
        return len(self._claims)

    def __iter__(self) -> Iterator[Claim[T]]:
        return iter(self._claims)

    @property
    def items(self) -> list[T]:
        """The items, in the order of the claims."""
        return [claim.item for claim in self._claims]

    @property
    def queue(self) -> str:
        """Name of the queue that the items are in."""
        return self._batch.queue

    @property
    def lost(self) -> list[Claim[T]]:
        """Claims that were lost, as far as is known here: other consumers may have their items."""
        return self._shown(self._opened.read(lambda: self._batch.lost))

    def _shown(self, lost: Sequence[object]) -> list[Claim[T]]:
        gone = set(map(id, lost))
        return [shown for shown, claim in zip(self._claims, self._batch, strict=True) if id(claim) in gone]

    # -- settling ------------------------------------------------------------------------------------------------------

    def ack(self, results: Sequence[object] | None = None) -> list[Claim[T]]:
        """Ack all claims that are not settled, by one call; return those that were lost.

        Raises as ``zkrq.Batch.ack`` does.
        """
        return self._shown(self._opened.call(lambda: self._batch.ack(results)))

    def nack(self, delay: Duration | None = None, reason: str | None = None) -> list[Claim[T]]:
        """Nack all claims that are not settled; return those that were lost.  Raises as ``ack`` does."""
        return self._shown(self._opened.call(lambda: self._batch.nack(delay, reason)))

    def release(self, delay: Duration | None = None) -> list[Claim[T]]:
        """Return the items of all claims that are not settled to the queue, uncounted; return those that were lost.

        ``delay``: as of ``zkrq.Batch.release``.  Raises as ``ack`` does.
        """
        return self._shown(self._opened.call(lambda: self._batch.release(delay)))

    # -- context manager -----------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._opened.call(self._batch.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return self._opened.call(lambda: self._batch.__aexit__(kind, error, traceback))
