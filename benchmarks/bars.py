"""Compare the figures with the bars that they must reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks import client_memory, contest, curve, fleet, flow_costs, growth, held, latency, limit, throughput
from benchmarks.sheet import Sheet, Topic, figure


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar.  ``measured`` has one value per repetition, none if it was not measured; the median counts."""

    what: str
    wanted: float
    measured: tuple[float, ...]
    at_least: bool = False
    unit: str = "times"

    @property
    def met(self) -> bool | None:
        """Whether the bar is met, None if nothing was measured."""
        if not self.measured:
            return None
        return median(self.measured) >= self.wanted if self.at_least else median(self.measured) <= self.wanted


def bars(sheet: Sheet) -> Sequence[Bar]:
    """Return all bars, in the order of the report."""
    depths = sheet.rows(growth.MEMORY)
    return (
        _peer(sheet, "arq", 30),
        _peer(sheet, "SAQ", 30),
        _peer(sheet, "streaQ", 40),
        _peer(sheet, "NATS JetStream R3, pipelined", 3),
        _peer(sheet, "a znode per item", 40),
        Bar(
            "whole cycle: zkrq / its scripts called bare, same batch sizes",
            0.7,
            tuple(sheet.values(limit.RATIO, "zkrq / bare", "whole cycle")),
            at_least=True,
        ),
        Bar(
            "whole cycle: consumers that take batches of 100 / one item at a time",
            1.3,
            _ratio(sheet, throughput.BATCHES, throughput.IN_BATCHES, throughput.ONE_AT_A_TIME, "whole cycle"),
            at_least=True,
        ),
        *_at_rest(sheet, "push at one caller", "push", 2.5),
        *_at_rest(sheet, "push to a waiting handler", "to handler", 4),
        *_everyday(sheet),
        *_pooled(sheet),
        *_moderate(sheet),
        *_flat(sheet, "cost at depth 10^6 / at 10^3", growth.DEPTH, "1,000,000", "1,000"),
        *_flat(sheet, "cost with 100 consumers / with 4", growth.CONSUMERS, "100", "4"),
        Bar(
            "cost per item with 100 queues / with one, processor time",
            1.5,
            _ratio(sheet, growth.QUEUES, "100", "1", "processor"),
        ),
        Bar(
            "cost per item with 1,000 queues / with one, processor time",
            2.5,
            _ratio(sheet, growth.QUEUES, "1,000", "1", "processor"),
        ),
        Bar(
            "memory of a queued 100-byte item on each server, beyond its payload",
            60,
            tuple(value for row in depths for value in sheet.values(growth.MEMORY, row, "beyond payload"))[-1:],
            unit="bytes",
        ),
        Bar(
            "how long 19 of 20 calls hold a server, in the slowest operation, with a million items",
            20,
            _worst(sheet, held.HELD, "of 20 calls 19"),
            unit="ms",
        ),
        Bar(
            "memory of a client that calls push_many of 10^6 items",
            200,
            tuple(sheet.values(client_memory.MEMORY, "1,000,000", "whole process")),
            unit="MiB",
        ),
        *_flows(sheet),
    )


def _peer(sheet: Sheet, title: str, wanted: float) -> Bar:
    measured = tuple(sheet.values(contest.RATIOS, title, "whole cycle"))
    return Bar(f"whole cycle: zkrq / {title}", wanted, measured, at_least=True)


def _at_rest(sheet: Sheet, title: str, row: str, wanted: float) -> Sequence[Bar]:
    return [
        Bar(
            f"{title}, p50 / three concurrent SETs by {client}",
            wanted,
            tuple(sheet.values(latency.AT_REST_RATIO, row, column)),
        )
        for client, column in (("redis-py", "to redis-py"), ("hiredis alone", "to hiredis"))
    ]


def _everyday(sheet: Sheet) -> Sequence[Bar]:
    eight, sixteen = fleet.EIGHT.at(fleet.EVERYDAY), fleet.SIXTEEN.at(fleet.BUSY)
    rows = (
        ("8 workers, 200/s: to the handler, p50", 1.5, eight, fleet.NATS, fleet.TO_HANDLER),
        ("8 workers, 200/s: processor time of the workers", 1.1, eight, fleet.SAQ, fleet.WORKERS),
        ("8 workers, 200/s: processor time of the servers", 3, eight, fleet.SAQ, fleet.SERVERS),
        ("16 workers, 300/s: to the handler, p50", 2.5, sixteen, fleet.SAQ, fleet.TO_HANDLER),
    )
    return [
        Bar(f"{what}, zkrq / {base}", wanted, _ratio(sheet, topic, fleet.ZKRQ, base, column))
        for what, wanted, topic, base, column in rows
    ]


def _pooled(sheet: Sheet) -> Sequence[Bar]:
    topic = fleet.EIGHT.at(fleet.EVERYDAY)
    rows = (
        ("processor time of all its processes", 1.0, fleet.WORKERS),
        ("to the handler, p50", 1.35, fleet.TO_HANDLER),
        ("to the handler, p99", 1.5, "to handler p99"),
    )
    return [
        Bar(f"a pool of 8, 200/s: {what} / SAQ's eight", wanted, _ratio(sheet, topic, fleet.POOL, fleet.SAQ, column))
        for what, wanted, column in rows
    ]


def _moderate(sheet: Sheet) -> Sequence[Bar]:
    same, steady = curve.FIXED, fleet.ROOMY.at(fleet.STEADY)
    ours, saq = curve.row(fleet.ZKRQ, same), curve.row(fleet.SAQ, same)
    reach = (("push", 2, curve.PUSH_P50), ("to the handler", 1.6, curve.TO_HANDLER_P50))
    spread = (("to the handler, p50", 1.35, fleet.TO_HANDLER), ("processor time of the servers", 0.75, fleet.SERVERS))
    return [
        *(
            Bar(
                f"one worker of 32 slots, {same}: {what}, p50, zkrq / {fleet.SAQ}",
                wanted,
                _ratio(sheet, curve.CURVE, ours, saq, column),
            )
            for what, wanted, column in reach
        ),
        *(
            Bar(
                f"4 workers of 32 slots, 400/s: {what}, zkrq / {fleet.NATS}",
                wanted,
                _ratio(sheet, steady, fleet.ZKRQ, fleet.NATS, column),
            )
            for what, wanted, column in spread
        ),
    ]


def _flows(sheet: Sheet) -> Sequence[Bar]:
    members = flow_costs.MEMBERS
    return [
        Bar(
            "script calls of a flow, from its begin to its end, three servers, one queue",
            19,
            tuple(sheet.values(flow_costs.CALLS, "in all", "calls")),
            unit="calls",
        ),
        Bar(
            "from the last ack to what continues / a lone item from its push to its handler, p50",
            3,
            _ratio(sheet, flow_costs.CONTINUES, "from the ack's return", "a lone item", "p50"),
        ),
        Bar(
            "memory of a member in the index, 100,000 members in bundles",
            2,
            tuple(sheet.values(flow_costs.INDEX, "100,000", "bytes")),
            unit="bytes",
        ),
        *(
            Bar(
                f"{part} of a member / of a lone item, processor time",
                1.1,
                _ratio(sheet, members, "member", "lone", part),
            )
            for part in ("push", "claim and ack")
        ),
        Bar(
            "a saved state of 100 bytes / an ack, p50",
            1,
            _ratio(sheet, flow_costs.SAVES, "save, 100 bytes", "ack", "p50"),
        ),
    ]


def _flat(sheet: Sheet, title: str, topic: Topic, row: str, base: str) -> Sequence[Bar]:
    columns = {"time": "by the clock", "processor time": "processor"}
    return [Bar(f"{title}, {name}", 1.25, _ratio(sheet, topic, row, base, column)) for name, column in columns.items()]


def _ratio(sheet: Sheet, topic: Topic, row: str, base: str, column: str) -> tuple[float, ...]:
    pairs = zip(sheet.values(topic, row, column), sheet.values(topic, base, column), strict=False)
    return tuple(value / other for value, other in pairs)


def _worst(sheet: Sheet, topic: Topic, column: str) -> tuple[float, ...]:
    """Return the greatest value of all rows."""
    return tuple(sorted(value for row in sheet.rows(topic) for value in sheet.values(topic, row, column)))[-1:]


def table(found: Sequence[Bar]) -> str:
    """Format the bars as Markdown."""
    lines = ["| must show | bar | measured | met |", "| --- | ---: | ---: | --- |"]
    for bar in found:
        sign = "≥" if bar.at_least else "≤"
        measured = "not measured"
        if bar.measured:
            spread = f" ({figure(min(bar.measured))} to {figure(max(bar.measured))})" if len(bar.measured) > 1 else ""
            measured = f"{figure(median(bar.measured))} {bar.unit}{spread}"
        met = {True: "yes", False: "**no**", None: "—"}[bar.met]
        lines.append(f"| {bar.what} | {sign} {bar.wanted:g} {bar.unit} | {measured} | {met} |")
    return "\n".join(lines)
