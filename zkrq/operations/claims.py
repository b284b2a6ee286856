"""Claims: how one begins, what is known of it, and how it is settled."""

from __future__ import annotations

from typing import Any

from zkrq.base.checks import MAX_LEASE
from zkrq.base.errors import REASON_MAX, CodecError
from zkrq.base.limits import RESULT_TTL_LEAST, RESULT_TTL_MAX
from zkrq.operations.kinds import Choice, Content, Count, Flag, Many, Moment, Number, Pair, Seconds, Text, Texts, Value
from zkrq.operations.operation import Failure, Field, Operation, Parameter, Record

CLAIM_MAX = 100
"""Claims of one request."""

ACK_MAX = 500
"""Claims that one request acks."""

WAIT_MAX = 60.0
"""Seconds that a request waits for items, or for a result."""

LEASE_SECONDS = 30.0
"""Seconds that a lease lasts unless the client says otherwise."""

LEAST_LEASE = 1.0
"""Seconds; a shorter lease would pass on the way."""

TOKEN_MAX = 64
"""Characters in the name of a claim."""

LEASE = Seconds(LEAST_LEASE, MAX_LEASE)

TOKEN = Text(TOKEN_MAX)

CLAIM_PLACE = Parameter("claim", TOKEN, "`claim` of the reply that gave the claim.", required=True)

LOST = Failure("ClaimLost", "The claim does not hold any more: stop working on the item.")

OF_ITEM = (
    Field("id", Text(), "The item's id."),
    Field("item", Content(), "The item."),
    Field("headers", Texts(), "Texts that were pushed with the item, by name."),
    Field("key", Text(), "Unique while the item is queued or claimed.", nullable=True),
    Field("group", Text(), "The group that the item was pushed into.", nullable=True),
    Field("task", Text(), "The task that the item was pushed for.", nullable=True),
    Field("priority", Count(), "0 to 9, higher is delivered first."),
    Field("pushed_at", Moment(), "When the item was pushed, by the producer's clock."),
)
"""Fields that a claim and an item at rest have in common."""


def _flow_of(claim: Any) -> str | None:
    """Return the full name of the flow of a claimed item."""
    flow = claim.flow
    return f"{flow.queue}/{flow.name}" if flow else None


def _saved_of(claim: Any) -> Any:
    """Return what was saved, None if this program cannot read it."""
    try:
        return claim.saved
    except CodecError:
        return None


CLAIMED = Record(
    "Claim",
    "One item that a consumer holds.",
    (
        *OF_ITEM,
        Field("queue", Text(), "The queue that the item is in."),
        Field("owner", Text(), "The owner id of the consumer, as `consumers` lists it."),
        Field("attempts", Count(), "Deliveries that count, including this one."),
        Field("failures", Count(), "Earlier deliveries that failed."),
        Field(
            "saved",
            Value(),
            "What was saved of the work, by this claim or an earlier one; null: nothing that can be read.",
            source=_saved_of,
            nullable=True,
        ),
        Field(
            "flow",
            Text(),
            "The flow of which the item is a member, or whose end it followed: the queue on which it was begun, a "
            "slash, its name; null: none.",
            source=_flow_of,
            nullable=True,
        ),
        Field("deadline", Moment(), "When the claim ends unless it is extended, by the clock of the claim's machine."),
        Field(
            "fencing", Pair(Count()), "Greater in a later claim of the item, or of its ordered group.", source="token"
        ),
    ),
)

CLAIMED_ITEM = Record(
    "ClaimedItem",
    "An item in the hands of this client.",
    (
        Field("claim", TOKEN, "The name of this claim: for ack, nack, extend ... Keep it to yourself."),
        *CLAIMED.fields,
        Field("lease", Seconds(), "Seconds for which the claim holds unless it is extended."),
    ),
)

SETTLED = Record(
    "Settled",
    "The claim is settled; the same request repeated has the same reply.",
    (Field("settled", Choice(("ack", "nack", "release", "bury"))),),
)

CLAIM = Operation(
    "claim",
    "Claim items that are ready; wait for one if there is none. A client that hangs up leaves them in the queue.",
    (
        Parameter("count", Count(1, CLAIM_MAX), "At most this many items.", "1", default=1),
        Parameter(
            "wait",
            Seconds(0.0, WAIT_MAX),
            "Seconds to wait until at least one item is ready.",
            "0",
            default=0.0,
        ),
        Parameter(
            "lease",
            LEASE,
            "Seconds for which the claims hold unless they are extended. Then the items go back, which counts as a "
            "failed delivery.",
            "30",
            default=LEASE_SECONDS,
        ),
    ),
    result=Record(
        "Claimed", "Items that were claimed: none if none was ready.", (Field("claims", Many(CLAIMED_ITEM)),)
    ),
    method="POST",
    path="/queues/{queue}/claim",
    repeatable=False,
    more="A claim lives as long as its lease. Settle it before that by `ack`, `nack`, `release` or `bury`, or `extend` "
    "it; otherwise the item goes back, which counts as a failed delivery.",
    command="pop",
    subject="claim",
)

ACK_MANY = Operation(
    "ack_many",
    "Remove the items of several claims. Those that are lost are named; the others are done.",
    (Parameter("claims", Many(TOKEN, ACK_MAX, 1), "`claim` of the replies that gave the claims.", required=True),),
    result=Record(
        "AckedMany",
        "What became of several claims; the same request repeated has the same reply.",
        (
            Field("acked", Count(), "Claims whose items are never delivered again."),
            Field("lost", Many(TOKEN), "Claims that did not hold any more: others may have their items."),
        ),
    ),
    method="POST",
    path="/claims/ack-many",
    more="After an error some may be done: repeat the request, unless it says that nothing happened.",
    on="namespace",
    subject="claim",
)


def _on_claim(name: str, sentence: str, *parameters: Parameter, result: Record = SETTLED, more: str = "") -> Operation:
    """Describe what is asked of a claim."""
    return Operation(
        name,
        sentence,
        parameters,
        result=result,
        method="POST",
        path=f"/claims/{{claim}}/{name}",
        more=more,
        on="claim",
        failures=(LOST,),
        subject="claim",
    )


ACK = _on_claim(
    "ack",
    "Remove the item: the work is done. With `next`, claim one more of its queue, if one is ready.",
    Parameter(
        "result",
        Value(),
        "What callers that wait for the item get, any JSON value, up to 32 KiB.",
        "nothing",
        null="a result without a value",
    ),
    Parameter(
        "ttl",
        Seconds(RESULT_TTL_LEAST, RESULT_TTL_MAX),
        "Seconds for which the result is kept, unless the settings of the queue say it.",
        "3600",
        default=3600.0,
    ),
    Parameter(
        "next",
        Flag(),
        "Claim one item that is ready, too, which costs less than a request of its own.",
        "false",
        default=False,
    ),
    Parameter("lease", LEASE, "Seconds for which that claim holds.", "30", default=LEASE_SECONDS),
    result=Record(
        "Acked",
        "The item is removed; a repeated request claims nothing.",
        (
            *SETTLED.fields,
            Field(
                "next",
                CLAIMED_ITEM,
                "Only where it was asked for: the item that was claimed, null if none was ready.",
                nullable=True,
                optional=True,
            ),
        ),
    ),
    more="With `result`, callers that wait for the item get it: when the reply comes, every server in sync has it. If "
    "the reply is lost, the item that was claimed goes back when its lease has passed.",
)

NACK = _on_claim(
    "nack",
    "Deliver the item again, because the work failed; after too many failures it becomes a dead letter.",
    Parameter(
        "delay",
        Seconds(),
        "Seconds until the item is delivered again.",
        "as the retry policy says",
    ),
    Parameter("reason", Text(REASON_MAX, 0), "Why the work failed, kept with the item.", "none"),
)

RELEASE = _on_claim(
    "release",
    "Return the item to its place in the queue. This counts neither as a failure nor as a delivery.",
    Parameter(
        "delay",
        Seconds(),
        "Seconds until the item is delivered again. In an ordered group it holds its group until then.",
        "none, it is ready again immediately",
    ),
)

BURY = _on_claim(
    "bury",
    "Move the item to the dead letters: it can never be done.",
    Parameter(
        "reason",
        Text(REASON_MAX, 0),
        "Why the item can never be done, kept with the dead letter.",
        "`rejected`",
        default="rejected",
    ),
)

EXTEND = _on_claim(
    "extend",
    "Hold the item for longer. A reply without an error says that the claim still holds.",
    Parameter("lease", LEASE, "Seconds from now for which to hold the item.", "30", default=LEASE_SECONDS),
    result=Record("Extended", "The claim holds.", (Field("lease", Seconds(), "Seconds from now."),)),
)

SAVE = _on_claim(
    "save",
    "Save a state of the work, in the place of the one before: every later delivery of the item is given it.",
    Parameter("state", Value(), "Any JSON value, up to 32 KiB.", "null", null="no state"),
    result=Record("Saved", "Every server in sync has the state; the lease stays as it is.", (Field("saved", Flag()),)),
)

PROGRESS = _on_claim(
    "progress",
    "Report how far the work is, for those who look at the item. At most one report a second is kept.",
    Parameter("fraction", Number(0, 1), "0 to 1.", "unknown"),
    Parameter("text", Text(REASON_MAX, 0), "In words, of which the first 200 characters are kept.", "none", default=""),
    result=Record(
        "Reported",
        "The report is sent, or will be within a second unless a later one takes its place.",
        (Field("reported", Flag()),),
    ),
)
