"""Read which groups of a queue are the largest, and what keeps the others from being claimed."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from zkrq.protocol import calls

if TYPE_CHECKING:
    from zkrq.base.limits import Groups
    from zkrq.replication.replicas import Replicas

GROUPS_LOOKED = 10_000
"""Groups of a shard that are looked at for the largest ones."""

PAGE = 500
"""Groups that one call of a script reads."""

Standing = Literal["in line", "blocked", "failed", "idle"]


class Group(NamedTuple):
    """A group of a queue.

    ``waiting``: its items that are due; of a group with more than some hundred an estimate where it has many that were
    pushed together.  ``claimed``: its items that are claimed.  ``standing``: ``in line`` for its turn; ``blocked`` by
    the claims of its own items, because of its limit or its order, or by its rate; ``failed``: an item that keeps the
    order waits for its next attempt, and all others for that; ``idle``: no item waits.  ``oldest``: seconds since the
    push of the item that comes next, None without one.
    """

    name: str
    waiting: int
    claimed: int
    standing: Standing
    oldest: float | None

    def is_held_by_rate(self, limits: Groups) -> bool:
        """Tell whether it waits for its rate, and not for claims of its own; ``limits``: the queue's, of its groups."""
        own = limits.limits_of(self.name)
        is_full = own.concurrency is not None and self.claimed >= own.concurrency
        return self.standing == "blocked" and own.rate is not None and not is_full


class LargestGroups(NamedTuple):
    """The groups with the most items, the largest first.  ``looked``: groups that were looked at, ``whole``: whether
    these were all."""

    groups: Sequence[Group]
    looked: int
    whole: bool


_STANDINGS: Sequence[Standing] = ("blocked", "in line", "failed", "idle")
"""What the numbers 0, 1, 2 and -1 stand for."""


async def read_groups(queue: str, n: int, replicas: Replicas) -> LargestGroups:
    """Return the ``n`` largest groups of one shard.  Raises ``Unavailable``."""
    found: dict[bytes, int] = {}
    page = calls.GroupPage(queue, calls.START, PAGE)
    while True:
        reply = await replicas.ask(page)
        found |= {row.name: row.waiting + row.claimed for row in reply.groups if row.waiting or row.claimed}
        page = page.at(reply.cursor)
        if reply.cursor == calls.START or len(found) >= GROUPS_LOOKED:
            break
    names = heapq.nlargest(2 * n, found, key=lambda name: found[name])  # entries may be bundles
    told = (await replicas.ask(calls.GroupPage(queue, calls.START, 0, names))).groups if names else ()
    groups = [_group(row) for row in told if row.waiting or row.claimed]
    return LargestGroups(heapq.nlargest(n, groups, key=size_of), len(found), reply.cursor == calls.START)


def size_of(group: Group) -> int:
    """Return how many items a group has that wait or are claimed."""
    return group.waiting + group.claimed


def add_groups(found: Sequence[LargestGroups], n: int) -> LargestGroups:
    """Put together what several shards know.  Of a group on several the first one that does not wait in vain counts."""
    if len(found) == 1:
        return found[0]
    groups: dict[str, Group] = {}
    for group in (each for largest in found for each in largest.groups):
        if known := groups.get(group.name):
            oldest = max((each for each in (known.oldest, group.oldest) if each is not None), default=None)
            standing = known.standing if known.standing != "idle" else group.standing
            sums = known.waiting + group.waiting, known.claimed + group.claimed
            group = Group(group.name, *sums, standing, oldest)
        groups[group.name] = group
    largest = heapq.nlargest(n, groups.values(), key=size_of)
    return LargestGroups(largest, sum(each.looked for each in found), all(each.whole for each in found))


def _group(row: calls.GroupRow) -> Group:
    oldest = None if row.age_ms < 0 else row.age_ms / 1000
    return Group(row.name.decode(errors="replace"), row.waiting, row.claimed, _STANDINGS[row.standing], oldest)
