"""The faults: one class each, which causes it, undoes it, and counts how often it really happened.

Some of them lose data, but never more than is allowed: such a fault begins only while every server is in the
view, and the faults of one lane never overlap.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests import shift
from tests.chaos.faults.base import Fault
from tests.chaos.faults.clients import ClientStopped, SubscriptionsSilent, ZooKeeperCut
from tests.chaos.faults.clocks import ClockSet
from tests.chaos.faults.links import CutApart, Narrow, PairCut, WrongPassword
from tests.chaos.faults.redis import (
    AllKilled,
    Flushed,
    Full,
    FullApart,
    KilledEmpty,
    KilledOld,
    Replica,
    Stopped1,
    Stopped5,
    Stopped30,
    StoppedLoaded,
)
from tests.chaos.faults.zookeeper import ZooKeeperDown, ZooKeeperLeaderKilled

FAULTS: Mapping[str, type[Fault]] = {
    fault.name: fault
    for fault in (
        KilledEmpty,
        KilledOld,
        Stopped1,
        Stopped5,
        Stopped30,
        Flushed,
        StoppedLoaded,
        PairCut,
        CutApart,
        WrongPassword,
        Narrow,
        Full,
        FullApart,
        Replica,
        AllKilled,
        ZooKeeperCut,
        ZooKeeperLeaderKilled,
        ZooKeeperDown,
        ClientStopped,
        SubscriptionsSilent,
        *([] if shift.WHY_NOT else [ClockSet]),
    )
}
"""By their names; without those that this machine has no means for."""
