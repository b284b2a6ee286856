"""Define typed calls: one class per script, whose fields are its arguments, and a value for its reply.

Nothing else knows a script's arguments by their positions, or reads a reply by positions.  A field has the name that
the argument has in the header of its Lua file, and a reply's values come in the header's order; a test compares both.
Arguments that repeat in the header (after its slash) are the field ``items``.

Units: names in ``_ms`` are milliseconds; ``clock`` and names in ``_us`` are microseconds since 1970 by the clock of
the called server, 0 if it is unknown.  Scripts count positions in a list from 1; the values here count
from 0.
"""

from zkrq.protocol.calls.administration import (
    Cancel,
    CancelReply,
    Clear,
    ClearReply,
    Delete,
    Pause,
    Redrive,
    RedriveReply,
)
from zkrq.protocol.calls.applying import Apply, ApplyNew, ApplyReply, Cut
from zkrq.protocol.calls.call import (
    FROM_NOW,
    START,
    Body,
    Call,
    Clocked,
    Combining,
    Decision,
    Gone,
    Names,
    NamesPage,
    Paged,
    Paging,
    Records,
    Rows,
    Trimming,
    Word,
)
from zkrq.protocol.calls.consuming import Claim, ClaimReply, Settle, Settlement, SettleReply, runs
from zkrq.protocol.calls.copying import CopyPage, Install, Metadata, MetadataReply, Page, Read, Wipe
from zkrq.protocol.calls.fencing import Claims, Fence, FenceReply, Owners, OwnersReply, Retire
from zkrq.protocol.calls.inspection import (
    ClaimCounts,
    ClaimCountsReply,
    Count,
    Counts,
    Peek,
    PeekReply,
    Statistics,
    StatisticsReply,
)
from zkrq.protocol.calls.producing import DecidedReply, PlainReply, PushDecided, PushPlain
from zkrq.protocol.calls.rows import (
    Copied,
    Copies,
    Put,
    bundle_and_position,
    item_id,
    read_notes,
    stored_at,
)
from zkrq.protocol.calls.scrubbing import Affirm, Compare, Differences, Forward, Heads, HeadsReply, Trim, TrimReply
from zkrq.protocol.calls.servers import Enrol, Forget, Queues, Reserve, Room, Seal

__all__ = [
    "FROM_NOW",
    "START",
    "Affirm",
    "Apply",
    "ApplyNew",
    "ApplyReply",
    "Body",
    "Call",
    "Cancel",
    "CancelReply",
    "Claim",
    "ClaimCounts",
    "ClaimCountsReply",
    "ClaimReply",
    "Claims",
    "Clear",
    "ClearReply",
    "Clocked",
    "Combining",
    "Compare",
    "Copied",
    "Copies",
    "CopyPage",
    "Count",
    "Counts",
    "Cut",
    "DecidedReply",
    "Decision",
    "Delete",
    "Differences",
    "Enrol",
    "Fence",
    "FenceReply",
    "Forget",
    "Forward",
    "Gone",
    "Heads",
    "HeadsReply",
    "Install",
    "Metadata",
    "MetadataReply",
    "Names",
    "NamesPage",
    "Owners",
    "OwnersReply",
    "Page",
    "Paged",
    "Paging",
    "Pause",
    "Peek",
    "PeekReply",
    "PlainReply",
    "PushDecided",
    "PushPlain",
    "Put",
    "Queues",
    "Read",
    "Records",
    "Redrive",
    "RedriveReply",
    "Reserve",
    "Retire",
    "Room",
    "Rows",
    "Seal",
    "Settle",
    "SettleReply",
    "Settlement",
    "Statistics",
    "StatisticsReply",
    "Trim",
    "TrimReply",
    "Trimming",
    "Wipe",
    "Word",
    "bundle_and_position",
    "item_id",
    "read_notes",
    "runs",
    "stored_at",
]
