"""All operations, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from zkrq.operations.claims import ACK, ACK_MANY, BURY, CLAIM, CLAIM_PLACE, EXTEND, NACK, PROGRESS, RELEASE, SAVE
from zkrq.operations.figures import FIGURES_OF_WORK
from zkrq.operations.flows import FLOW_PLACE, FLOWS
from zkrq.operations.items import ADVANCE, CANCEL, DEAD_LETTERS, EDIT, FIND, GET, HISTORY, REDRIVE, RESULT
from zkrq.operations.push import PUSH, PUSH_MANY
from zkrq.operations.queues import (
    CONSUMERS,
    GROUPS,
    PAUSE,
    QUEUE_PLACE,
    QUEUE_STATISTICS,
    QUIET,
    RESUME,
    STATISTICS,
    TREND,
    UNQUIET,
)
from zkrq.operations.schedules import NAME, SCHEDULES
from zkrq.operations.servers import SERVER_PLACE, SERVERS
from zkrq.operations.settings import CHANGE_SETTINGS, SETTINGS

if TYPE_CHECKING:
    from zkrq.operations.operation import Operation, Parameter

OPERATIONS: Mapping[str, Operation] = {
    each.name: each
    for each in (
        PUSH,
        PUSH_MANY,
        CLAIM,
        ACK_MANY,
        ACK,
        NACK,
        RELEASE,
        BURY,
        SAVE,
        PROGRESS,
        EXTEND,
        STATISTICS,
        CONSUMERS,
        QUIET,
        UNQUIET,
        QUEUE_STATISTICS,
        TREND,
        PAUSE,
        RESUME,
        FIND,
        HISTORY,
        GROUPS,
        FIGURES_OF_WORK,
        SETTINGS,
        CHANGE_SETTINGS,
        RESULT,
        GET,
        CANCEL,
        DEAD_LETTERS,
        EDIT,
        REDRIVE,
        ADVANCE,
        *SCHEDULES.values(),
        *FLOWS.values(),
        *SERVERS.values(),
    )
}

PLACES: Mapping[str, Parameter] = {
    each.name: each for each in (QUEUE_PLACE, CLAIM_PLACE, NAME, FLOW_PLACE, SERVER_PLACE)
}
"""What a path names that is no parameter: of what the operation is asked."""
