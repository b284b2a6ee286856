"""Items of a queue: finding them, looking at them, their results and their end."""

from __future__ import annotations

from zkrq.base.checks import MAX_ID, check_id
from zkrq.base.errors import REASON_MAX
from zkrq.base.saved import EDITOR_MAX, shown
from zkrq.operations.claims import OF_ITEM, WAIT_MAX
from zkrq.operations.kinds import Choice, Content, Count, Flag, Header, Many, Moment, Number, Past, Seconds, Text, Value
from zkrq.operations.operation import Excludes, Failure, Field, Operation, Parameter, Record
from zkrq.operations.push import GROUP, KEY, TASK
from zkrq.operations.states import AFTER_PAGE, STATE

FOUND_MAX = 500
"""Items of one request to find some."""

TEXT_MAX = 1_000
"""Characters of a text that payloads are searched for."""

LETTERS_MAX = 500
"""Dead letters of one request."""

ENDS = ("done", "dead", "cancelled", "expired")

FATES = (*ENDS, "queued", "claimed", "unknown")


ID = Parameter("id", Text(MAX_ID, checked=check_id), "The item's id.", required=True)

UNKNOWN = Failure("NoSuchItem", "The queue has no item with this id: it was never pushed, or it is done.")

WORK_PROGRESS = Record(
    "Progress",
    "How far the work on a claimed item is, as its handler has reported.",
    (
        Field("fraction", Number(), "0 to 1; null if it was not given.", nullable=True),
        Field("text", Text(), "What the handler said."),
        Field("age", Seconds(), "Seconds since the report."),
    ),
)

EDITED = Record(
    "Edited",
    "The change of an item's content.",
    (Field("at", Moment(), "When it was changed."), Field("by", Text(), "Who has changed it.")),
)

FAILURE = Record(
    "Failure",
    "One failed attempt on an item.",
    (
        Field("at", Moment(), "When it failed, by the clock of a server; null: not known.", nullable=True),
        Field("where", Text(), "How its consumer describes itself; null: not known.", nullable=True),
        Field("took", Seconds(), "Seconds since the claim began; null: not known.", nullable=True),
        Field("reason", Text(), "Why it failed.", nullable=True),
        Field("traceback", Text(), "A summary of the calls, innermost first.", nullable=True),
    ),
)

ITEM = Record(
    "StoredItem",
    "An item as it was when it was read.",
    (
        *OF_ITEM,
        Field("state", STATE, "Its state."),
        Field("attempts", Count(), "Deliveries that count."),
        Field("failures", Count(), "Deliveries that failed."),
        Field("seconds_left", Seconds(), "Until the item is due, or its claim ends.", nullable=True),
        Field("expires_in", Seconds(), "Seconds until its `ttl` ends.", nullable=True),
        Field("owner", Text(), "The owner id of the consumer that has claimed it.", nullable=True),
        Field("reason", Text(), "Why it is a dead letter, or failed last.", nullable=True),
        Field("traceback", Text(), "A summary of the calls in which it failed, innermost first.", nullable=True),
        Field("died_at", Moment(), "When it became a dead letter.", nullable=True),
        Field("progress", WORK_PROGRESS, "Of one claimed item that is looked up; null in lists.", nullable=True),
        Field("held_for", Seconds(), "Seconds since the claim of a claimed item began.", nullable=True),
        Field(
            "order",
            Number(),
            "Its place among the items of its group, greater for a later one; null unless the group keeps its order.",
            nullable=True,
        ),
        Field(
            "saved",
            Value(),
            "What handlers have saved of the work on it; null: nothing, or nothing that can be read.",
            source=lambda item: shown(item.saved),
            nullable=True,
        ),
        Field(
            "steps",
            Value(),
            "Values of its steps that are done, by their names; each null if it cannot be read.",
            source=lambda item: {name: shown(value) for name, value in item.steps.items()},
        ),
        Field("edited", EDITED, "The last change of its content; null: it is as it was pushed.", nullable=True),
        Field("last_failures", Many(FAILURE), "Its last five failures, the latest first."),
        Field(
            "nested",
            Text(),
            "The inner flow for which this dead letter stands, as `queue/name`; null: it is an item like others.",
            nullable=True,
        ),
    ),
)

ENDED = Record(
    "Ended",
    "An item that has ended.",
    (
        Field("id", Text(), "The item's id."),
        Field("state", Choice(ENDS), "How it ended."),
        Field("ended_at", Moment(), "When it ended."),
        Field("took", Seconds(), "Seconds since its last claim began; null: no consumer ended it.", nullable=True),
        Field("owner", Text(), "The owner id of the consumer that ended it.", nullable=True),
        Field("attempts", Count(), "Deliveries that count."),
        Field("key", Text(), "The key that it had.", nullable=True),
        Field("group", Text(), "The group that it was pushed into.", nullable=True),
        Field("reason", Text(), "Why it is a dead letter.", nullable=True),
    ),
)

RESULT_OF_ITEM = Record(
    "ItemResult",
    "What became of an item.",
    (
        Field("id", Text(), "The item's id."),
        Field("state", Choice(FATES), "`queued`, `claimed`: it has not ended; `unknown`: there is no such item."),
        Field("has_result", Flag(), "Whether it is done, and its result is kept.", source="has_value"),
        Field("result", Content(), "What its handler returned; null without one.", source="value"),
        Field("reason", Text(), "Why it is a dead letter.", nullable=True),
        Field("traceback", Text(), "A summary of the calls in which it failed, innermost first.", nullable=True),
        Field("owner", Text(), "The owner id of the consumer that has claimed it.", nullable=True),
        Field("is_lost", Flag(), "It is done, but its result is lost: primary and consumer died during the ack."),
        Field(
            "progress",
            WORK_PROGRESS,
            "How far the work is, if it is claimed and its handler says so.",
            nullable=True,
        ),
    ),
)

FIND = Operation(
    "find",
    "List items, or find some: those of which all that is given holds, in no particular order.",
    (
        Parameter("state", STATE, "Only items in this state.", "in any", example="dead"),
        Parameter("key", KEY, "Only items with this key.", example="user-42"),
        Parameter(
            "header", Header(), "Only items with this header: its name, `=`, its value.", example="campaign=spring"
        ),
        Parameter(
            "error",
            Text(REASON_MAX),
            "Only items whose reason contains this text, in upper or lower case.",
            example="connection refused",
        ),
        Parameter("group", GROUP, "Only items of this group.", example="tenant-42"),
        Parameter("id_prefix", Text(MAX_ID), "Only items whose id begins with this.", example="order-"),
        Parameter(
            "text",
            Text(TEXT_MAX),
            "Only items whose payload contains this text, in upper or lower case.",
            example="ann@example.org",
        ),
        Parameter(
            "since",
            Past(),
            "Only dead letters that died at this moment or later, and other items that were pushed then or later.",
            example="2030-01-31T08:00:00+01:00",
        ),
        Parameter(
            "until",
            Past(),
            "Only dead letters that died before this moment, and other items that were pushed before it.",
            example="2030-01-31T09:00:00+01:00",
        ),
        Parameter("task", TASK, "Only items of this task.", example="welcome"),
        Parameter("limit", Count(1, FOUND_MAX), "At most this many items.", "100", default=100, example=100),
        AFTER_PAGE,
    ),
    result=Record(
        "FoundItems",
        "Some items that were found: none, maybe, while others are still to come.",
        (
            Field("items", Many(ITEM)),
            Field("next", Text(), "Give it as `after` to go on; null: these were the last ones.", nullable=True),
            Field(
                "restarted",
                Flag(),
                "Items of the replies before may come again: `after` came from another primary of the queue, or from "
                "another search.",
            ),
        ),
    ),
    method="GET",
    path="/queues/{queue}/items",
    more="One request reads a part of the queue, and may find nothing: go on with `next` until it is null. An item "
    "that meets the conditions during all these requests is found at least once.",
    command="find",
    subject="manage",
)

HISTORY = Operation(
    "history",
    "List the items that have ended last: done, dead, cancelled or expired. Only as many as the queue keeps.",
    (Parameter("limit", Count(1, FOUND_MAX), "At most this many items.", "100", default=100, example=100),),
    result=Record(
        "History",
        "The items of a queue that have ended last.",
        (
            Field("kept", Count(), "How many the queue keeps; 0: none."),
            Field("items", Many(ENDED), "The latest first."),
        ),
    ),
    method="GET",
    path="/queues/{queue}/history",
    command="list",
    subject="manage",
)
"""``command``: with ``--state done``."""

RESULT = Operation(
    "result",
    "Wait until an item has ended, and tell what became of it; `done` comes with what its handler returned.",
    (ID, Parameter("timeout", Seconds(0.0, WAIT_MAX), "Seconds to wait until the item has ended.", "0", default=0.0)),
    result=RESULT_OF_ITEM,
    method="GET",
    path="/queues/{queue}/items/{id}/result",
    more="After `timeout` the reply tells what the item is then: `queued` or `claimed`; ask again. The reply for an "
    "item that is done, cancelled or expired stays the same.",
    command="result",
    subject="results",
)

GET = Operation(
    "get",
    "Look up one item in any state.",
    (ID,),
    result=ITEM,
    method="GET",
    path="/queues/{queue}/items/{id}",
    failures=(UNKNOWN,),
    command="get",
    subject="manage",
)

CANCEL = Operation(
    "cancel",
    "Remove one item in any state. The holder of a claimed item is notified, and its claim is lost.",
    (ID,),
    result=Record(
        "Cancelled",
        "The item is removed.",
        (
            Field(
                "outcome",
                Choice(("removed", "signalled")),
                "`signalled`: it was claimed, and its holder is notified.",
            ),
        ),
    ),
    method="POST",
    path="/queues/{queue}/items/{id}/cancel",
    failures=(UNKNOWN,),
    command="cancel",
    subject="manage",
)

DEAD_LETTERS = Operation(
    "dead_letters",
    "List the oldest dead letters, with their reasons; fewer if they are large.",
    (Parameter("count", Count(1, LETTERS_MAX), "At most this many letters.", "100", default=100),),
    result=Record("DeadLetters", "The oldest dead letters of a queue.", (Field("items", Many(ITEM)),)),
    method="GET",
    path="/queues/{queue}/dead",
    command="dead list",
    subject="manage",
)

CONDITIONS = tuple(each for each in FIND.parameters if each.name not in ("state", "limit", "after"))
"""By what items are found, beside their state."""

_MISSING = Field(
    "missing", Many(ID.kind), "Of the `ids` that were given, those of which the queue has no item.", optional=True
)

ADVANCE = Operation(
    "advance",
    "Have items that are scheduled, or wait for their next attempt, be ready immediately: those named, or those of "
    "which all that is given holds.",
    (
        Parameter("ids", Many(ID.kind, LETTERS_MAX, 1), "Ids of items; others are skipped.", "those that are found"),
        *CONDITIONS,
    ),
    tuple(Excludes("ids", each.name) for each in CONDITIONS),
    Record(
        "Advanced",
        "Items are ready.",
        (Field("advanced", Count(), "How many. In an ordered group they stay behind those before them."), _MISSING),
    ),
    "POST",
    "/queues/{queue}/advance",
    command="advance",
    subject="manage",
)

EDIT = Operation(
    "edit",
    "Give a dead letter another content, and queue it again under its id, with no attempts.",
    (
        ID,
        Parameter(
            "by", Text(EDITOR_MAX), "Who changes it, which is kept with the item.", "how the client describes itself"
        ),
    ),
    result=Record(
        "EditDone",
        "The item is queued with its new content.",
        (
            Field(
                "redriven",
                Flag(),
                "False: it is no dead letter now, or it is changed and stays one, because another item has its key.",
            ),
        ),
    ),
    method="PUT",
    path="/queues/{queue}/dead/{id}",
    more="Its headers, key and group stay, and so does what handlers have saved of it. It needs level 2.",
    failures=(UNKNOWN,),
    has_item=True,
    command="dead edit",
    subject="manage",
)

REDRIVE = Operation(
    "redrive",
    "Queue dead letters again, with no attempts: those named, those of a group, or all.",
    (
        Parameter(
            "ids",
            Many(ID.kind, LETTERS_MAX),
            "Ids of dead letters; others are skipped.",
            "all",
        ),
        Parameter("group", GROUP, "In place of `ids`: those of this group."),
    ),
    (Excludes("ids", "group"),),
    Record("Redriven", "Dead letters are queued again.", (Field("redriven", Count(), "How many."), _MISSING)),
    "POST",
    "/queues/{queue}/dead/redrive",
    command="dead redrive",
    subject="manage",
)
