"""zkrq: a reliable asyncio work queue without a single point of failure.

Every item is written to N independent Redis servers at once; ZooKeeper sessions decide who is alive and which servers
may be believed.
"""

from zkrq import typed
from zkrq.claims import Claim, Lost
from zkrq.cluster import Cluster, Health, ServerHealth, connect, embedded
from zkrq.codecs import JSON, RAW, Codec
from zkrq.errors import (
    ClaimLost,
    Closed,
    CodecError,
    ConfigError,
    NotEnoughReplicas,
    OutcomeUnknown,
    PayloadTooLarge,
    Unavailable,
    ZkrqError,
)
from zkrq.events import (
    CatchingUp,
    ClaimsLost,
    Event,
    NotWritable,
    OwnerFenced,
    Recovered,
    Scrubbed,
    ServerCaughtUp,
    ServerEvicted,
    SessionLost,
    SessionResumed,
    SessionSuspended,
    ViewChanged,
)
from zkrq.ids import new_id
from zkrq.items import Item
from zkrq.outcomes import Counts, Ending, Outcome, WorkerStatistics
from zkrq.queue import Deliveries, Queue, Receipt, Sizes
from zkrq.recurring import Recurring, next_moments
from zkrq.repair.catchup import Progress
from zkrq.replication.view import View
from zkrq.retry import Backoff, Reject, Retry, RetryLater, constant, exponential, linear
from zkrq.worker import Worker

__version__ = "0.1.0"

__all__ = [
    "JSON",
    "RAW",
    "Backoff",
    "CatchingUp",
    "Claim",
    "ClaimLost",
    "ClaimsLost",
    "Closed",
    "Cluster",
    "Codec",
    "CodecError",
    "ConfigError",
    "Counts",
    "Deliveries",
    "Ending",
    "Event",
    "Health",
    "Item",
    "Lost",
    "NotEnoughReplicas",
    "NotWritable",
    "Outcome",
    "OutcomeUnknown",
    "OwnerFenced",
    "PayloadTooLarge",
    "Progress",
    "Queue",
    "Receipt",
    "Recovered",
    "Recurring",
    "Reject",
    "Retry",
    "RetryLater",
    "Scrubbed",
    "ServerCaughtUp",
    "ServerEvicted",
    "ServerHealth",
    "SessionLost",
    "SessionResumed",
    "SessionSuspended",
    "Sizes",
    "Unavailable",
    "View",
    "ViewChanged",
    "Worker",
    "WorkerStatistics",
    "ZkrqError",
    "connect",
    "constant",
    "embedded",
    "exponential",
    "linear",
    "new_id",
    "next_moments",
    "typed",
]
