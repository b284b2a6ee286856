"""The rules that only some kinds of schedules miss."""

from __future__ import annotations

from tests.model.rules import Rule

SHARD_RULES = [rule for rule in Rule if list(Rule).index(rule) >= list(Rule).index(Rule.PUSH_NAMES_ITS_MAP)]
"""Rules about several shards."""

RESULT_RULES = [Rule.RESULT_IS_EVERYWHERE, Rule.RESULT_IS_COMPLETED]
"""Rules about results alone."""

SAVE_RULES = [
    Rule.SAVE_NEEDS_THE_CLAIM,
    Rule.SAVED_TEXT_HAS_A_VERSION,
    Rule.SAVED_IS_EVERYWHERE,
    Rule.SAVES_ARE_NUMBERED,
    Rule.SAVED_TEXT_GOES_LAST,
]
"""Rules about saved states."""

LEVEL_RULES = [Rule.LEVEL_RAISES_THE_EPOCH, Rule.LEVEL_IS_READ_WITH_THE_VIEW]
"""Rules about clients of two releases."""

CLOCK_RULES = [Rule.WRONG_CLOCK_LEAVES]
"""Rules about clocks that are wrong."""

LIMIT_RULES = [
    Rule.LIMIT_COUNTS_CLAIMED,
    Rule.REPEATED_WITHIN_THE_LIMIT,
    Rule.GROUP_COUNTS_CLAIMED,
    Rule.REPEATED_WITHIN_THE_GROUP,
]
"""Rules about queues with a limit."""

ORDER_RULES = [
    Rule.ORDER_IS_DECIDED,
    Rule.ORDERED_ONE_BY_ONE,
    Rule.END_TRAVELS_WITH_THE_NEXT,
    Rule.REPEATED_IN_ORDER,
    Rule.TOKENS_GROW_IN_A_GROUP,
]
"""Rules about ordered groups."""

SETTINGS_RULES = [Rule.PLAIN_IS_REFUSED_IN_ORDER, Rule.ORDER_BY_SETTINGS, Rule.TOKENS_BY_SETTINGS]
"""Rules about producers that do not know that the queue keeps an order."""

HOMING_RULES = [Rule.HELD_ELSEWHERE, Rule.HOME_FIRST, Rule.ADOPTED_EVERYWHERE, Rule.NOT_DUE, Rule.ENDED_FOR_GOOD]
"""Rules about items that come home from other shards."""

TURN_RULES = [Rule.TURN_FINDS_ITS_OWN, Rule.EACH_PART_HAS_A_VERDICT]
"""Rules about turns alone."""

FLOW_RULES = list(Rule)[list(Rule).index(Rule.FLOW_ASKS_ALL) : list(Rule).index(Rule.FAILING_WAITS)]
"""Rules about flows."""

LEG_RULES = list(Rule)[list(Rule).index(Rule.FAILING_WAITS) : list(Rule).index(Rule.NESTED_IS_FIRST)]
"""Rules about flows of several queues."""

NESTED_RULES = [Rule.NESTED_IS_FIRST]
"""Rules about flows that are members of others."""

NAME_RULES = [Rule.RELEASE_NEEDS_ACKS]
"""Rules about members that wait for others."""
