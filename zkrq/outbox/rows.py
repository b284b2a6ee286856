"""Write, lease and remove rows of the two tables, by statements that SQLite, PostgreSQL, MySQL and MariaDB know.

Outbox: a forwarder *leases* rows by one short transaction, pushes them without any, and removes them by another one.
So no lock is held while a server of zkrq is slow, and the rows of a forwarder that died are leased by others when its
lease is over.  Correctness needs no lease: a row that two forwarders push is one item, because both use its id.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from zkrq.base import clock
from zkrq.base.checks import check_id, check_name
from zkrq.base.codecs import JSON, Codec
from zkrq.base.errors import CodecError, ConfigError, PayloadTooLarge, text_of
from zkrq.base.ids import made_at_ms
from zkrq.operations.push import PUSH, PushOptions, wait_of

Execute = Callable[[str, Mapping[str, object]], Sequence[Sequence[Any]]]
"""Executes a statement with parameters written as ``:name``, inside a transaction; returns its rows, if it has any."""

LEASE_SECONDS = 120.0
"""Seconds for which rows belong to the forwarder that leased them; longer than the longest ``operation_timeout``."""

BATCH = 100
"""Rows that are leased and pushed at a time."""

MAX_PAYLOAD = 1 << 20
"""Bytes of an encoded item, as a queue's ``max_payload_bytes`` is by default."""

MAX_FAILURE = 500
"""Characters of the reason that is kept for a row that cannot be pushed."""

CREATE_OUTBOX = (
    "CREATE TABLE zkrq_outbox (id VARCHAR(128) NOT NULL PRIMARY KEY, queue VARCHAR(128) NOT NULL, payload TEXT NOT"
    " NULL, options TEXT NOT NULL, created_us BIGINT NOT NULL, leased_by VARCHAR(32) NOT NULL, leased_until_us BIGINT"
    " NOT NULL, failure VARCHAR(500))"
)
CREATE_INDEX = "CREATE INDEX zkrq_outbox_order ON zkrq_outbox (created_us, id)"
CREATE_INBOX = (
    "CREATE TABLE zkrq_inbox (name VARCHAR(128) NOT NULL, entry VARCHAR(64) NOT NULL, token VARCHAR(40) NOT NULL,"
    " seen_us BIGINT NOT NULL, PRIMARY KEY (name, entry))"
)
CREATE = (CREATE_OUTBOX, CREATE_INDEX, CREATE_INBOX)
"""The tables, for migrations."""

DROP = ("DROP TABLE zkrq_outbox", "DROP TABLE zkrq_inbox")

_INSERT = (
    "INSERT INTO zkrq_outbox (id, queue, payload, options, created_us, leased_by, leased_until_us)"
    " VALUES (:id, :queue, :payload, :options, :created_us, '', 0)"
)
# The condition stands twice: PostgreSQL checks the outer one again after it has waited for another forwarder's row.
_LEASE = (
    "UPDATE zkrq_outbox SET leased_by = :by, leased_until_us = :until_us WHERE leased_until_us < :now_us AND id IN"
    " (SELECT id FROM (SELECT id FROM zkrq_outbox WHERE leased_until_us < :now_us AND failure IS NULL"
    " ORDER BY created_us, id LIMIT :count) AS next_rows)"
)
_LEASED = "SELECT id, queue, payload, options FROM zkrq_outbox WHERE leased_by = :by ORDER BY created_us, id"
_REMOVE = "DELETE FROM zkrq_outbox WHERE id = :id AND leased_by = :by"
_POSTPONE = "UPDATE zkrq_outbox SET leased_by = '', leased_until_us = :until_us WHERE id = :id AND leased_by = :by"
_FAIL = "UPDATE zkrq_outbox SET leased_by = '', failure = :failure WHERE id = :id AND leased_by = :by"


class OutboxOptions(PushOptions, total=False):
    """The options of a push into the outbox: as for ``Queue.push``; times count from the call, not from the commit."""


class Row(NamedTuple):
    """A row as it was leased; it is read one by one, because what another program wrote may be unreadable."""

    id: str
    queue: str
    encoded: str
    options: str

    @property
    def payload(self) -> bytes:
        """The item, as its codec has encoded it.  Raises ``ValueError``."""
        return base64.b64decode(self.encoded)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of ``Queue.push``.  Raises ``TooLate`` if its ``ttl`` has ended, anything if the options
        are damaged."""
        options, now = dict[str, Any](json.loads(self.options)), clock.now_us()
        if (due_us := options.pop("due_us", None)) is not None and due_us > now:
            options["delay"] = (due_us - now) / 1e6
        if (ends_us := options.pop("ends_us", None)) is not None:
            if ends_us <= now:
                raise TooLate("its ttl ended before it was forwarded")
            options["ttl"] = (ends_us - now) / 1e6
        return {"id": self.id, **options}


class TooLate(Exception):
    """The item would have expired."""


def write(execute: Execute, queue: str, item: Any, codec: Codec[Any] = JSON, **options: Any) -> str:
    """Write a row, as a part of the caller's transaction; return the item's id.

    Everything is checked here, where the producer can still correct it.  Raises ``ConfigError``, ``CodecError``,
    ``PayloadTooLarge``.
    """
    check_name("the queue's name", queue)
    # Not one of zkrq's own, which carries the time of its push: a row may wait for longer than such an id is taken.
    id = f"outbox-{secrets.token_hex(12)}" if options.get("id") is None else check_id("an item's id", options["id"])
    if made_at_ms(id) is not None:
        raise ConfigError(f"id {id!r} is one that zkrq made for a push of its own; use another one in an outbox")
    kept = _kept_options(options)
    try:
        payload = codec.encode(item)
    except Exception as error:
        raise CodecError(
            f"the item cannot be encoded by {codec.name}: {text_of(error)}; nothing was written"
        ) from error
    if len(payload) > MAX_PAYLOAD:
        raise PayloadTooLarge(len(payload), MAX_PAYLOAD)
    values = {"id": id, "queue": queue, "payload": base64.b64encode(payload).decode(), "options": json.dumps(kept)}
    execute(_INSERT, {**values, "created_us": clock.now_us()})
    return id


def _kept_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options as the row keeps them: with moments in place of durations, which count from now."""
    given = {name: value for name, value in options.items() if name != "id"}
    PUSH.check_names("push()", given)
    kept: dict[str, Any] = PUSH.check(given)
    now = clock.now_us()
    if wait := wait_of(kept):
        kept["due_us"] = now + round(wait * 1e6)
    for replaced in ("at", "delay"):
        kept.pop(replaced, None)
    if "ttl" in kept:
        kept["ends_us"] = now + round(kept.pop("ttl") * 1e6)
    return kept


def lease(execute: Execute, by: str, count: int = BATCH) -> list[Row]:
    """Lease the oldest rows that no other forwarder has, for ``LEASE_SECONDS``."""
    now = clock.now_us()
    until = now + round(LEASE_SECONDS * 1e6)
    execute(_LEASE, {"by": by, "now_us": now, "until_us": until, "count": count})
    return [Row(*row) for row in execute(_LEASED, {"by": by})]


def settle(execute: Execute, *, by: str, outcomes: Mapping[str, str | None], retry_seconds: float) -> None:
    """Remove the rows that were pushed (None), keep those that never can be with the reason, and leave the others
    (empty) to any forwarder after ``retry_seconds``."""
    until_us = clock.now_us() + round(retry_seconds * 1e6)
    for id, outcome in outcomes.items():
        if outcome is None:
            execute(_REMOVE, {"id": id, "by": by})
        elif outcome:
            execute(_FAIL, {"id": id, "by": by, "failure": _storable(outcome)})
        else:
            execute(_POSTPONE, {"id": id, "by": by, "until_us": until_us})


def _storable(reason: str) -> str:
    """Return a reason as every database can store it: one that it refused would keep all rows of the batch leased, and
    have them pushed again and again.  A codec's error may quote anything."""
    return reason.encode(errors="backslashreplace").decode().replace("\0", "\\0")[:MAX_FAILURE]
