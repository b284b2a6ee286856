"""Simulate how a new shard takes its part, and compute how long one that is drained takes to be empty."""

from __future__ import annotations

import enum
import random
from collections.abc import Sequence

from benchmarks.scale.choices import SERVICE, draw_two, serve
from zkrq.protocol.clocks import PUT_WINDOW


class Policy(enum.Enum):
    """How a client chooses the shard of a batch."""

    OWN = "two choices, own batches under way"
    BACKLOG = "two choices, items waiting as of a second ago"
    LEAST = "the least of all, items waiting as of a second ago"


OLD = 1.0
"""Seconds after which a client reads again how many items wait."""

STEP = 0.25
"""Seconds over which a part is counted."""

NOTICE = 1.0
"""Seconds within which all clients have heard of a change of the map."""


def join(
    policy: Policy,
    *,
    shards: int = 20,
    clients: int = 200,
    load: float = 0.7,
    waiting: float = 2_000.0,
    seconds: float = 10.0,
    seed: int = 0,
) -> Sequence[float]:
    """Push while one shard is added to ``shards`` others; return its part of the batches in each ``STEP`` seconds,
    relative to the mean of all.

    Every client hears of the new shard within ``NOTICE``.

    waiting: batches that wait in each old shard; every shard's consumers take what would be its even part.
    """
    rng = random.Random(seed)
    new, every = shards, range(shards + 1)
    rate = load * shards / SERVICE
    lines: list[list[float]] = [[] for _ in every]
    backlog = [waiting] * shards + [0.0]
    heard = [rng.uniform(0, NOTICE) for _ in range(clients)]
    known: list[tuple[float, list[float]]] = [(-rng.uniform(0, OLD), list(backlog)) for _ in range(clients)]
    own: dict[tuple[int, int], list[float]] = {}
    counted = [[0, 0] for _ in range(round(seconds / STEP))]
    now = 0.0
    while True:
        before, now = now, now + rng.expovariate(rate)
        if now >= seconds:
            break
        for shard in every:
            backlog[shard] = max(0.0, backlog[shard] - (now - before) * rate / len(every))
        client = rng.randrange(clients)
        knows = every if now >= heard[client] else range(shards)
        if policy is Policy.OWN:
            shard, other = draw_two(knows, rng)
            loads = [sum(end > now for end in own.get((client, each), ())) for each in (shard, other)]
            shard = other if loads[1] < loads[0] else shard
        else:
            if now - known[client][0] >= OLD:
                known[client] = (now, list(backlog))
            seen = known[client][1]
            among = draw_two(knows, rng) if policy is Policy.BACKLOG else knows
            shard = min(among, key=seen.__getitem__)
        end = serve(lines, shard, now, rng)
        own[client, shard] = [*(each for each in own.get((client, shard), ()) if each > now), end]
        backlog[shard] += 1
        place = counted[min(int(now / STEP), len(counted) - 1)]
        place[0] += shard == new
        place[1] += 1
    return [mine * len(every) / max(all_, 1) for mine, all_ in counted]


def seconds_to_empty(items: float, *, consumed: float, handlers: int, handler_seconds: float) -> float:
    """Return the mean seconds until a shard without new pushes is empty.

    consumed: items per second; handlers: of items under way at the end, each taking ``handler_seconds`` on average,
    exponentially: the last of n ends after the n-th harmonic number of those.
    """
    return items / consumed + handler_seconds * sum(1 / n for n in range(1, handlers + 1))


def seconds_to_remove(empty: float, *, latest_item: float = 0.0) -> float:
    """Return the seconds from the beginning of the draining until the shard may be removed.

    latest_item: seconds until the last item that is scheduled for later is due.
    """
    return max(NOTICE + PUT_WINDOW, empty, latest_item)
