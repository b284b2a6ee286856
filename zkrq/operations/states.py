"""Name the states that items are found by."""

from zkrq.operations.kinds import Choice

STATE = Choice(
    ("ready", "scheduled", "claimed", "dead"),
    "items that have ended: `history()`, or `zkrq list QUEUE --state done`",
)
