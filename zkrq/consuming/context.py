"""What all parts of one queue in one client share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from zkrq.base.codecs import Place, codec_at
from zkrq.base.limits import DeadLetters, Declared
from zkrq.base.retry import Retry

if TYPE_CHECKING:
    from zkrq.base.codecs import Codec
    from zkrq.base.events import Events
    from zkrq.base.loop import OwnLoop
    from zkrq.base.settings import ProgramOptions
    from zkrq.base.tasks import Once, Tasks
    from zkrq.consuming.flow import FlowWork
    from zkrq.consuming.identity import Identity
    from zkrq.consuming.observing import Observers


class Declaring(Protocol):
    """Gives a queue the settings of a section; ``read``: those that they replace, None: whatever is there."""

    def __call__(self, declared: Declared, read: Declared | None = None) -> Awaitable[None]: ...


class Deliveries:
    """Know how often an item of a queue may be delivered, by the policy of this program that allows the most."""

    __slots__ = ("most",)

    def __init__(self, retry: Retry) -> None:
        self.most = retry.max_attempts or 0
        """Deliveries after which servers bury an item that was never settled; 0: no limit."""

    def allow(self, retry: Retry) -> None:
        """Allow as many as this policy, which is that of some of the items."""
        if self.most:
            self.most = max(self.most, retry.max_attempts) if retry.max_attempts else 0


@dataclass(frozen=True, slots=True)
class QueueContext:
    """Name of the cluster and the queue, the settings of the queue, and what its client lends to all queues.

    ``declared_dead`` is called with an owner id that a server has refused: this consumer was fenced.
    ``declare_limits`` gives the queue other settings of a section.  ``flows``: what flows ask of the client.
    ``declaration``: what is to be declared of it before its first push or claim, None: nothing.
    """

    cluster: str
    queue: str
    settings: ProgramOptions
    own_loop: OwnLoop
    tasks: Tasks
    events: Events
    observers: Observers
    identity: Identity
    declared_dead: Callable[[str], None]
    declare_limits: Declaring
    flows: FlowWork
    declaration: Once | None = None
    codec: Codec[Any] = field(init=False)
    """What encodes and decodes the items."""
    deliveries: Deliveries = field(init=False)
    """How often an item may be delivered."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "deliveries", Deliveries(self.retry))
        object.__setattr__(self, "codec", codec_at(self.settings.codec, Place(self.cluster, self.queue)))

    @property
    def saved_codec(self) -> Codec[Any]:
        """What encodes and decodes saved states."""
        return codec_at(self.settings.saved, Place(self.cluster, self.queue))

    @property
    def retry(self) -> Retry:
        """Policy after a failure."""
        return self.settings.retry or Retry()

    @property
    def dead_letters(self) -> DeadLetters:
        """How many dead letters are kept, and for how long."""
        return self.settings.dead_letters or DeadLetters()
