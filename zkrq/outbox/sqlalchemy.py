"""The outbox and the inbox in a database of SQLAlchemy, 2.0 or newer: extra ``sqlalchemy``.

``define_tables(metadata)`` adds the two tables to a ``MetaData``, for ``create_all`` or Alembic's autogeneration.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import sqlalchemy as sa
from sqlalchemy.orm import Session

from zkrq.base.codecs import JSON, Codec
from zkrq.outbox.forwarding import ForwarderBase
from zkrq.outbox.inbox import InboxBase
from zkrq.outbox.rows import Execute, OutboxOptions, write

if TYPE_CHECKING:
    # Needs greenlet, which a program with a plain engine need not have.
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

    from zkrq.client.cluster import Cluster

__all__ = ["Forwarder", "Inbox", "define_tables", "push", "push_async"]

T = TypeVar("T")

Transaction = Session | sa.Connection


def define_tables(metadata: sa.MetaData) -> tuple[sa.Table, sa.Table]:
    """Add ``zkrq_outbox`` and ``zkrq_inbox`` to the tables of an application."""
    outbox = sa.Table(
        "zkrq_outbox",
        metadata,
        sa.Column("id", sa.String(128), primary_key=True),
        sa.Column("queue", sa.String(128), nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
        sa.Column("options", sa.Text, nullable=False),
        sa.Column("created_us", sa.BigInteger, nullable=False),
        sa.Column("leased_by", sa.String(32), nullable=False),
        sa.Column("leased_until_us", sa.BigInteger, nullable=False),
        sa.Column("failure", sa.String(500)),
        sa.Index("zkrq_outbox_order", "created_us", "id"),
    )
    inbox = sa.Table(
        "zkrq_inbox",
        metadata,
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("entry", sa.String(64), primary_key=True),
        sa.Column("token", sa.String(40), nullable=False),
        sa.Column("seen_us", sa.BigInteger, nullable=False),
    )
    return outbox, inbox


def _execute(on: Transaction, statement: str, values: Mapping[str, object]) -> Sequence[Sequence[Any]]:
    result = on.execute(sa.text(statement), dict(values))
    return result.all() if isinstance(result, sa.CursorResult) and result.returns_rows else ()


def push(on: Transaction, queue: str, item: Any, *, codec: Codec[Any] = JSON, **options: Unpack[OutboxOptions]) -> str:
    """Write an item into the outbox, as a part of the transaction of a session or connection; return its id.

    A forwarder pushes it once the transaction is committed; if it is rolled back, there is no item.  ``codec``: that of
    the queue.  Options as for ``Queue.push``; ``delay`` and ``ttl`` count from now.  Raises ``ConfigError``,
    ``CodecError``, ``PayloadTooLarge``: nothing was written; and what SQLAlchemy raises.
    """
    return write(partial(_execute, on), queue, item, codec, **options)


async def push_async(
    on: AsyncSession | AsyncConnection,
    queue: str,
    item: Any,
    *,
    codec: Codec[Any] = JSON,
    **options: Unpack[OutboxOptions],
) -> str:
    """Write an item into the outbox, as ``push``, by a session or connection of ``sqlalchemy.ext.asyncio``."""
    return await on.run_sync(lambda own: write(partial(_execute, own), queue, item, codec, **options))


class Forwarder(ForwarderBase):
    """Forward the outbox of this database; see ``ForwarderBase``.  A plain engine is used in threads."""

    def __init__(
        self, engine: sa.Engine | AsyncEngine, cluster: Cluster, *, codecs: Mapping[str, Codec[Any]] | None = None
    ) -> None:
        super().__init__(cluster, codecs or {})
        self._engine = engine

    async def _transact(self, work: Callable[[Execute], T]) -> T:
        if not isinstance(self._engine, sa.Engine):
            async with self._engine.begin() as connection:
                return await connection.run_sync(lambda own: work(partial(_execute, own)))
        return await asyncio.to_thread(self._transact_here, self._engine, work)

    @staticmethod
    def _transact_here(engine: sa.Engine, work: Callable[[Execute], T]) -> T:
        with engine.begin() as connection:
            return work(partial(_execute, connection))


class Inbox(InboxBase):
    """The inbox in the transaction of a session or connection; see ``InboxBase``."""

    def __init__(self, name: str, on: Transaction) -> None:
        super().__init__(name, partial(_execute, on))
