"""Define what the bodies of requests and replies consist of.  Requests are checked here, before anything is done.

Items are JSON, as ``zkrq.JSON`` writes them for Python programs, or bytes in base64.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, NoReturn, Self, TypeVar, cast

from fastapi import Path, Query
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ValidationError,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError

from zkrq.base.checks import (
    MAX_DURATION,
    MAX_GROUP,
    MAX_HEADERS,
    MAX_ID,
    MAX_LEASE,
    MAX_NAME,
    check_group,
    check_headers,
    check_id,
    check_name,
)
from zkrq.base.codecs import JSON
from zkrq.base.errors import REASON_MAX, CodecError, PayloadTooLarge, Receipt
from zkrq.base.ids import check_push_id
from zkrq.base.limits import (
    CONCURRENCY_MAX,
    HISTORY_MAX,
    RATE_MAX,
    RATE_SECONDS,
    RESULT_TTL_LEAST,
    RESULT_TTL_MAX,
    QueueSettings,
    check_result,
)
from zkrq.client.changing import Named
from zkrq.client.cursors import TEXT_MAX, Cursor
from zkrq.client.inspection import GROUPS_MAX, Statistics
from zkrq.client.items import EndState, FoundPage, Item, ItemState
from zkrq.protocol.records import PRIORITIES
from zkrq.serve.problems import Happened

if TYPE_CHECKING:
    from zkrq.base.results import Result
    from zkrq.consuming.claims import Claim

T = TypeVar("T")

PUSH_MAX = 1_000
"""Items of one request to push many."""

CLAIM_MAX = 100
"""Claims of one request."""

ACK_MAX = 500
"""Claims that one request acks."""

LETTERS_MAX = 100
"""Dead letters of one request."""

WAIT_MAX = 60.0
"""Seconds that a request for claims waits for items."""

LEASE_SECONDS = 30.0
"""Seconds that a lease lasts unless the client says otherwise."""

SIZE_MAX = (1 << 53) - 1
"""Greatest limit of a queue's size: what every client reads exactly."""

TOKEN_MAX = 64
"""Characters in the name of a claim."""

LEAST_LEASE = 1.0
"""Seconds; a shorter lease would pass on the way."""


UNKNOWN_NAMED = 5
"""Unknown fields that an error names."""


def _named(check: Callable[[str, T], T], what: str) -> AfterValidator:
    """Make a check of the library one of the model; its ``ConfigError`` is a ``ValueError``."""

    def validate(value: T) -> T:
        return check(what, value)

    return AfterValidator(validate)


def _check_all_headers(headers: dict[str, str]) -> dict[str, str]:
    return dict(check_headers(headers))


QueueName = Annotated[
    str,
    _named(check_name, "the queue's name"),
    Path(
        description="Letters, digits and `_ . : -`, beginning with a letter, a digit or `_`.",
        max_length=MAX_NAME,
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:\-]*$",
    ),
]

ClaimToken = Annotated[
    str, Path(description="`claim` of the reply that gave the claim.", min_length=1, max_length=TOKEN_MAX)
]

ItemId = Annotated[str, _named(check_id, "id"), Path(description="The item's id.", min_length=1, max_length=MAX_ID)]

FOUND_MAX = 500
"""Items of one request to find some."""


def _check_cursor(text: str) -> str:
    Cursor.read(text)
    return text


PageLimit = Annotated[int, Query(ge=1, le=FOUND_MAX, description="Items at most.", examples=[100])]

GroupLimit = Annotated[int, Query(ge=1, le=GROUPS_MAX, description="Groups at most.", examples=[10])]

StateQuery = Annotated[
    ItemState | None, Query(description="Only items in this state; left out: in any.", examples=["dead"])
]

KeyQuery = Annotated[
    Annotated[str, _named(check_id, "key")] | None,
    Query(description="Only items with this key.", min_length=1, max_length=MAX_ID, examples=["user-42"]),
]

HeaderQuery = Annotated[
    str | None,
    Query(
        description="Only items with this header: its name, `=`, its value.",
        pattern="=",
        max_length=MAX_HEADERS,
        examples=["campaign=spring"],
    ),
]

ErrorQuery = Annotated[
    str | None,
    Query(
        description="Only items whose reason contains this text, in upper or lower case.",
        min_length=1,
        max_length=REASON_MAX,
        examples=["connection refused"],
    ),
]

GroupQuery = Annotated[
    Annotated[str, AfterValidator(check_group)] | None,
    Query(description="Only items of this group.", min_length=1, max_length=MAX_GROUP, examples=["tenant-42"]),
]

AfterQuery = Annotated[
    Annotated[str, AfterValidator(_check_cursor)] | None,
    Query(
        description="`next` of the reply before; left out: begin.",
        min_length=1,
        max_length=TEXT_MAX,
        pattern="^[A-Za-z0-9_-]+$",
    ),
]


class PageWanted(NamedTuple):
    """How much of a list is asked for, and from where."""

    limit: int
    after: str | None


def page_wanted(limit: PageLimit = 100, after: AfterQuery = None) -> PageWanted:
    """Read what part of a list a request asks for."""
    return PageWanted(limit, after)


Id = Annotated[str, _named(check_id, "id"), Field(min_length=1, max_length=MAX_ID)]


def _check_push_id(id: str) -> str:
    check_push_id(id)
    return id


PushId = Annotated[str, AfterValidator(_check_push_id), Field(min_length=1, max_length=MAX_ID)]

Group = Annotated[str, AfterValidator(check_group), Field(min_length=1, max_length=MAX_GROUP)]

Lease = Annotated[float, Field(ge=LEAST_LEASE, le=MAX_LEASE, allow_inf_nan=False)]

KeyWindow = Annotated[float, Field(ge=1.0, le=30 * 86400.0, allow_inf_nan=False)]

Seconds = Annotated[float, Field(ge=0, le=MAX_DURATION, allow_inf_nan=False)]


class _Request(BaseModel):
    """A body of a request: nothing is converted, and a field that does not exist is an error."""

    model_config = ConfigDict(strict=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _check_fields(cls, given: object) -> object:
        """Refuse unknown fields with one error: pydantic makes an error of each, and 300,000 took seconds."""
        if isinstance(given, dict):
            fields = cast("dict[str, Any]", given)
            if unknown := list(islice((name for name in fields if name not in cls.model_fields), UNKNOWN_NAMED + 1)):
                names = ", ".join(f"{name!r:.50}" for name in unknown[:UNKNOWN_NAMED])
                more = ", ..." * (len(unknown) > UNKNOWN_NAMED)
                text = PydanticCustomError("extra_forbidden", "there is no field {names}", {"names": names + more})
                wrong = InitErrorDetails(type=text, loc=(unknown[0][:50],), input=None)
                raise ValidationError.from_exception_data(cls.__name__, [wrong])
            if len(fields.get("headers") or ()) > MAX_HEADERS:
                raise ValueError(f"headers have at most {MAX_HEADERS} bytes, so there are too many")
        return cast("object", given)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Leave defaults out of the schema: from a field with one, some generators make one that is always sent."""
        described = handler(schema)
        for field in handler.resolve_ref_schema(described).get("properties", {}).values():
            field.pop("default", None)
        return described


class Payload(_Request):
    """An item: `item` or `base64`."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["item"]}, {"required": ["base64"]}]})

    item: Any = Field(None, description="The item, any JSON value; workers in Python get it decoded.")
    base64: str | None = Field(None, description="Instead of `item`: bytes in base64, stored as they are.")

    @model_validator(mode="after")
    def _check_payload(self) -> Self:
        if ("item" in self.model_fields_set) == (self.base64 is not None):
            raise ValueError("exactly one of item and base64 is expected")
        return self

    def payload(self) -> bytes:
        """Return the item as it is stored.  Raises ``CodecError``."""
        try:
            if self.base64 is not None:
                return b64decode(self.base64, validate=True)
            return JSON.encode(self.item)
        except ValueError as error:
            form = "base64" if self.base64 is not None else "JSON"
            raise CodecError(f"the item is not {form}: {error}; nothing was written") from error


class Push(Payload):
    """An item to push: `item` or `base64`, and how."""

    id: PushId | None = Field(
        None,
        description="Makes the push repeatable: pushed several times within 300 seconds under one id, the item exists "
        "once.",
    )
    key: Id | None = Field(
        None, description="While another item with this key is queued, scheduled or claimed, nothing is pushed."
    )
    replace: bool = Field(
        False,
        description="With `key`: the item is pushed in the place of queued and scheduled ones with this key. One that "
        "is claimed goes on, and this one is delivered as well. Left out: false.",
    )
    key_window: KeyWindow | None = Field(
        None,
        description="With `key`: seconds, 1 to 2592000, for which pushes with this key and a `key_window` push nothing "
        "either, whatever becomes of this item. Not together with `replace`. Left out: the key is free once the item "
        "is done or dead.",
    )
    delay: Seconds = Field(0.0, description="Seconds until the item may first be delivered; left out: 0.")
    priority: int = Field(
        0, ge=PRIORITIES.start, le=PRIORITIES.stop - 1, description="Higher is delivered first; left out: 0."
    )
    ttl: Annotated[float, Field(gt=0, le=MAX_DURATION, allow_inf_nan=False)] | None = Field(
        None, description="Seconds from now after which the item is no longer delivered; must be longer than `delay`."
    )
    group: Group | None = Field(
        None, description="The tenant, user or job that the item belongs to; groups take turns. Left out: none."
    )
    headers: Annotated[dict[str, str], AfterValidator(_check_all_headers)] = Field(
        default_factory=dict[str, str], description="Short texts beside the item, by name: 4,096 bytes in all."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.ttl is not None and self.ttl <= self.delay:
            raise ValueError("ttl is not longer than delay: never delivered")
        if self.replace and self.key is None:
            raise ValueError("replace needs a key")
        if self.key_window is not None and (self.key is None or self.replace):
            raise ValueError("key_window needs a key, and excludes replace")
        return self


class PushMany(_Request):
    """Items to push, each as in a push of one."""

    items: list[Push] = Field(min_length=1, max_length=PUSH_MAX)


class ClaimItems(_Request):
    """How many items to claim, for how long."""

    count: int = Field(1, ge=1, le=CLAIM_MAX, description="At most this many items; left out: 1.")
    wait: float = Field(
        0.0,
        ge=0,
        le=WAIT_MAX,
        allow_inf_nan=False,
        description="Seconds to wait until at least one item is ready; left out: 0.",
    )
    lease: Lease = Field(
        LEASE_SECONDS,
        description="Seconds for which the claims hold unless they are extended. Then the items go back, which counts "
        "as a failed delivery. Left out: 30.",
    )


class Ack(_Request):
    """What the work has returned, and whether to claim the next item in the same step."""

    result: Any = Field(
        None,
        description="What callers that wait for the item get, any JSON value, up to 32 KiB; left out: nothing.",
    )
    ttl: Annotated[float, Field(ge=RESULT_TTL_LEAST, le=RESULT_TTL_MAX, allow_inf_nan=False)] = Field(
        3600.0,
        description="Seconds for which the result is kept, unless the settings of the queue say it; left out: 3600.",
    )

    next: bool = Field(
        False,
        description="Claim one item that is ready, too, which costs less than a request of its own; left out: no.",
    )
    lease: Lease = Field(LEASE_SECONDS, description="Seconds for which that claim holds; left out: 30.")

    def kept(self) -> tuple[bytes, int] | None:
        """Return the result as it is stored, and its milliseconds, None without one.

        Raises ``CodecError``, ``PayloadTooLarge``.
        """
        if "result" not in self.model_fields_set:
            return None
        try:
            return b"" if self.result is None else check_result(JSON.encode(self.result)), round(self.ttl * 1000)
        except PayloadTooLarge:
            raise
        except ValueError as error:
            raise CodecError(f"the result is not JSON: {error}; the item was not acked") from error


class ReportProgress(_Request):
    """How far the work is."""

    fraction: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = Field(
        None, description="0 to 1; left out: unknown."
    )
    text: str = Field(
        "", max_length=REASON_MAX, description="In words, of which the first 200 characters are kept; left out: none."
    )


class Reported(BaseModel):
    """The report is sent, or will be within a second unless a later one takes its place."""

    reported: bool


class AckMany(_Request):
    """Claims whose work is done, of any queues."""

    claims: list[Annotated[str, Field(min_length=1, max_length=TOKEN_MAX)]] = Field(
        min_length=1, max_length=ACK_MAX, description="`claim` of the replies that gave the claims."
    )


class Nack(_Request):
    """Why the work failed, and when to deliver the item again."""

    delay: Seconds | None = Field(None, description="Seconds; left out: as the retry policy says.")
    reason: str | None = Field(None, description="Kept with the item.", max_length=REASON_MAX)


class Bury(_Request):
    """Why the item can never be done."""

    reason: str = Field(
        "rejected", description="Kept with the dead letter; left out: `rejected`.", max_length=REASON_MAX
    )


class Extend(_Request):
    """For how long to hold the item."""

    lease: Lease = Field(LEASE_SECONDS, description="Seconds from now; left out: 30.")


class Redrive(_Request):
    """Which dead letters to queue again."""

    ids: list[Id] | None = Field(
        None, max_length=LETTERS_MAX, description="Ids of dead letters, others are skipped; left out: all."
    )
    group: Group | None = Field(None, description="In place of `ids`: those of this group.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.ids is not None and self.group is not None:
            raise ValueError("give either ids or a group")
        return self


class Pushed(BaseModel):
    """What a push did."""

    id: str = Field(description="The item's id; of a duplicate, of the item that has the key or began its window.")
    replicas: int = Field(description="Servers that hold the item.")
    duplicate: bool = Field(description="Nothing was pushed: another item has the key, or its window is not over.")
    done: bool = Field(
        description="Nothing was pushed: an item with this id was pushed before and is already gone; with `duplicate`, "
        "the one that began the window."
    )
    new: bool | None = Field(
        description="Whether this push put the item into the queue; false also if an item with this id is there "
        "already. null: not known, because a server died or a connection broke, and the push was repeated."
    )
    replaced: list[str] = Field(description="Ids of the queued items in whose place this one was pushed.")


class Problem(BaseModel):
    """What went wrong."""

    error: str = Field(description="The kind of error.")
    happened: Happened = Field(description="Whether anything may have been done.")
    next: str = Field(description="What the client does now, for people.")
    message: str
    ids: list[str] = Field([], description="Of items that may or may not have been pushed: push under these ids.")
    outcomes: list[Pushed | Problem] = Field([], description="Of a push of many: what became of each item, in order.")


class PushedMany(BaseModel):
    """What a push of many did, if it did all: an outcome for each item, in order."""

    outcomes: list[Pushed]


class ClaimedItem(BaseModel):
    """An item in the hands of this client."""

    claim: str = Field(description="The name of this claim: for ack, nack, extend ... Keep it to yourself.")
    id: str
    item: Any = Field(None, description="The item, if its bytes are JSON.")
    base64: str | None = Field(None, description="Otherwise: its bytes in base64.")
    headers: dict[str, str]
    key: str | None
    group: str | None
    priority: int
    attempts: int = Field(description="Deliveries that count, including this one.")
    failures: int = Field(description="Earlier deliveries that failed.")
    pushed_at: datetime
    fencing: tuple[int, int] = Field(description="Greater in a later claim of the item, or of its ordered group.")
    lease: float = Field(description="Seconds for which the claim holds unless it is extended.")


class Claimed(BaseModel):
    """Items that were claimed: none if none was ready."""

    claims: list[ClaimedItem]


class Progress(BaseModel):
    """How far the work on a claimed item is, as its handler has reported."""

    fraction: float | None = Field(description="0 to 1; null if it was not given.")
    text: str
    age: float = Field(description="Seconds since the report.")


class StoredItem(BaseModel):
    """An item as it was when it was read."""

    id: str
    item: Any = Field(None, description="The item, if its bytes are JSON.")
    base64: str | None = Field(None, description="Otherwise: its bytes in base64.")
    state: ItemState
    headers: dict[str, str]
    key: str | None
    group: str | None
    priority: int
    attempts: int = Field(description="Deliveries that count.")
    failures: int = Field(description="Deliveries that failed.")
    pushed_at: datetime
    seconds_left: float | None = Field(description="Until the item is due, or its claim ends.")
    expires_in: float | None = Field(description="Seconds until its `ttl` ends.")
    owner: str | None = Field(description="Who has claimed it.")
    reason: str | None = Field(description="Why it is a dead letter, or failed last.")
    died_at: datetime | None = Field(description="When it became a dead letter.")
    progress: Progress | None = Field(description="Of one claimed item that is looked up; null in lists.")
    held_for: float | None = Field(description="Seconds since the claim of a claimed item began.")


class Ended(BaseModel):
    """An item that has ended."""

    id: str
    state: EndState
    ended_at: datetime
    took: float | None = Field(description="Seconds since its last claim began; null: no consumer ended it.")
    owner: str | None = Field(description="The consumer that ended it.")
    attempts: int = Field(description="Deliveries that count.")
    key: str | None
    group: str | None
    reason: str | None = Field(description="Why it is a dead letter.")


class ConsumerFigures(BaseModel):
    """A live consumer."""

    description: str
    version: str = Field(description="Its release of zkrq; empty: older than 0.2.0.")
    host: str
    since: datetime | None = Field(description="When its client connected, by the clock of its machine.")
    slots: int = Field(description="Handlers that its workers run at the same time; 0: it has no worker.")
    claims: dict[str, int] = Field(description="Number of its claims, by queue.")


class Consumers(BaseModel):
    """All live consumers."""

    consumers: dict[str, ConsumerFigures] = Field(description="By the owner id that claimed items name.")


class GroupFigures(BaseModel):
    """A group of a queue."""

    name: str
    waiting: int = Field(description="Items that are due; an estimate of large groups.")
    claimed: int
    standing: Literal["in line", "blocked", "failed", "idle"] = Field(
        description="`blocked`: by its own claims, or by its rate; `failed`: its first item waits for its next "
        "attempt; `idle`: none waits."
    )
    oldest: float | None = Field(description="Seconds since the push of the item that comes next.")


class LargestGroups(BaseModel):
    """The largest groups of a queue."""

    groups: list[GroupFigures]
    looked: int = Field(description="Groups that were looked at.")
    whole: bool = Field(description="Whether these were all.")


class History(BaseModel):
    """The items of a queue that have ended last."""

    kept: int = Field(description="How many the queue keeps; 0: none.")
    items: list[Ended] = Field(description="The latest first.")


Fate = Literal["done", "dead", "cancelled", "expired", "queued", "claimed", "unknown"]


class ItemResult(BaseModel):
    """What became of an item."""

    id: str
    state: Fate = Field(description="`queued`, `claimed`: it has not ended; `unknown`: there is no such item.")
    has_result: bool = Field(description="Whether it is done, and its result is kept.")
    result: Any = Field(None, description="What its handler returned, if its bytes are JSON; null without one.")
    base64: str | None = Field(None, description="Otherwise: its bytes in base64.")
    reason: str | None = Field(description="Why it is a dead letter.")
    owner: str | None = Field(description="Who has claimed it.")
    progress: Progress | None = Field(description="How far the work is, if it is claimed and its handler says so.")


class FoundItems(BaseModel):
    """Some items that were found: none, maybe, while others are still to come."""

    items: list[StoredItem]
    next: str | None = Field(description="Give it as `after` to go on; null: these were the last ones.")
    restarted: bool = Field(
        description="Items of the replies before may come again: `after` came from another primary of the queue, or "
        "from another search."
    )


class DeadLetters(BaseModel):
    """The oldest dead letters of a queue."""

    items: list[StoredItem]


class Cancelled(BaseModel):
    """The item is removed."""

    outcome: Literal["removed", "signalled"] = Field(
        description="`signalled`: it was claimed, and its holder is notified."
    )


class Redriven(BaseModel):
    """Dead letters are queued again."""

    redriven: int = Field(description="How many.")


class QueueLimits(BaseModel):
    """Limits of a queue over all workers and processes."""

    concurrency: int | None = Field(None, description="Items claimed at once, at most; null: no limit.")
    rate: int | None = Field(None, description="Claims begun within `seconds`, at most; null: no limit.")
    seconds: float | None = Field(None, description="The time of `rate`; null without one.")


class GroupLimits(BaseModel):
    """Limits of each group of a queue over all workers and processes."""

    concurrency: int | None = Field(None, description="Items of a group claimed at once, at most; null: no limit.")
    ordered: bool = Field(False, description="Whether each group keeps the order of its pushes.")
    rate: int | None = Field(None, description="Claims of a group begun within `seconds`, at most; null: no limit.")
    seconds: float | None = Field(None, description="The time of `rate`; null without one.")


class KeptLetters(BaseModel):
    """Which dead letters a queue keeps."""

    max_count: int | None = Field(description="Dead letters that are kept, the latest ones; null: all.")
    max_age: float | None = Field(description="Seconds for which they are kept; null: for ever.")
    expired: bool = Field(description="Whether items that outlive their `ttl` become dead letters.")


class StoredSettings(BaseModel):
    """What a queue promises, whichever program or operator has declared it."""

    limits: QueueLimits
    groups: GroupLimits
    history: int = Field(description="Items that have ended last that are kept; 0: none.")
    max_size: int | None = Field(
        description="Items that it may have, queued, scheduled and claimed together; null: any number."
    )
    dead_letters: KeptLetters
    results_ttl: float | None = Field(
        description="Seconds for which results of items are kept; null: for as long as each ack says."
    )


class ChangeLimits(_Request):
    """Limits to change; what is left out stays."""

    concurrency: Annotated[int, Field(strict=True, ge=1, le=CONCURRENCY_MAX)] | None = Field(
        None, description="Items claimed at once, at most; null: no limit; left out: as it is."
    )
    rate: Annotated[int, Field(strict=True, ge=1, le=RATE_MAX)] | None = Field(
        None, description="Claims begun within `seconds`, at most; null: no limit; left out: as it is."
    )
    seconds: Annotated[float, Field(ge=RATE_SECONDS[0], le=RATE_SECONDS[1], allow_inf_nan=False)] | None = Field(
        None, description="The time of `rate`, 0.1 to 3600, given together with it; left out or null: 1."
    )

    @model_validator(mode="after")
    def _check_rate(self) -> Self:
        if self.rate is None and self.seconds is not None:
            raise ValueError("seconds is the time of a rate: give rate too, or null to remove it")
        return self

    def named(self) -> dict[str, Any]:
        """Return what is to change, by field of ``Limits``."""
        rate = None if self.rate is None else (self.rate, 1.0 if self.seconds is None else self.seconds)
        values = {"concurrency": self.concurrency, "rate": rate}
        return {field: value for field, value in values.items() if field in self.model_fields_set}


class ChangeGroups(ChangeLimits):
    """Limits and order of each group to change; what is left out stays."""

    ordered: Annotated[bool, Field(strict=True)] | None = Field(
        None,
        description="Each group keeps the order of its pushes, one item at a time; then without `concurrency`. null: "
        "no order; left out: as it is.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.ordered and self.concurrency is not None:
            raise ValueError("in an ordered group one item is claimed at a time: leave concurrency out")
        return self

    def named(self) -> dict[str, Any]:
        """Return what is to change, by field of ``Groups``."""
        return super().named() | ({"ordered": bool(self.ordered)} if "ordered" in self.model_fields_set else {})


class ChangeLetters(_Request):
    """Which dead letters are kept, to change; what is left out stays."""

    max_count: Annotated[int, Field(strict=True, ge=1, le=SIZE_MAX)] | None = Field(
        None, description="Dead letters to keep, the latest ones; null: all; left out: as it is."
    )
    max_age: Annotated[float, Field(gt=0, le=MAX_DURATION, allow_inf_nan=False)] | None = Field(
        None, description="Seconds for which they are kept; null: for ever; left out: as it is."
    )
    expired: Annotated[bool, Field(strict=True)] = Field(
        False, description="Whether items that outlive their `ttl` become dead letters; left out: as it is."
    )

    def named(self) -> dict[str, Any]:
        """Return what is to change, by field of ``DeadLetters``."""
        return self.model_dump(exclude_unset=True)


class ChangeSettings(_Request):
    """Settings of a queue to change; what is left out stays."""

    limits: ChangeLimits | None = Field(None, description="null: no limits; left out: as they are.")
    groups: ChangeGroups | None = Field(None, description="null: no limits and no order; left out: as they are.")
    history: Annotated[int, Field(strict=True, ge=0, le=HISTORY_MAX)] | None = Field(
        None, description="Items that have ended last to keep; 0 or null: none; left out: as it is."
    )
    max_size: Annotated[int, Field(strict=True, ge=1, le=SIZE_MAX)] | None = Field(
        None, description="Items that it may have; null: any number; left out: as it is."
    )
    dead_letters: ChangeLetters | None = Field(
        None, description="null: 100,000 of any age, without expired items; left out: as they are."
    )
    results_ttl: Annotated[float, Field(ge=RESULT_TTL_LEAST, le=RESULT_TTL_MAX, allow_inf_nan=False)] | None = Field(
        None, description="Seconds for which results are kept; null: for as long as each ack says; left out: as it is."
    )

    def named(self) -> Named:
        """Return what is to change."""
        limits = self.limits or ChangeLimits.model_validate({"concurrency": None, "rate": None})
        groups = self.groups or ChangeGroups.model_validate({"concurrency": None, "rate": None, "ordered": None})
        letters = self.dead_letters.named() if self.dead_letters else asdict(QueueSettings().dead_letters)
        values = {
            "limits": ("limits", limits.named()),
            "groups": ("groups", groups.named()),
            "history": ("history", {"count": self.history or 0}),
            "max_size": ("size", {"max": self.max_size}),
            "dead_letters": ("letters", letters),
            "results_ttl": ("results", {"seconds": self.results_ttl}),
        }
        return dict(section for field, section in values.items() if field in self.model_fields_set)


class Paused(BaseModel):
    """Whether items are claimed from a queue."""

    paused: bool


class Settled(BaseModel):
    """The claim is settled; the same request repeated has the same reply."""

    settled: Literal["ack", "nack", "release", "bury"]


class Acked(Settled):
    """The item is removed; a repeated request claims nothing."""

    next: ClaimedItem | None = Field(
        None, description="Only where it was asked for: the item that was claimed, null if none was ready."
    )


class AckedMany(BaseModel):
    """What became of several claims; the same request repeated has the same reply."""

    acked: int = Field(description="Claims whose items are never delivered again.")
    lost: list[str] = Field(description="Claims that did not hold any more: others may have their items.")


class Extended(BaseModel):
    """The claim holds."""

    lease: float = Field(description="Seconds from now.")


class QueueStatistics(BaseModel):
    """A queue in figures."""

    ready: int
    scheduled: int
    claimed: int
    dead: int
    paused: bool
    oldest_ready: float | None = Field(description="Seconds since the oldest ready item became due.")
    limited: str | None = Field(description="Which limit keeps items from being claimed now; null: none does.")
    away: list[str] = Field(description="Shards that could not be asked; their items are not in these figures.")


class ShardFigures(BaseModel):
    """A shard: one set of servers of the namespace."""

    state: str = Field(description="joining, open, draining or closed.")
    away: str | None = Field(description="Why nothing can be had of it now; null if it can.")


class NamespaceStatistics(BaseModel):
    """The namespace in figures."""

    namespace: str
    epoch: int
    writable: bool = Field(description="Whether enough servers of a shard are in sync for a push.")
    warnings: list[str] = Field(description="Servers that are not in sync, and what one more failure would do.")
    servers: dict[str, str] = Field(description="Each server's place: member, learner, eligible or out.")
    shards: dict[str, ShardFigures] = Field(description="The shards by name; one of them is `main`.")
    queues: dict[str, QueueStatistics]


def pushed(receipt: Receipt) -> dict[str, object]:
    """Return the body of a reply about one push; see ``Pushed``."""
    return receipt._asdict()


def figures(statistics: Statistics) -> QueueStatistics:
    """Return the figures of a queue."""
    sizes = statistics.sizes._asdict()
    return QueueStatistics(
        **sizes,
        paused=statistics.paused,
        oldest_ready=statistics.oldest_ready,
        limited=statistics.limited,
        away=list(statistics.away),
    )


def claimed(token: str, claim: Claim[bytes], seconds: float) -> str:
    """Write one claim as JSON; see ``ClaimedItem``.

    An item that is JSON is put in as it was pushed, since reading and writing could change numbers.
    """
    told: dict[str, object] = {
        "claim": token,
        "id": claim.id,
        "headers": dict(claim.headers),
        "key": claim.key,
        "group": claim.group,
        "priority": claim.priority,
        "attempts": claim.attempts,
        "failures": claim.failures,
        "pushed_at": claim.pushed_at.isoformat(),
        "fencing": claim.token,
        "lease": seconds,
    }
    return with_item(told, claim.item)


def stored(item: Item[bytes]) -> str:
    """Write what is known of an item as JSON; see ``StoredItem``."""
    told: dict[str, object] = {
        "id": item.id,
        "state": item.state,
        "headers": dict(item.headers),
        "key": item.key,
        "group": item.group,
        "priority": item.priority,
        "attempts": item.attempts,
        "failures": item.failures,
        "pushed_at": item.pushed_at.isoformat(),
        "seconds_left": item.seconds_left,
        "expires_in": item.expires_in,
        "owner": item.owner,
        "reason": item.reason,
        "died_at": item.died_at and item.died_at.isoformat(),
        "progress": item.progress and asdict(item.progress),
        "held_for": item.held_for,
    }
    return with_item(told, item.payload)


def told(result: Result[bytes]) -> str:
    """Write what became of an item as JSON; see ``ItemResult``."""
    known: dict[str, object] = {
        "id": result.id,
        "state": result.state.value,
        "has_result": result.has_value,
        "reason": result.reason,
        "owner": result.owner,
        "progress": result.progress and asdict(result.progress),
    }
    return json.dumps(known) if result.value is None else with_item(known, result.value, "result")


def found(page: FoundPage[bytes]) -> str:
    """Write a page of items as JSON; see ``FoundItems``."""
    head = json.dumps({"next": page.next, "restarted": page.restarted})
    return f'{head[:-1]}, "items": [{", ".join(map(stored, page.items))}]}}'


def with_item(told: dict[str, object], payload: bytes, name: str = "item") -> str:
    """Write what is told as JSON, with an item: as it was pushed if it is JSON, else as ``base64``."""
    text = _as_json(payload)
    if text is None:
        told["base64"] = b64encode(payload).decode()
    head = json.dumps(told)
    return head if text is None else f'{head[:-1]}, "{name}": {text}}}'


def _as_json(payload: bytes) -> str | None:
    """Return the text of a payload if it is JSON, as the standard defines it, otherwise None."""
    try:
        text = payload.decode()
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return text


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
