"""Queues and the namespace: figures, consumers, groups, pauses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zkrq.base import clock
from zkrq.base.checks import MAX_GROUPS, MAX_ID, MAX_NAME, check_name
from zkrq.base.errors import ConfigError
from zkrq.operations.kinds import ByName, Choice, Count, Flag, Many, Moment, Number, Seconds, Text
from zkrq.operations.operation import PYTHON, Excludes, Field, Operation, Parameter, Record, Rule, Wording
from zkrq.operations.push import seconds_until
from zkrq.operations.settings import IN_FIGURES


def _check_queue(name: str, queue: str) -> str:
    return check_name("the queue's name", queue)


QUEUE_PLACE = Parameter(
    "queue",
    Text(MAX_NAME, checked=_check_queue, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:\-]*$"),
    "Letters, digits and `_ . : -`, beginning with a letter, a digit or `_`.",
    required=True,
)

THROUGHPUT = Record(
    "Throughput",
    "What ever came to a queue and left it, as far as its primary knows; two looks tell what passed between them.",
    (
        Field("pushed", Count(), "Items that came."),
        Field("removed", Count(), "Items that were acked, cancelled, cleared, discarded, dropped or expired."),
        Field("server", Text(), "The primary, which counts since it has had the queue."),
    ),
)

FIGURES = Record(
    "QueueStatistics",
    "A queue in figures.",
    (
        Field("ready", Count(), "Items that can be claimed.", source="sizes.ready"),
        Field("scheduled", Count(), "Items that are due later.", source="sizes.scheduled"),
        Field("claimed", Count(), "Items that consumers hold.", source="sizes.claimed"),
        Field("dead", Count(), "Dead letters.", source="sizes.dead"),
        Field("paused", Flag(), "Whether no item is claimed until `resume`."),
        Field("paused_until", Moment(), "When the pause ends by itself; null: at `resume`.", nullable=True),
        Field("oldest_ready", Seconds(), "Seconds since the oldest ready item became due.", nullable=True),
        Field("keyed", Count(), "Items that have a key."),
        Field("expiring", Count(), "Items that have a time to live, over or not."),
        Field("tombstones", Count(), "Bundles of items that are removed and still remembered, for ten minutes each."),
        Field("held", Count(), "Claims of the process that tells this, those claimed ahead among them."),
        Field("flow", THROUGHPUT, "Items that came and left."),
        Field("away", Many(Text()), "Shards that could not be asked; their items are not in these figures."),
        Field("deleted", Flag(), "Whether the queue was deleted, and no item has come since."),
        Field("groups", Count(), "Groups with items that are ready or claimed."),
        Field("groups_in_line", Count(), "Groups that wait for their turn."),
        Field("groups_blocked", Count(), "Groups that wait for the end of a claim, or for their rate."),
        Field(
            "claimable_in",
            Seconds(),
            "Seconds until the limits let another claim begin: 0: now; null: when a claim ends.",
            nullable=True,
        ),
        Field("limited", Text(), "Which limit keeps items from being claimed now; null: none does.", nullable=True),
        Field("damaged", Count(), "Entries that no server could read and that are set aside."),
        *IN_FIGURES,
    ),
)

SHARD = Record(
    "ShardFigures",
    "A shard: one set of servers of the namespace.",
    (
        Field("state", Text(), "joining, open, draining or closed."),
        Field("away", Text(), "Why nothing can be had of it now; null if it can.", nullable=True),
    ),
)

CONSUMER = Record(
    "ConsumerFigures",
    "A live consumer.",
    (
        Field("description", Text(), "What it calls itself."),
        Field("version", Text(), "Its release of zkrq; empty: it has not named it yet."),
        Field("host", Text(), "Its machine."),
        Field("since", Moment(), "When its client connected, by the clock of its machine.", nullable=True),
        Field("slots", Count(), "Handlers that its workers run at the same time; 0: it has no worker."),
        Field("claims", ByName(Count()), "Number of its claims, by queue."),
        Field("pid", Count(), "Its process; 0: it does not say."),
        Field("quiet", Flag(), "Whether it claims nothing more, as an operator said. Without claims it has finished."),
    ),
)

GROUP_FIGURES = Record(
    "GroupFigures",
    "A group of a queue.",
    (
        Field("name", Text(), "The group's name."),
        Field("waiting", Count(), "Items that are due; an estimate of large groups."),
        Field("claimed", Count(), "Items that consumers hold."),
        Field(
            "standing",
            Choice(("in line", "blocked", "failed", "idle")),
            "`blocked`: by its own claims, or by its rate; `failed`: its first item waits for its next attempt; "
            "`idle`: none waits.",
        ),
        Field("oldest", Seconds(), "Seconds since the push of the item that comes next.", nullable=True),
    ),
)

STATISTICS = Operation(
    "statistics",
    "Count the items of every queue, and name the servers.",
    result=Record(
        "NamespaceStatistics",
        "The namespace in figures.",
        (
            Field("namespace", Text(), "Its name."),
            Field("epoch", Count(), "The number of the view, which grows when a server comes or goes."),
            Field("writable", Flag(), "Whether enough servers of a shard are in sync for a push."),
            Field("warnings", Many(Text()), "Servers that are not in sync, and what one more failure would do."),
            Field("servers", ByName(Text()), "Each server's place: member, learner, eligible or out."),
            Field("shards", ByName(SHARD), "The shards by name; one of them is `main`."),
            Field("queues", ByName(FIGURES), "The queues by name."),
        ),
    ),
    method="GET",
    path="/queues",
    on="namespace",
    command="stats",
    subject="figures",
)

CONSUMERS = Operation(
    "consumers",
    "List the live consumers, and count what they hold; reads all claims.",
    result=Record(
        "Consumers",
        "All live consumers.",
        (Field("consumers", ByName(CONSUMER), "By the owner id that claimed items name."),),
    ),
    method="GET",
    path="/consumers",
    on="namespace",
    command="consumers",
    subject="figures",
)

OWNERS_MAX = 1_000
"""Consumers that one call names."""

_CHOSEN = (
    Parameter("owners", Many(Text(MAX_ID), OWNERS_MAX), "Owner ids of consumers.", "those of `host`"),
    Parameter("host", Text(), "Without owner ids: all consumers that are on this machine now."),
)

QUIETED = Record(
    "Quieted",
    "What consumers said.",
    (
        Field("done", Many(Text()), "Owner ids of those that have heard, and say so, or have ended since."),
        Field("silent", Many(Text()), "Of those that did not say so in time. They follow when they hear."),
        Field("unable", Many(Text()), "Of those whose release does not know this."),
    ),
)

QUIET = Operation(
    "quiet",
    "Have consumers claim nothing more and finish what they have, until `unquiet` or the end of their process.",
    _CHOSEN,
    (Excludes("owners", "host"),),
    QUIETED,
    "POST",
    "/consumers/quiet",
    on="namespace",
    command="quiet",
    subject="manage",
)

UNQUIET = Operation(
    "unquiet",
    "Let quiet consumers claim again.",
    _CHOSEN,
    (Excludes("owners", "host"),),
    QUIETED,
    "POST",
    "/consumers/unquiet",
    on="namespace",
    command="unquiet",
    subject="manage",
)

QUEUE_STATISTICS = Operation(
    "queue_statistics",
    "Count the items of one queue. One that never had an item has none.",
    result=FIGURES,
    method="GET",
    path="/queues/{queue}",
    subject="figures",
)

BACKLOG = Record(
    "Backlog",
    "The items of a queue that wait to be claimed.",
    (
        Field("ready", Count(), "How many there are now."),
        Field(
            "per_second",
            Number(),
            "By how many they grow, negative if they shrink; null: not known, as no consumer reports it.",
            nullable=True,
        ),
        Field(
            "seconds_left",
            Seconds(most=math.inf),
            "Seconds until none is left if that goes on; null: they do not shrink, or it is not known.",
            nullable=True,
        ),
    ),
)

TREND = Operation(
    "backlog",
    "Tell whether the ready items of a queue grow or shrink, and when none is left.",
    result=BACKLOG,
    method="GET",
    path="/queues/{queue}/backlog",
    command="queues show",
    subject="figures",
)

PAUSED = Record("Paused", "Whether items are claimed from a queue.", (Field("paused", Flag()),))


@dataclass(frozen=True, slots=True)
class _EndsLater(Rule):
    """A moment that has passed would be no pause; one that is far away is bounded as other moments are."""

    name: str = "until"

    def check(self, given: Mapping[str, Any], wording: Wording = PYTHON) -> None:
        if not seconds_until(given["until"], wording.name("until")):
            raise ConfigError(f"{wording.name('until')} is {given['until'].isoformat()}, which has passed")


def end_of_pause(given: Mapping[str, Any]) -> int:
    """Return when a pause with these checked parameters ends by itself: milliseconds since 1970, 0: never."""
    if "until" in given:
        return round(given["until"].timestamp() * 1000)
    return clock.now_ms() + max(1, round(1000 * given["seconds"])) if "seconds" in given else 0


PAUSE = Operation(
    "pause",
    "Stop new claims from the queue, in every process, until `resume`. Pushes continue.",
    (
        Parameter("until", Moment(), "When claims are allowed again by themselves, with a time zone.", "at `resume`"),
        Parameter("seconds", Seconds(positive=True), "Seconds after which they are; excludes `until`.", "at `resume`"),
    ),
    (Excludes("seconds", "until"), _EndsLater()),
    result=PAUSED,
    method="POST",
    path="/queues/{queue}/pause",
    command="pause",
    subject="manage",
)

RESUME = Operation(
    "resume",
    "Allow claims again.",
    result=PAUSED,
    method="POST",
    path="/queues/{queue}/resume",
    command="resume",
    subject="manage",
)

GROUPS_FOUND = Record(
    "LargestGroups",
    "The largest groups of a queue.",
    (
        Field("groups", Many(GROUP_FIGURES), "The largest first."),
        Field("looked", Count(), "Groups that were looked at."),
        Field("whole", Flag(), "Whether these were all."),
    ),
)

GROUPS = Operation(
    "groups",
    "List the groups with the most items, the largest first.",
    (Parameter("limit", Count(1, MAX_GROUPS), "At most this many groups.", "10", default=10, example=10),),
    result=GROUPS_FOUND,
    method="GET",
    path="/queues/{queue}/groups",
    command="groups",
    subject="manage",
)
