"""Name the states that items are found by, and the place where a page of what is found begins."""

from zkrq.base.checks import MAX_CURSOR
from zkrq.operations.kinds import Choice, Text
from zkrq.operations.operation import Parameter

STATE = Choice(
    ("ready", "scheduled", "claimed", "dead"),
    "items that have ended: `history()`, or `zkrq list QUEUE --state done`",
)

AFTER_PAGE = Parameter(
    "after", Text(MAX_CURSOR, pattern="^[A-Za-z0-9_-]+$"), "`next` of the reply before.", "from the beginning"
)
"""Where a list goes on that is read page by page."""
