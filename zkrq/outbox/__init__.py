"""Push inside a database's transaction (outbox), and take effect once in one (inbox).

A push and a commit are two systems: a process that dies between them has done one of the two.  With an outbox the item
is a row of the same transaction; a forwarder, in any process and in as many as you like, pushes committed rows into
their queues under ids that make it repeatable, and removes them.

    with engine.begin() as connection:
        connection.execute(insert(orders).values(id=7))
        zkrq.outbox.sqlalchemy.push(connection, "emails", {"order": 7})

    async with zkrq.outbox.sqlalchemy.Forwarder(engine, cluster):    # in a worker, or in a process of its own
        ...

Two bindings: ``zkrq.outbox.sqlalchemy`` and ``zkrq.outbox.django``, the extras ``sqlalchemy`` and ``django``.
"""

from zkrq.outbox.forwarding import Forwarded, ForwarderBase
from zkrq.outbox.inbox import InboxBase
from zkrq.outbox.rows import OutboxOptions

__all__ = ["Forwarded", "ForwarderBase", "InboxBase", "OutboxOptions"]
