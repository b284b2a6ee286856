"""Simulate pushes that choose between two shards, event by event, with a seed.

A shard is one server with a line of batches: it takes them one after the other, each for a time drawn exponentially
with mean ``SERVICE``.  Batches arrive as a Poisson process, each from one client.  With what a client can see, it
takes the better of two shards that it draws from its subset; equal ones are a matter of chance.

Without subsets, and with a choice by all batches in the line, this is the supermarket model (Vvedenskaya, Dobrushin
and Karpelevich, 1996; Mitzenmacher, 1996): the part of the shards with at least i batches is λ^(2^i - 1), where a
choice by chance alone gives λ^i.  A test holds the program to both.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.scale.subsets import Subsets

SERVICE = 0.001
"""Mean seconds for which a batch occupies its shard's servers."""

ROUND_TRIP = 0.0005
"""Seconds that a batch is under way besides, for the client that counts it."""


class Signal(enum.Enum):
    """What decides between the two shards."""

    CHANCE = "chance alone"
    OWN = "own batches under way"
    ALL = "everybody's batches under way"


@dataclass(frozen=True, slots=True)
class Balance:
    """How evenly the batches went: busiest, idlest and first shard relative to the mean; seconds until a batch is done,
    on average and for one in a hundred; part of the shards that have at least 0, 1, 2, ... batches at a moment."""

    busiest: float
    idlest: float
    first: float
    mean_seconds: float
    slow_seconds: float
    lines: Sequence[float]


LENGTHS = 8
"""Lengths of lines that are told apart."""

PROBE = 4
"""Every this many batches, the line of one shard is looked at."""


def push(
    subsets: Subsets,
    shards: int,
    *,
    load: float,
    signal: Signal,
    batches: int,
    seed: int,
    weights: Sequence[float] | None = None,
    slow: float = 1.0,
) -> Balance:
    """Push this many batches, of which the first fifth only fills the lines.

    load: part of all shards' capacity.
    weights: how much each client pushes, relative to the others; None: all alike.
    slow: times that the first shard takes for a batch, relative to the others.
    """
    rng = random.Random(seed)
    senders = rng.choices(range(len(subsets)), weights, k=batches)
    lines: list[list[float]] = [[] for _ in range(shards)]
    own: dict[tuple[int, int], list[float]] = {}
    served, taken, probed = [0] * shards, list[float](), [0] * LENGTHS
    now, begin = 0.0, batches // 5
    for number, client in enumerate(senders):
        now += rng.expovariate(load * shards / SERVICE)
        if number >= begin and number % PROBE == 0:
            probed[min(_left(lines[rng.randrange(shards)], now), LENGTHS - 1)] += 1
        shard, other = draw_two(subsets[client], rng)
        if signal is Signal.ALL and _left(lines[other], now) < _left(lines[shard], now):
            shard = other
        if signal is Signal.OWN and _left(own.get((client, other), ()), now) < _left(own.get((client, shard), ()), now):
            shard = other
        end = serve(lines, shard, now, rng, slow if shard == 0 else 1.0)
        if signal is Signal.OWN:
            under_way = own.get((client, shard), ())
            own[client, shard] = [*(each for each in under_way if each > now), end + ROUND_TRIP]
        if number >= begin:
            served[shard] += 1
            taken.append(end + ROUND_TRIP - now)
    taken.sort()
    mean = fmean(served)
    tails = [sum(probed[length:]) / sum(probed) for length in range(LENGTHS)]
    return Balance(
        max(served) / mean, min(served) / mean, served[0] / mean, fmean(taken), taken[len(taken) * 99 // 100], tails
    )


def draw_two(subset: Sequence[int], rng: random.Random) -> tuple[int, int]:
    """Draw two different shards; the same one twice from a subset of one."""
    last = len(subset) - 1
    first = int(rng.random() * (last + 1))
    second = int(rng.random() * last)
    return subset[first], subset[last if second == first else second]


def serve(lines: Sequence[list[float]], shard: int, now: float, rng: random.Random, slow: float = 1.0) -> float:
    """Put a batch into the line of a shard; return when it is done.  Forgets those that are done now."""
    line = lines[shard]
    while line and line[0] <= now:
        line.pop(0)
    end = (line[-1] if line else now) + slow * rng.expovariate(1 / SERVICE)
    line.append(end)
    return end


def _left(ends: Iterable[float], now: float) -> int:
    return sum(end > now for end in ends)
