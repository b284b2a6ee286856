"""The outbox and the inbox in a database of Django: extra ``django``.

``INSTALLED_APPS`` has ``"zkrq.outbox.django"``, and ``manage.py migrate`` makes the two tables.

    with transaction.atomic():
        order.save()
        zkrq.outbox.django.push("emails", {"order": order.pk})

``manage.py zkrq_forward`` forwards, with the servers in the environment (``ZKRQ_REDIS``, ``ZKRQ_ZOOKEEPER`` ...); or a
``Forwarder`` in a worker.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from django.db import close_old_connections, connections, transaction

from zkrq.base.codecs import JSON, Codec
from zkrq.outbox.forwarding import ForwarderBase
from zkrq.outbox.inbox import InboxBase
from zkrq.outbox.rows import Execute, OutboxOptions, write

if TYPE_CHECKING:
    from zkrq.client.cluster import Cluster

__all__ = ["Forwarder", "Inbox", "push"]

T = TypeVar("T")

_NAME = re.compile(r":(\w+)")


def _execute(using: str, statement: str, values: Mapping[str, object]) -> Sequence[Sequence[Any]]:
    with connections[using].cursor() as cursor:
        cursor.execute(_NAME.sub(r"%(\1)s", statement), values)
        return cursor.fetchall() if cursor.description else ()


def push(
    queue: str, item: Any, *, using: str = "default", codec: Codec[Any] = JSON, **options: Unpack[OutboxOptions]
) -> str:
    """Write an item into the outbox, as a part of the transaction of this thread; return its id.

    Call it inside ``transaction.atomic(using=using)``.  ``codec``: that of the queue.  Options as for ``Queue.push``;
    ``delay`` and ``ttl`` count from now.  Raises ``ConfigError``, ``CodecError``, ``PayloadTooLarge``: nothing was
    written; and what Django raises.
    """
    return write(partial(_execute, using), queue, item, codec, **options)


class Forwarder(ForwarderBase):
    """Forward the outbox of this database, in threads; see ``ForwarderBase``."""

    def __init__(
        self, cluster: Cluster, *, using: str = "default", codecs: Mapping[str, Codec[Any]] | None = None
    ) -> None:
        super().__init__(cluster, codecs or {})
        self._using = using

    async def _transact(self, work: Callable[[Execute], T]) -> T:
        return await asyncio.to_thread(self._transact_here, work)

    def _transact_here(self, work: Callable[[Execute], T]) -> T:
        close_old_connections()  # each thread has its own, which the database may have ended meanwhile
        with transaction.atomic(using=self._using):
            return work(partial(_execute, self._using))


class Inbox(InboxBase):
    """The inbox in the transaction of this thread; see ``InboxBase``."""

    def __init__(self, name: str, *, using: str = "default") -> None:
        super().__init__(name, partial(_execute, using))
