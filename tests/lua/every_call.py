"""A call of every script that servers of the view have."""

from __future__ import annotations

from typing import Any

from zkrq.protocol import calls
from zkrq.protocol.calls.reporting import Report, ToldReports
from zkrq.protocol.payloads import join
from zkrq.protocol.records import VERSION_BYTES, fresh

AnyCall = calls.Call[Any]

RECORD = fresh(0, 0)
PUSH = calls.Put("id", RECORD, join([b""]))

SETTLEMENT: calls.Settlement = ("id", b"\0\0", RECORD[VERSION_BYTES], "ann/1", "ack")

CALLS: dict[str, AnyCall] = {
    call.script: call
    for call in (
        calls.Admit("q", [("id", 1)]),
        calls.Adopt("q", 0, [calls.Adopted("id", RECORD, join([b""]))]),
        calls.Affirm("q", [b"id"]),
        calls.Aside("q"),
        calls.DropAside("q", [b"id"]),
        calls.DropFigures("q"),
        calls.DropName([b"\xff"]),
        calls.Figure("q", 1, [("", b"\1")]),
        calls.ToldFigures("q", "m", 0, 1),
        calls.Mend("q", [calls.Copied(b"id", RECORD, b"", b"0", b"")]),
        calls.SetAside("q", 0, "", [calls.Kept(b"id", b"")]),
        calls.Apply("q", [("id", RECORD, b"", 0, b"")], fenced="ann", whole=True),
        calls.ApplyNew("q", [("id", RECORD, b"", 0, b"")], fenced="ann", whole=True),
        calls.Broadcast("topic", b"message"),
        calls.Cancel("q", "", 0, "", ["id"]),
        calls.Claim("q", "ann", 1, 10, 1000, "channel", 0, "X", 0, 0),
        calls.Claims("q", "ann"),
        calls.Clear("q", 10, "", 0, b""),
        calls.Compare("q", [(b"id", b"")]),
        calls.Count("q"),
        calls.Cut("q", [calls.Gone(b"id", b"")]),
        calls.DeadPage("q", calls.START, 10),
        calls.Fence("q", "ann"),
        calls.Forget("q"),
        calls.Declare("q", "limits", "concurrency=1", "", False, ""),
        calls.Delete("q", 10**12),
        calls.Forward("q", 10**17, 0, [calls.Copied(b"id", RECORD, b"", b"0", b"")]),
        calls.Heads("q", calls.START, 10),
        calls.ClaimCounts("q"),
        calls.History("q", 0, 10),
        calls.GroupPage("q", calls.START, 10),
        calls.Install("q", 0, calls.Rows(["ann", 1, -1])),
        calls.Keyed("q", "key"),
        calls.Owners("q"),
        calls.Page("q", calls.START, 10),
        calls.Pause("q", "P", 0, 0, ""),
        calls.Peek("q", "ready", 10),
        calls.PushDecided("q", [PUSH]),
        calls.PushPlain("q", [PUSH]),
        calls.Queues(),
        calls.Read("q", ["id"]),
        calls.Redrive("q", 0, 0, "", ["id"]),
        calls.Advance("q", "", ["id"]),
        calls.Edit("q", b"edit", ["id"]),
        calls.RepairFlows("q"),
        calls.RepairLines("q"),
        calls.Retire("q", "ann"),
        calls.Room(),
        calls.Seal(),
        calls.Settle("q", 0, 0, [SETTLEMENT]),
        calls.Steer("q", "f", "begin", 0, 1000),
        calls.FlowMembers("q", "f"),
        calls.FlowPage("q"),
        calls.FlowResults("q", "f"),
        calls.OpenHeld("q", "f"),
        calls.WaitingPage("q", "f", "N"),
        calls.NamedStates("q", ["f.a"]),
        calls.Release("q", "f", ["f.b"]),
        calls.Metadata("q"),
        calls.Movable("q", 10),
        calls.Statistics("q"),
        calls.Trim("q"),
        calls.Turn("q", "ann", 1, 1, 1000, "", 0, "X", 0, 0, items=[SETTLEMENT]),
        calls.Wipe("q"),
        calls.Results("q", "", ["a"]),
        calls.Store("q", [calls.StoredRow("a", "call", "forget")]),
        calls.Stored("q", "", ["a"]),
        Report("q", "id", "1-ann/1", "half"),
        ToldReports("q", ["id"]),
    )
}
"""A call of every script that has the gate."""
