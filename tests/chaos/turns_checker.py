"""What groups and limits promise, checked on what workers have recorded (``turns_process.py``).

Items are named ``group:number``; of one group a greater number was pushed after the push of the smaller one returned.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from tests.chaos.record import Entry, Kind, Token


def named(group: str, number: int) -> str:
    """The name of an item."""
    return f"{group}:{number}"


def group_of(item: str) -> str:
    """Its group."""
    return item.rpartition(":")[0]


@dataclass(slots=True)
class Findings:
    """What is broken, as sentences, and how often what happened."""

    broken: list[str] = field(default_factory=list[str])
    counts: Counter[str] = field(default_factory=Counter[str])


def check_lost(entries: Iterable[Entry], pushed: Collection[str]) -> Findings:
    """Every item whose push returned was acked, perhaps by a worker that was killed meanwhile; and nothing else."""
    found = Findings()
    acked = {each.id for each in entries if each.kind is Kind.SETTLING and each.detail == "ack"}
    found.broken += [f"lost: {item}" for item in sorted(set(pushed) - acked)]
    found.counts.update(pushed=len(pushed), acked=len(acked))
    return found


def check_order(entries: Iterable[Entry]) -> Findings:
    """An item is neither handed out before all earlier ones of its group have ended, nor after a later one was.

    An item may end as soon as its ack has begun.  The tokens of a group grow from claim to claim.
    """
    found, order = Findings(), sorted(entries)
    ending, last, tokens = set[str](), dict[str, int](), dict[str, Token]()
    for entry in order:
        if entry.kind is Kind.SETTLING and entry.detail == "ack":
            ending.add(entry.id)
        if entry.kind is not Kind.DELIVERED:
            continue
        group, number = group_of(entry.id), int(entry.id.rpartition(":")[2])
        before = last.get(group, -1)
        found.counts["again" if number == before else "first time"] += 1
        if number < before:
            found.broken.append(f"out of order: {entry.id} at {entry.at:.3f}, after {named(group, before)}")
        elif number > before and any(named(group, each) not in ending for each in range(max(before, 0), number)):
            found.broken.append(f"overtaken: {entry.id} at {entry.at:.3f}, before an earlier one has ended")
        if entry.token and group in tokens and entry.token <= tokens[group]:
            found.broken.append(f"token: {entry.id} has {entry.token}, and an earlier claim had {tokens[group]}")
        if entry.token:
            tokens[group] = max(entry.token, tokens.get(group, entry.token))
        last[group] = max(before, number)
    return found


def check_concurrency(entries: Iterable[Entry], most: int, *, of_each_group: bool) -> Findings:
    """No more handlers run at the same time than claims may be held, of each group or of all items.

    A handler runs until it begins to settle, or until its worker is killed.
    """
    found, running = Findings(), defaultdict[str, set[tuple[str, str]]](set)
    for entry in sorted(entries):
        group = group_of(entry.id) if of_each_group else ""
        if entry.kind is Kind.DELIVERED:
            running[group].add((entry.who, entry.id))
            found.counts["most"] = max(found.counts["most"], len(running[group]))
            if len(running[group]) > most:
                found.broken.append(f"too many at {entry.at:.3f}: {sorted(running[group])}")
        elif entry.kind is Kind.SETTLING:
            running[group].discard((entry.who, entry.id))
        elif entry.kind is Kind.STOPPED:
            for those in running.values():
                those.difference_update([each for each in those if each[0] == entry.detail])
    return found


def check_rate(
    entries: Iterable[Entry], most: int, seconds: float, *, in_flight: int, of_each_group: bool = False
) -> Findings:
    """In no window do more handlers begin than claims may, of each group or of all items.

    ``in_flight``: claims that may have begun earlier and reach their workers late, since their primary has died.
    """
    found, by_group = Findings(), defaultdict[str, list[float]](list)
    for each in sorted(entries):
        if each.kind is Kind.DELIVERED:
            by_group[group_of(each.id) if of_each_group else ""].append(each.at)
    for group, moments in by_group.items():
        first = 0
        if len(moments) > 1:
            found.counts["in a second, on average"] += round((len(moments) - 1) / (moments[-1] - moments[0]))
        for number, moment in enumerate(moments):
            while moments[first] <= moment - seconds:
                first += 1
            begun = number + 1 - first
            found.counts["most"] = max(found.counts["most"], begun)
            if begun > most + in_flight:
                found.broken.append(
                    f"too many: {begun} {f'of {group} ' * of_each_group}in {seconds:g} s up to {moment:.3f}"
                )
    return found


def merged(*some: Findings) -> Findings:
    """All together."""
    counts = sum((each.counts for each in some), Counter[str]())
    return Findings([sentence for each in some for sentence in each.broken], counts)
