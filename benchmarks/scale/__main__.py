"""Compute and simulate one queue over many shards, on paper.

    python -m benchmarks.scale            # prints tables, about half a minute
    python -m benchmarks.scale --docs     # renews docs/scale/figures.md
    python -m benchmarks.scale --check    # compares with real servers at one small point instead, about three minutes

Every figure follows from a seed and from constants, so a run repeats the last one.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks import plots, report
from benchmarks.scale import check, choices, life, sizes, subsets
from benchmarks.scale.choices import Signal
from benchmarks.scale.reasons import REASONS
from benchmarks.scale.requests import ANSWER_SECONDS, Fleet
from benchmarks.sheet import Sheet, Topic, figure
from zkrq.coordination.zookeeper.coordinator import MAX_DATA_BYTES
from zkrq.repair.fencing import FOLLOWERS

PAGE = Path(__file__).parents[2] / "docs" / "scale" / "figures.md"

# What servers are taken to bear.  docs/benchmarks.md says where the figures are from.
ZOOKEEPER_REQUESTS = 50_000.0
"""Reads per second of an ensemble."""
ZOOKEEPER_WRITES = 20_000.0
"""Requests per second that ZooKeeper's leader passes on."""
ZOOKEEPER_BYTES = 300e6
"""Bytes per second of an ensemble of three servers, with a gigabit for each."""
ZOOKEEPER_HEAP = 1e9
"""Bytes of one ZooKeeper server's heap."""
WATCH_BYTES = 100.0
"""Of a ZooKeeper server's heap for one watch."""
MAX_CLIENTS = 10_000
"""Connections of a Redis server, as it is by default."""
MAX_FILES = 1_024
"""Open files of a process, as it usually is by default."""
QUIET = 0.2
"""Part of a server that may be busy while nothing happens."""

RESTART_SECONDS = 60.0
"""Within which all clients are restarted."""

CLIENTS_OF_A_SHARD = 300
"""On average, where clients are given subsets; the tables say why."""

STORED = Topic("stored", "What ZooKeeper holds", "", "", "shards")
WATCHING = Topic("watching", "Watching views: 1,000 shards, 10,000 clients", "", "", "shards of a client")
REGISTRY = Topic(
    "registry",
    "The list of consumers, whatever the shards",
    "Above 100 % of the network the lists of a restart take longer than its minute, if each change had its own lists.",
    "",
    "clients",
)
SHARD = Topic("shard", "What a shard's clients cost it", "", "", "clients of a shard")
SPREADING = Topic("spreading", "Clients of a shard: 1,000 shards, 10,000 clients", "", "", "shards of a client")
NEEDED = Topic(
    "needed",
    "How many shards a client needs",
    "The smallest subset with which no shard is without consumers (except once in a million), and with which no shard\n"
    "has more than 1.25 times the mean (except once in a hundred).",
    "",
    "clients",
)
MOVING = Topic("moving", "One shard more: 100 shards, 1,000 clients, 10 shards of each", "", "", "how it chooses")
CHOOSING = Topic("choosing", "Two choices: 100 shards at 70 %, 1,000 clients", "", "", "shards of a client")
DELAYS = Topic(
    "choices",
    "The slowest of a hundred pushes: 50 shards at 80 %",
    "",
    "ms",
    "clients, all alike, each with all shards",
    "lines",
    log=True,
)
SLOW = Topic("slow", "One of 50 shards is four times slower (all at 50 %)", "", "", "clients")
JOINING = Topic(
    "join", "Part of the pushes that a new shard gets", "", "even part = 1", "milliseconds since it was added", "lines"
)
DRAINING = Topic("draining", "Draining a shard", "", "", "items waiting")
LIMITS = Topic(
    "limits",
    "Part of each limit",
    "In percent: above 100 it does not work, or leaves no room. *A consumer comes* and *a server dies*: the seconds\n"
    "for which ZooKeeper is busy with it, of the 3.3 s after which clients leave. *A server is away*: of a fifth of\n"
    "ZooKeeper's leader. *All clients restart*: of one minute.",
    "",
    "shards, clients, shards of a client",
)
LARGEST = Topic(
    "largest",
    "Clients at which a limit is reached",
    "1,000,000: or more; 0: with any number. The first four columns are the design as it is, the last two what two\n"
    "changes would make of the fourth.",
    "",
    "limit",
)

TOPICS = (
    *(STORED, WATCHING, REGISTRY, SHARD),
    *(SPREADING, NEEDED, MOVING),
    *(CHOOSING, DELAYS, SLOW, JOINING, DRAINING),
    *(LIMITS, LARGEST),
)


def stored(sheet: Sheet) -> None:
    view = len(sizes.view(sizes.shard_name(0)))
    for shards in (1, 10, 100, 1_000, 10_000):
        size = len(sizes.shard_map(shards))
        sheet.add(
            STORED,
            f"{shards:,}",
            **{
                "map, bytes": size,
                "of the limit, %": 100 * size / MAX_DATA_BYTES,
                "one view, bytes": view,
                "map and all views, KB": (size + shards * view) / 1e3,
                "map and 30 views, KB": (size + min(shards, 30) * view) / 1e3,
            },
        )


def watching(sheet: Sheet) -> None:
    for subset in (1_000, 100, 30, 10):
        fleet = Fleet(1_000, 10_000, subset)
        changes = fleet.view_changes()
        sheet.add(
            WATCHING,
            f"{subset:,}",
            **{
                "clients of a shard": fleet.of_a_shard,
                "watches": fleet.watches,
                "their memory, MB": fleet.watches * WATCH_BYTES / 1e6,
                "renewed per second": fleet.looks_again,
                "notices per second": changes * fleet.of_a_shard,
                "requests when a server dies": fleet.burst,
                "ZooKeeper busy, s": fleet.burst / ZOOKEEPER_REQUESTS,
                "when 40 die, s": 40 * fleet.burst / ZOOKEEPER_REQUESTS,
                "more per second while one is away": fleet.while_away,
            },
        )


def registry(sheet: Sheet) -> None:
    of_a_minute = ZOOKEEPER_BYTES * RESTART_SECONDS
    for clients in (100, 300, 1_000, 3_000, 10_000):
        fleet = Fleet(1, clients, 1)
        sheet.add(
            REGISTRY,
            f"{clients:,}",
            **{
                "heartbeats per second": fleet.heartbeats,
                "all requests per second": fleet.requests,
                "the list, KB": fleet.list_bytes / 1e3,
                "lists, MB per second": fleet.list_bytes_per_second / 1e6,
                "one comes: ZooKeeper busy, s": fleet.all_lists / ZOOKEEPER_BYTES,
                "all restart in a minute: % of its network": 100 * fleet.restart_lists / of_a_minute,
            },
        )


def of_a_shard(sheet: Sheet) -> None:
    for clients in (30, 100, 300, 1_000, 3_000, 10_000):
        fleet = Fleet(1, clients, 1)
        sheet.add(
            SHARD,
            f"{clients:,}",
            **{
                "connections of the primary": fleet.connections,
                "of maxclients, %": 100 * fleet.connections / MAX_CLIENTS,
                "looks for orphans: % of a processor": 100 * fleet.looks,
                "MB per second": fleet.look_bytes / 1e6,
                "all restart: s of a processor": fleet.restart_looks,
            },
        )


def spreading(sheet: Sheet) -> None:
    shards, clients = 1_000, 10_000
    for k in (1, 2, 3, 10, 30, 100):
        counts = subsets.clients_of(subsets.drawn(clients, shards, k, random.Random(k)), shards)
        dealt = subsets.clients_of(subsets.deterministic(clients, shards, k), shards)
        sheet.add(
            SPREADING,
            f"{k:,}",
            **{
                "mean": clients * k / shards,
                "drawn: fewest": min(counts),
                "drawn: most": max(counts),
                "most / mean": max(counts) * shards / clients / k,
                "shards without any": counts.count(0),
                "dealt out: fewest": min(dealt),
                "dealt out: most": max(dealt),
            },
        )


def needed(sheet: Sheet) -> None:
    for clients in (100, 300, 1_000, 3_000, 10_000):
        for shards in (10, 100, 1_000):
            columns = {
                f"{shards:,} shards: none without": subsets.least_k(clients, shards, risk=1e-6),
                f"{shards:,} shards: even to 1.25": subsets.even_k(clients, shards, over=1.25, risk=0.01),
            }
            sheet.add(NEEDED, f"{clients:,}", **columns)


def moving(sheet: Sheet) -> None:
    shards, clients, k = 100, 1_000, 10
    rng = random.Random(1)
    ways: Mapping[str, Callable[[int], subsets.Subsets]] = {
        "drawn anew": lambda shards: subsets.drawn(clients, shards, k, rng),
        "rendezvous": lambda shards: subsets.rendezvous(range(clients), range(shards), k),
        "dealt out": lambda shards: subsets.deterministic(clients, shards, k),
    }
    for name, choose in ways.items():
        before, after = choose(shards), choose(shards + 1)
        counts = subsets.clients_of(after, shards + 1)
        sheet.add(
            MOVING,
            name,
            **{
                "connections made anew, %": 100 * subsets.moved(before, after),
                "clients of the new shard": counts[-1],
                "mean": sum(counts) / len(counts),
                "most": max(counts),
            },
        )


def choosing(sheet: Sheet) -> None:
    shards, clients = 100, 1_000
    heavy = [9.0 if n % 10 == 0 else 1 / 9 for n in range(clients)]
    for k in (2, 5, 10, 30, shards):
        chosen = subsets.drawn(clients, shards, k, random.Random(k))
        run = [choices.push(chosen, shards, load=0.7, signal=signal, batches=60_000, seed=k) for signal in Signal]
        skewed = choices.push(chosen, shards, load=0.7, signal=Signal.OWN, batches=60_000, seed=k, weights=heavy)
        columns = {f"{signal.value}: most / mean": each.busiest for signal, each in zip(Signal, run, strict=True)}
        columns |= {
            f"{signal.value}: p99, ms": 1e3 * each.slow_seconds for signal, each in zip(Signal, run, strict=True)
        }
        columns["own, a tenth of clients push 90 %: most / mean"] = skewed.busiest
        sheet.add(CHOOSING, f"{k:,}", **columns)


def delays(sheet: Sheet) -> None:
    shards = 50
    for clients in (2, 5, 10, 30, 100, 300, 1_000):
        everywhere: subsets.Subsets = [range(shards)] * clients
        for signal in Signal:
            even = choices.push(everywhere, shards, load=0.8, signal=signal, batches=30_000, seed=clients)
            sheet.add(DELAYS, f"{clients:,}", **{signal.value: 1e3 * even.slow_seconds})
            if clients in (10, 100, 1_000):
                odd = choices.push(everywhere, shards, load=0.5, signal=signal, batches=30_000, seed=clients, slow=4.0)
                columns = {f"{signal.value}: its part": odd.first, f"{signal.value}: p99, ms": 1e3 * odd.slow_seconds}
                sheet.add(SLOW, f"{clients:,}", **columns)


def joining(sheet: Sheet) -> None:
    for policy in life.Policy:
        for n, part in enumerate(life.join(policy, waiting=1_000.0, seconds=8.0, seed=1)):
            sheet.add(JOINING, f"{1000 * (n + 1) * life.STEP:g}", **{policy.value: part})


def draining(sheet: Sheet) -> None:
    for items in (0, 10_000, 1_000_000, 10_000_000):
        empty = life.seconds_to_empty(items, consumed=5_000, handlers=100, handler_seconds=1.0)
        sheet.add(
            DRAINING,
            f"{items:,}",
            **{
                "empty after, s": empty,
                "may be removed after, s": life.seconds_to_remove(empty),
                "the same with an item due in an hour": life.seconds_to_remove(empty, latest_item=3600),
            },
        )


Limit = Callable[[Fleet], float]

BOUNDS: Mapping[str, Limit] = {
    "Redis: connections": lambda fleet: fleet.connections / MAX_CLIENTS,
    "Redis: looks for orphans": lambda fleet: fleet.looks / QUIET,
    "Redis: all clients restart": lambda fleet: fleet.restart_looks / RESTART_SECONDS,
    "client: open files": lambda fleet: fleet.connections_of_a_client / MAX_FILES,
    "ZooKeeper: requests": lambda fleet: fleet.requests / (QUIET * ZOOKEEPER_REQUESTS),
    "ZooKeeper: syncs": lambda fleet: fleet.by_the_leader / (QUIET * ZOOKEEPER_WRITES),
    "ZooKeeper: lists": lambda fleet: fleet.list_bytes_per_second / (QUIET * ZOOKEEPER_BYTES),
    "ZooKeeper: a consumer comes": lambda fleet: fleet.all_lists / ZOOKEEPER_BYTES / ANSWER_SECONDS,
    "ZooKeeper: a server dies": lambda fleet: fleet.burst / ZOOKEEPER_REQUESTS / ANSWER_SECONDS,
    "ZooKeeper: a server is away": lambda fleet: fleet.syncs_while_away / (QUIET * ZOOKEEPER_WRITES),
    "ZooKeeper: watches": lambda fleet: fleet.watches * WATCH_BYTES / ZOOKEEPER_HEAP,
}
"""Each limit, with the part of it that a fleet needs."""

FEW = 1 + FOLLOWERS
"""Clients that watch the list of consumers, if not all do: those that look for orphans when it changes."""

MOST_CLIENTS = 1_000_000
"""Clients up to which the largest number is searched."""


def subset_of(shards: int, clients: int) -> int:
    """Return the subset with which a shard has ``CLIENTS_OF_A_SHARD`` clients, as far as there are as many."""
    return max(1, min(shards, -(-CLIENTS_OF_A_SHARD * shards // clients)))


def limits(sheet: Sheet) -> None:
    compared = ((1, 100), (1, 1_000), (1, 5_000), (10, 1_000), (100, 1_000), (100, 10_000), (1_000, 10_000))
    for shards, clients in compared:
        for subset in sorted({shards, subset_of(shards, clients)}, reverse=True):
            fleet = Fleet(shards, clients, subset)
            columns = {name: 100 * part(fleet) for name, part in BOUNDS.items()}
            sheet.add(LIMITS, f"{shards:,}, {clients:,}, {subset:,}", **columns)
    subset = subset_of(1_000, 10_000)
    better = {
        "the same, with one list for all shards": Fleet(1_000, 10_000, subset, one_list=True),
        f"the same, watched by {FEW} clients only": Fleet(1_000, 10_000, subset, one_list=True, lookers=FEW),
    }
    for name, fleet in better.items():
        sheet.add(LIMITS, name, **{bound: 100 * part(fleet) for bound, part in BOUNDS.items()})


def most_clients(part: Limit, fleet_of: Callable[[int], Fleet]) -> int:
    """Return the largest number of clients that stays within a limit, at most ``MOST_CLIENTS``."""
    low, high = 0, MOST_CLIENTS
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if part(fleet_of(middle)) <= 1 else (low, middle - 1)
    return low


def largest(sheet: Sheet) -> None:
    cases: Mapping[str, Callable[[int], Fleet]] = {
        "1 shard": lambda clients: Fleet(1, clients, 1),
        "10, each client all": lambda clients: Fleet(10, clients, 10),
        "100, each client all": lambda clients: Fleet(100, clients, 100),
        "1,000, each client 30": lambda clients: Fleet(1_000, clients, 30),
        "with one list for all shards": lambda clients: Fleet(1_000, clients, 30, one_list=True),
        f"and watched by {FEW} clients only": lambda clients: Fleet(1_000, clients, 30, one_list=True, lookers=FEW),
    }
    for name, part in BOUNDS.items():
        sheet.add(LARGEST, name, **{case: most_clients(part, fleet_of) for case, fleet_of in cases.items()})


PARTS: Sequence[Callable[[Sheet], None]] = (
    *(stored, watching, registry, of_a_shard),
    *(spreading, needed, moving),
    *(choosing, delays, joining, draining),
    *(limits, largest),
)


def compute() -> Sheet:
    """Return all figures."""
    sheet = Sheet()
    for part in PARTS:
        part(sheet)
    return sheet


GENERATED = """\
<!-- generated by `python -m benchmarks.scale --docs`: not edited, not counted among the pages to read -->
# Figures of one queue over many shards

Computed and simulated.
[Benchmarks](../benchmarks.md#on-paper-one-queue-over-many-shards) says what is assumed, and what follows.
"""


def publish(page: Path, sheet: Sheet) -> None:
    """Write each table between its markers, or its picture, which is drawn beside the page."""
    pictures = plots.draw(sheet, "python -m benchmarks.scale --docs: simulated", page.parent)
    text = GENERATED
    for name, topic in sheet.topics.items():
        begin, end = markers(name)
        shown = f"![{topic.title}]({name}.svg)" if name in pictures else report.grid(sheet, topic)
        about = "".join(f"{said}\n\n" for said in (REASONS.get(name), topic.about) if said)
        text += f"\n## {topic.title}\n\n{about}{begin}\n\n{shown}\n\n{end}\n"
    page.write_text(text)


def markers(name: str) -> tuple[str, str]:
    """Return the lines between which a table stands in the page."""
    return f"<!-- {name}: made by `python -m benchmarks.scale --docs` -->", f"<!-- end of {name} -->"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--docs", action="store_true", help="renew docs/scale/figures.md")
    parser.add_argument("--check", action="store_true", help="compare a small point with real servers, nothing else")
    options = parser.parse_args()
    if options.check:
        print("| | computed | counted |\n| --- | ---: | ---: |")
        for each in asyncio.run(check.compare()):
            print(f"| {each.what} | {each.computed} | {figure(each.counted)} |")
        return
    sheet = compute()
    for topic in sheet.topics.values():
        print(f"## {topic.title}\n\n{report.grid(sheet, topic)}\n")
    if options.docs:
        publish(PAGE, sheet)


if __name__ == "__main__":
    main()
