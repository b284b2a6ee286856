"""zkrq: a reliable asyncio work queue without a single point of failure.

Every item is written to N independent Redis servers in parallel.  ZooKeeper sessions decide which clients are alive,
and one znode in ZooKeeper says which servers are in sync.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from zkrq import typed
from zkrq.base.checks import Duration, Headers
from zkrq.base.codecs import JSON, RAW, Codec
from zkrq.base.credentials import LoginFile
from zkrq.base.deprecation import RENAMED, ZkrqDeprecated
from zkrq.base.errors import (
    ClaimLost,
    Closed,
    CodecError,
    ConfigError,
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
    DamageFound,
    DeadLettersDropped,
    DeclaredDead,
    Event,
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
    ViewChanged,
    WakeupsRefused,
)
from zkrq.base.ids import new_id
from zkrq.base.limits import DeadLetters, Groups, Limits, Results
from zkrq.base.progress import WorkProgress
from zkrq.base.retry import Backoff, Reject, Retry, RetryLater, constant, exponential, linear
from zkrq.base.tls import TLS
from zkrq.base.version import __version__ as __version__
from zkrq.client.administration import Cancellation
from zkrq.client.cluster import Cluster
from zkrq.client.connecting import connect, embedded, found
from zkrq.client.consumers import Consumer
from zkrq.client.flow import Flow, Passed
from zkrq.client.groups import Group, LargestGroups
from zkrq.client.health import Health, ServerHealth
from zkrq.client.inspection import Sizes, Statistics
from zkrq.client.items import EndedItem, FoundPage, Item, ItemState
from zkrq.client.moments import next_moments
from zkrq.client.queue import Queue
from zkrq.client.results import Result, ResultQueue, ResultReceipt, ResultState
from zkrq.client.schedules import Recurring
from zkrq.client.scheduling import StoredSchedules
from zkrq.client.shards import ShardStatus
from zkrq.client.timetable import StoredSchedule
from zkrq.client.topics import Listener
from zkrq.consuming.batch import Batch
from zkrq.consuming.claims import Claim
from zkrq.consuming.deliveries import Batches, Deliveries
from zkrq.consuming.lease import Lost, Verb
from zkrq.consuming.observing import Observer, Outgoing
from zkrq.process.program import run
from zkrq.protocol.levels import ClientInfo
from zkrq.protocol.view import View
from zkrq.repair.progress import Progress
from zkrq.working.delivery import After, Before
from zkrq.working.handlers import BatchHandler, Handler
from zkrq.working.outcomes import Counts, Ending, Outcome, WorkerStatistics
from zkrq.working.worker import Worker

__all__ = [
    "JSON",
    "RAW",
    "TLS",
    "After",
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
    "Counts",
    "DamageFound",
    "DeadLetters",
    "DeadLettersDropped",
    "DeclaredDead",
    "Deliveries",
    "Duration",
    "EndedItem",
    "Ending",
    "Event",
    "Flow",
    "FoundPage",
    "Group",
    "Groups",
    "Handler",
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
    "Progress",
    "Queue",
    "QueueFull",
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
    "Statistics",
    "StoredSchedule",
    "StoredSchedules",
    "SubscriptionSilent",
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
    "new_id",
    "next_moments",
    "run",
    "typed",
]

if TYPE_CHECKING:
    from zkrq import logs as logs
    from zkrq import opentelemetry as opentelemetry
    from zkrq import prometheus as prometheus
    from zkrq import sync as sync
    from zkrq import testing as testing
else:

    def __getattr__(name: str) -> object:
        if name in {"logs", "opentelemetry", "prometheus", "sync", "testing"}:  # imported by those who use it
            return import_module(f"zkrq.{name}")
        if name in RENAMED:
            present, deprecation = RENAMED[name]
            deprecation.warn()
            return globals()[present]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
