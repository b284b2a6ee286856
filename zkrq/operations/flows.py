"""Flows: begin one, push into it, look at it, end it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zkrq.base.checks import check_name, check_text
from zkrq.base.flows import AFTER_MAX, FLOW_NAME_MAX, KEEP, KEEP_LEAST, KEEP_MOST, FlowState
from zkrq.operations.kinds import ByName, Choice, Count, Flag, Many, Seconds, Text
from zkrq.operations.operation import Failure, Field, Operation, Parameter, Record, Section
from zkrq.operations.push import PUSH, RECEIPT
from zkrq.operations.push import PUSH_MEMBER as MEMBER
from zkrq.operations.queues import QUEUE_PLACE
from zkrq.operations.states import AFTER_PAGE

LASTING = tuple(state.value for state in (FlowState.OPEN, FlowState.RUNNING, FlowState.FAILING))
"""States of flows that have not ended."""

LISTED = tuple(state.value for state in FlowState if state is not FlowState.UNKNOWN)
"""States of flows that are listed."""

CAUSES = ("left", "dead", "missed")
"""What members there are that keep a flow from its end, in the words of ``FlowStatus.ids``."""


def _check_flow(name: str, flow: str) -> str:
    return check_name("the flow's name", flow, most=FLOW_NAME_MAX)


def _check_outer(name: str, outer: str) -> str:
    queue, _, flow = check_text(name, outer).partition("/")
    check_name(f"the queue in {name}", queue)
    check_name(f"the flow in {name}", flow, most=FLOW_NAME_MAX)
    return outer


FLOW_PLACE = Parameter(
    "flow",
    Text(FLOW_NAME_MAX, checked=_check_flow, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:\-]*$"),
    "The flow's name; its queue is the one on which it was begun.",
    required=True,
)

ENDED = Failure("FlowEnded", "The flow has ended otherwise, or is unknown. Nothing happened.")


def held_up(status: Any) -> str | None:
    """Say why nothing but an operator ends a flow: nothing of it lives.  None: it goes on by itself."""
    if status.state != FlowState.RUNNING or status.left or not (status.dead or status.missed):
        return None
    inner = failed_inner(status)
    counts = {
        "dead letter{}": status.dead - inner,
        "inner flow{} that failed": inner,
        "member{} removed otherwise than by an ack": status.missed,
    }
    return " and ".join(f"{n:,} {what.format('s' if n > 1 else '')}" for what, n in counts.items() if n)


def failed_inner(status: Any) -> int:
    """Count the dead letters that stand for inner flows, among those that are named: no redrive goes on with them."""
    return sum(id in status.nested for id in status.ids.get("dead", ()))


FLOW = Record(
    "Flow",
    "What is known of a flow.",
    (
        Field("queue", Text(), "The queue on which it was begun."),
        Field("name", Text(), "Its name there."),
        Field("state", Choice(tuple(state.value for state in FlowState)), "How far it is, or how it has ended."),
        Field("left", Count(), "Members that are queued, scheduled or claimed."),
        Field("dead", Count(), "Members that are dead letters."),
        Field("missed", Count(), "Members that were removed otherwise than by an ack."),
        Field("done", Count(), "Members that were acked, as one server has counted them."),
        Field(
            "ids",
            ByName(Many(Text())),
            "Ids of the first hundred of `left`, `dead` and `missed`; none in a list, of one that has ended.",
        ),
        Field("queues", ByName(Text()), "The queue of each of these, by its id."),
        Field(
            "nested",
            ByName(Text()),
            "Those of them that stand for inner flows: the name of each of these flows, whose home is that queue.",
        ),
        Field(
            "outer",
            Text(),
            "The flow of which it is a member, as `queue/name`; null: none.",
            nullable=True,
            source=lambda status: status.outer or None,
        ),
        Field(
            "held_up",
            Text(),
            "Why it does not end by itself: nothing of it is queued or claimed any more.",
            nullable=True,
            source=held_up,
        ),
    ),
)

LISTED_MAX = 1_000
"""Flows of one reply."""

LIST_FLOWS = Operation(
    "list_flows",
    "List the flows that have not ended, then those that have, as long as their outcome is kept.",
    (
        Parameter("state", Choice(LISTED), "Only those in this state.", "in any", example="running"),
        Parameter("limit", Count(1, LISTED_MAX), "At most this many flows.", "100", default=100, example=100),
        AFTER_PAGE,
    ),
    result=Record(
        "Flows",
        "Flows, by queue and name.",
        (
            Field("flows", Many(FLOW)),
            Field("next", Text(), "Give it as `after` to go on; null: these were the last ones.", nullable=True),
        ),
    ),
    method="GET",
    path="/flows",
    on="namespace",
    command="flows list",
    subject="flows",
)

PATH = "/flows/{queue}/{flow}"

GET_FLOW = Operation(
    "get_flow",
    "Look at one flow; one that was never begun, or is forgotten, is `unknown`.",
    result=FLOW,
    method="GET",
    path=PATH,
    command="flows show",
    subject="flows",
)

BEGIN_FLOW = Operation(
    "begin_flow",
    "Begin a flow; one of this name that runs goes on, as it was begun.",
    (
        Parameter(
            "keep",
            Seconds(KEEP_LEAST, KEEP_MOST),
            "Seconds for which its outcome is known after its end.",
            "86400",
            default=KEEP,
        ),
        Parameter("fail_fast", Flag(), "Fail with the first dead letter.", "false", default=False),
        Parameter(
            "ignore_missed",
            Flag(),
            "Members that are removed otherwise than by an ack count as done.",
            "false",
            default=False,
        ),
        Parameter("deadline", Seconds(positive=True), "Seconds after which it fails.", "none"),
        Parameter(
            "outer",
            Text(checked=_check_outer),
            "The flow of which it becomes a member, as `queue/name`: that one ends after it.",
            "none",
            example="orders/order-7",
        ),
    ),
    result=FLOW,
    failures=(ENDED,),
    method="PUT",
    path=PATH,
    subject="flows",
)

_INTO = Parameter("into", QUEUE_PLACE.kind, "The queue of the item.", "the queue of the flow")


def _push(name: str, word: str, sentence: str, options: Section, *parameters: Parameter) -> Operation:
    return Operation(
        name,
        sentence,
        (_INTO, *parameters, *options.parameters),
        options.rules,
        RECEIPT,
        "POST",
        f"{PATH}/{word}",
        failures=(ENDED,),
        repeatable=False,
        has_item=True,
        subject="flows",
    )


AFTER = Parameter(
    "after",
    Many(MEMBER.by_name["name"].kind, AFTER_MAX),
    "Names of members that were pushed before: the item is held until all of these are acked.",
    example=("price", "stock"),
)

PUSH_MEMBER = _push("push_member", "push", "Push one item as a member of a flow, which ends after it.", MEMBER, AFTER)

PUSH_FOLLOWER = _push(
    "push_follower",
    "then",
    "Push one item that is held until the flow has ended.",
    PUSH,
    Parameter(
        "when",
        Choice(("done", "failed", "ended")),
        "How the flow must have ended; `ended`: done or failed.",
        "`done`",
        default="done",
    ),
)


def _on_flow(verb: str, sentence: str, *parameters: Parameter, result: Record = FLOW) -> Operation:
    return Operation(
        f"{verb}_flow",
        sentence,
        parameters,
        result=result,
        failures=(ENDED,),
        method="POST",
        path=f"{PATH}/{verb}",
        command=f"flows {verb}",
        subject="flows",
    )


SEAL_FLOW = _on_flow("seal", "Say that nothing more comes but what members push: the flow ends after its last member.")

CANCEL_FLOW = _on_flow(
    "cancel",
    "Cancel a flow: queued members are removed, and what is held for it.",
    Parameter("stop", Flag(), "Claimed members as well, whose handlers are stopped.", "false", default=False),
)

FINISH_FLOW = _on_flow("finish", "End a flow as done, whatever is left of it; what follows is handed out.")

REDRIVE_FLOW = _on_flow(
    "redrive",
    "Queue the dead letters of a flow again, in all of its queues.",
    result=Record("RedrivenFlow", "Dead letters are queued again.", (Field("redriven", Count(), "How many."),)),
)

FLOWS: Mapping[str, Operation] = {
    each.name: each
    for each in (
        LIST_FLOWS,
        GET_FLOW,
        BEGIN_FLOW,
        PUSH_MEMBER,
        PUSH_FOLLOWER,
        SEAL_FLOW,
        CANCEL_FLOW,
        FINISH_FLOW,
        REDRIVE_FLOW,
    )
}
"""The operations on flows, by name."""
