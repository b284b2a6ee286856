"""zkrq: a reliable asyncio work queue without a single point of failure.

Every item is written to N independent Redis servers in parallel.  ZooKeeper sessions decide which clients are alive,
and one znode in ZooKeeper says which servers are in sync.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from zkrq.base.version import __version__ as __version__

if TYPE_CHECKING:
    from zkrq import logs as logs
    from zkrq import opentelemetry as opentelemetry
    from zkrq import prometheus as prometheus
    from zkrq import sync as sync
    from zkrq import testing as testing
    from zkrq import typed
    from zkrq.base.checks import Duration, Headers
    from zkrq.base.codecs import JSON, RAW, Codec
    from zkrq.base.credentials import LoginFile
    from zkrq.base.deprecation import ZkrqDeprecated
    from zkrq.base.errors import (
        ClaimLost,
        Closed,
        CodecError,
        ConfigError,
        FlowEnded,
        HandlerError,
        NoResult,
        NotEnoughReplicas,
        OutcomeUnknown,
        PayloadTooLarge,
        QueueFull,
        Receipt,
        Receipts,
        Unavailable,
        WrongLoop,
        ZkrqError,
    )
    from zkrq.base.events import (
        CatchingUp,
        ClaimsLost,
        ClocksApart,
        ConsumerQuiet,
        DamageFound,
        DeadLettersDropped,
        DeclaredDead,
        Event,
        FlowClosed,
        FlowStuck,
        ItemsGivenUp,
        LevelRaised,
        LevelRefused,
        LimitsChanged,
        LoopBlocked,
        MemoryShortened,
        MomentsLost,
        NotWritable,
        OwnerFenced,
        Recovered,
        RegisterWentBack,
        ScheduleChanged,
        Scrubbed,
        ServerCaughtUp,
        ServerEvicted,
        ServerFull,
        ServerHasRoom,
        ServerUnusableHere,
        SessionLost,
        SessionResumed,
        SessionSuspended,
        SeveralReleases,
        ShardEvent,
        SubscriptionSilent,
        TaskUnknown,
        ViewChanged,
        WakeupsRefused,
    )
    from zkrq.base.flows import FlowState, FlowStatus
    from zkrq.base.ids import new_id
    from zkrq.base.limits import DeadLetters, Groups, Limits, QueueSettings, Results
    from zkrq.base.progress import WorkProgress
    from zkrq.base.retry import Backoff, Reject, Retry, RetryLater, Snooze, constant, exponential, linear
    from zkrq.base.tls import TLS
    from zkrq.client.administration import Cancellation
    from zkrq.client.backlog import Backlog
    from zkrq.client.cluster import Cluster
    from zkrq.client.connecting import connect, embedded, found
    from zkrq.client.consumers import Consumer
    from zkrq.client.figures import Figures, Spread
    from zkrq.client.groups import Group, LargestGroups
    from zkrq.client.health import Health, ServerHealth
    from zkrq.client.inspection import Sizes, Statistics
    from zkrq.client.items import Edited, EndedItem, Failure, FoundPage, Item, ItemState
    from zkrq.client.moments import moment_id, next_moments
    from zkrq.client.queue import Queue
    from zkrq.client.quieting import Quieted
    from zkrq.client.results import Result, ResultQueue, ResultReceipt, ResultState
    from zkrq.client.schedules import Recurring
    from zkrq.client.scheduling import StoredSchedules
    from zkrq.client.shards import ShardStatus
    from zkrq.client.throughput import Passed, Throughput
    from zkrq.client.timetable import StoredSchedule
    from zkrq.client.topics import Listener
    from zkrq.consuming.batch import Batch
    from zkrq.consuming.claims import Claim
    from zkrq.consuming.deliveries import Batches, Deliveries
    from zkrq.consuming.flow import Flow
    from zkrq.consuming.lease import Lost, Verb
    from zkrq.consuming.observing import Observer, Outgoing
    from zkrq.consuming.saving import Step
    from zkrq.pool.settings import Processes
    from zkrq.process.program import run
    from zkrq.protocol.levels import ClientInfo
    from zkrq.protocol.view import View
    from zkrq.repair.progress import Progress
    from zkrq.working.delivery import After, Before, settle_while_held
    from zkrq.working.handlers import BatchHandler, Handler, Handlers, Task
    from zkrq.working.outcomes import Counts, Ending, Outcome, WorkerStatistics
    from zkrq.working.worker import Worker

__all__ = [
    "JSON",
    "RAW",
    "TLS",
    "After",
    "Backlog",
    "Backoff",
    "Batch",
    "BatchHandler",
    "Batches",
    "Before",
    "Cancellation",
    "CatchingUp",
    "Claim",
    "ClaimLost",
    "ClaimsLost",
    "ClientInfo",
    "ClocksApart",
    "Closed",
    "Cluster",
    "Codec",
    "CodecError",
    "ConfigError",
    "Consumer",
    "ConsumerQuiet",
    "Counts",
    "DamageFound",
    "DeadLetters",
    "DeadLettersDropped",
    "DeclaredDead",
    "Deliveries",
    "Duration",
    "Edited",
    "EndedItem",
    "Ending",
    "Event",
    "Failure",
    "Figures",
    "Flow",
    "FlowClosed",
    "FlowEnded",
    "FlowState",
    "FlowStatus",
    "FlowStuck",
    "FoundPage",
    "Group",
    "Groups",
    "Handler",
    "HandlerError",
    "Handlers",
    "Headers",
    "Health",
    "Item",
    "ItemState",
    "ItemsGivenUp",
    "LargestGroups",
    "LevelRaised",
    "LevelRefused",
    "Limits",
    "LimitsChanged",
    "Listener",
    "LoginFile",
    "LoopBlocked",
    "Lost",
    "MemoryShortened",
    "MomentsLost",
    "NoResult",
    "NotEnoughReplicas",
    "NotWritable",
    "Observer",
    "Outcome",
    "OutcomeUnknown",
    "Outgoing",
    "OwnerFenced",
    "Passed",
    "PayloadTooLarge",
    "Processes",
    "Progress",
    "Queue",
    "QueueFull",
    "QueueSettings",
    "Quieted",
    "Receipt",
    "Receipts",
    "Recovered",
    "Recurring",
    "RegisterWentBack",
    "Reject",
    "Result",
    "ResultQueue",
    "ResultReceipt",
    "ResultState",
    "Results",
    "Retry",
    "RetryLater",
    "ScheduleChanged",
    "Scrubbed",
    "ServerCaughtUp",
    "ServerEvicted",
    "ServerFull",
    "ServerHasRoom",
    "ServerHealth",
    "ServerUnusableHere",
    "SessionLost",
    "SessionResumed",
    "SessionSuspended",
    "SeveralReleases",
    "ShardEvent",
    "ShardStatus",
    "Sizes",
    "Snooze",
    "Spread",
    "Statistics",
    "Step",
    "StoredSchedule",
    "StoredSchedules",
    "SubscriptionSilent",
    "Task",
    "TaskUnknown",
    "Throughput",
    "Unavailable",
    "Verb",
    "View",
    "ViewChanged",
    "WakeupsRefused",
    "WorkProgress",
    "Worker",
    "WorkerStatistics",
    "WrongLoop",
    "ZkrqDeprecated",
    "ZkrqError",
    "connect",
    "constant",
    "embedded",
    "exponential",
    "found",
    "linear",
    "moment_id",
    "new_id",
    "next_moments",
    "run",
    "settle_while_held",
    "typed",
]

if not TYPE_CHECKING:
    # A program, a command or a test imports what it uses: a name is loaded when it is first asked for.
    _HOMES = {
        "JSON": "base.codecs",
        "RAW": "base.codecs",
        "TLS": "base.tls",
        "After": "working.delivery",
        "Backlog": "client.backlog",
        "Backoff": "base.retry",
        "Batch": "consuming.batch",
        "BatchHandler": "working.handlers",
        "Batches": "consuming.deliveries",
        "Before": "working.delivery",
        "Cancellation": "client.administration",
        "CatchingUp": "base.events",
        "Claim": "consuming.claims",
        "ClaimLost": "base.errors",
        "ClaimsLost": "base.events",
        "ClientInfo": "protocol.levels",
        "ClocksApart": "base.events",
        "Closed": "base.errors",
        "Cluster": "client.cluster",
        "Codec": "base.codecs",
        "CodecError": "base.errors",
        "ConfigError": "base.errors",
        "Consumer": "client.consumers",
        "ConsumerQuiet": "base.events",
        "Counts": "working.outcomes",
        "DamageFound": "base.events",
        "DeadLetters": "base.limits",
        "DeadLettersDropped": "base.events",
        "DeclaredDead": "base.events",
        "Deliveries": "consuming.deliveries",
        "Duration": "base.checks",
        "Edited": "client.items",
        "EndedItem": "client.items",
        "Failure": "client.items",
        "Ending": "working.outcomes",
        "Event": "base.events",
        "Figures": "client.figures",
        "Flow": "consuming.flow",
        "FlowClosed": "base.events",
        "FlowEnded": "base.errors",
        "FlowState": "base.flows",
        "FlowStatus": "base.flows",
        "FlowStuck": "base.events",
        "FoundPage": "client.items",
        "Group": "client.groups",
        "Groups": "base.limits",
        "Handler": "working.handlers",
        "Handlers": "working.handlers",
        "HandlerError": "base.errors",
        "Headers": "base.checks",
        "Health": "client.health",
        "Item": "client.items",
        "ItemState": "client.items",
        "ItemsGivenUp": "base.events",
        "LargestGroups": "client.groups",
        "LevelRaised": "base.events",
        "LevelRefused": "base.events",
        "Limits": "base.limits",
        "LimitsChanged": "base.events",
        "Listener": "client.topics",
        "LoginFile": "base.credentials",
        "LoopBlocked": "base.events",
        "Lost": "consuming.lease",
        "MemoryShortened": "base.events",
        "MomentsLost": "base.events",
        "NoResult": "base.errors",
        "NotEnoughReplicas": "base.errors",
        "NotWritable": "base.events",
        "Observer": "consuming.observing",
        "Outcome": "working.outcomes",
        "OutcomeUnknown": "base.errors",
        "Outgoing": "consuming.observing",
        "OwnerFenced": "base.events",
        "Passed": "client.throughput",
        "PayloadTooLarge": "base.errors",
        "Processes": "pool.settings",
        "Progress": "repair.progress",
        "Queue": "client.queue",
        "QueueFull": "base.errors",
        "QueueSettings": "base.limits",
        "Quieted": "client.quieting",
        "Receipt": "base.errors",
        "Receipts": "base.errors",
        "Recovered": "base.events",
        "Recurring": "client.schedules",
        "RegisterWentBack": "base.events",
        "Reject": "base.retry",
        "Result": "client.results",
        "ResultQueue": "client.results",
        "ResultReceipt": "client.results",
        "ResultState": "client.results",
        "Results": "base.limits",
        "Retry": "base.retry",
        "RetryLater": "base.retry",
        "ScheduleChanged": "base.events",
        "Scrubbed": "base.events",
        "ServerCaughtUp": "base.events",
        "ServerEvicted": "base.events",
        "ServerFull": "base.events",
        "ServerHasRoom": "base.events",
        "ServerHealth": "client.health",
        "ServerUnusableHere": "base.events",
        "SessionLost": "base.events",
        "SessionResumed": "base.events",
        "SessionSuspended": "base.events",
        "SeveralReleases": "base.events",
        "ShardEvent": "base.events",
        "ShardStatus": "client.shards",
        "Sizes": "client.inspection",
        "Snooze": "base.retry",
        "Spread": "client.figures",
        "Statistics": "client.inspection",
        "Step": "consuming.saving",
        "StoredSchedule": "client.timetable",
        "StoredSchedules": "client.scheduling",
        "SubscriptionSilent": "base.events",
        "Task": "working.handlers",
        "TaskUnknown": "base.events",
        "Throughput": "client.throughput",
        "Unavailable": "base.errors",
        "Verb": "consuming.lease",
        "View": "protocol.view",
        "ViewChanged": "base.events",
        "WakeupsRefused": "base.events",
        "WorkProgress": "base.progress",
        "Worker": "working.worker",
        "WorkerStatistics": "working.outcomes",
        "WrongLoop": "base.errors",
        "ZkrqDeprecated": "base.deprecation",
        "ZkrqError": "base.errors",
        "connect": "client.connecting",
        "constant": "base.retry",
        "embedded": "client.connecting",
        "exponential": "base.retry",
        "found": "client.connecting",
        "linear": "base.retry",
        "new_id": "base.ids",
        "moment_id": "client.moments",
        "next_moments": "client.moments",
        "run": "process.program",
        "settle_while_held": "working.delivery",
    }
    """The module of each public name, below ``zkrq``."""

    _MODULES = frozenset({"logs", "opentelemetry", "prometheus", "sync", "testing", "typed"})
    """Public modules that are attributes of this one without an import by their users."""

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            return import_module(f"{__name__}.{name}")
        if name in _HOMES:
            # Threads that ask at the same time find the same object, because import_module locks the module.
            value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
            return value
        from zkrq.base.deprecation import RENAMED

        if name in RENAMED:
            present, deprecation = RENAMED[name]
            deprecation.warn()
            return getattr(sys.modules[__name__], present)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
