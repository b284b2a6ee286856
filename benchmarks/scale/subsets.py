"""Choose the shards that a client works with, and say what that does to the shards.

Three ways, each for clients that do not talk to each other:

    random        each client draws k shards; a client that starts anew draws others
    rendezvous    the k shards with the greatest hashes of client and shard (Thaler and Ravishankar, 1998): the same
                  distribution, but a client keeps its shards, and a new shard takes no more than its part
    deterministic the chapter "Load Balancing in the Datacenter" of Google's SRE book: clients are numbered; each round
                  of them shuffles the shards alike and deals them out
"""

from __future__ import annotations

import hashlib
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

Subsets = Sequence[Sequence[int]]
"""The shards of each client."""


def drawn(clients: int, shards: int, k: int, rng: random.Random) -> Subsets:
    """Draw ``k`` shards for each client."""
    every = range(shards)
    return [rng.sample(every, min(k, shards)) for _ in range(clients)]


def rendezvous(clients: Iterable[int], shards: Iterable[int], k: int) -> Subsets:
    """Choose for each client the ``k`` shards that hash highest with it."""
    named = [(shard, f"shard-{shard}".encode()) for shard in shards]
    chosen: list[list[int]] = []
    for client in clients:
        seed = hashlib.blake2b(str(client).encode(), digest_size=16)
        ranked: list[tuple[bytes, int]] = []
        for shard, name in named:
            each = seed.copy()
            each.update(name)
            ranked.append((each.digest(), shard))
        ranked.sort(reverse=True)
        chosen.append([shard for _, shard in ranked[:k]])
    return chosen


def deterministic(clients: int, shards: int, k: int) -> Subsets:
    """Deal the shards out, ``shards // k`` clients a round; what is left of a round's shards goes to nobody."""
    a_round = shards // k
    dealt: list[int] = []
    chosen: list[list[int]] = []
    for client in range(clients):
        number, place = divmod(client, a_round)
        if place == 0:
            dealt = list(range(shards))
            random.Random(number).shuffle(dealt)
        chosen.append(dealt[place * k : (place + 1) * k])
    return chosen


def clients_of(subsets: Subsets, shards: int) -> list[int]:
    """Return the number of clients of each shard."""
    counted = Counter(shard for chosen in subsets for shard in chosen)
    return [counted[shard] for shard in range(shards)]


def moved(before: Subsets, after: Subsets) -> float:
    """Return the part of the connections that clients have to make anew."""
    new = sum(len(set(now) - set(then)) for then, now in zip(before, after, strict=True))
    return new / sum(map(len, after))


def likely_empty(clients: int, shards: int, k: int) -> float:
    """Bound the probability that some shard has no client at all, if each client draws ``k``: the sum over the
    shards."""
    return min(1.0, shards * math.exp(clients * math.log1p(-k / shards))) if k < shards else 0.0


def at_most(count: int, clients: int, part: float) -> float:
    """Return the probability that at most ``count`` of the clients have drawn a shard, each with probability
    ``part``."""
    if part >= 1:
        return 1.0 if count >= clients else 0.0
    logs = (
        math.lgamma(clients + 1)
        - math.lgamma(n + 1)
        - math.lgamma(clients - n + 1)
        + n * math.log(part)
        + (clients - n) * math.log1p(-part)
        for n in range(count + 1)
    )
    return min(1.0, math.fsum(map(math.exp, logs)))


def least_k(clients: int, shards: int, *, risk: float) -> int:
    """Return the smallest subset with which no shard is without clients, except with probability ``risk``."""
    return _first(shards, lambda k: likely_empty(clients, shards, k) <= risk)


def even_k(clients: int, shards: int, *, over: float, risk: float) -> int:
    """Return the smallest subset with which no shard has more than ``over`` times the mean number of clients, except
    with probability ``risk`` (all shards together, taken as independent)."""

    def even(k: int) -> bool:
        most = math.floor(over * clients * k / shards)
        return 1 - at_most(most, clients, k / shards) ** shards <= risk

    return _first(shards, even)


def _first(shards: int, holds: Callable[[int], bool]) -> int:
    """Return the smallest number up to ``shards`` for which ``holds``, which stays true once it is."""
    low, high = 1, shards
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low
