"""Note what Redis told each client, and when: that a claim holds, and what a claim request was given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, cast
from unittest.mock import patch

from tests.simulation.code import LOADED, Code
from tests.simulation.findings import Findings
from tests.simulation.items import Begun, Request, id_at
from tests.simulation.ledger import Ledger
from tests.simulation.loop import Loop
from zkrq import Claim
from zkrq.consuming.lease import Lease
from zkrq.consuming.leases import Leases
from zkrq.protocol import calls
from zkrq.protocol.calls import Decision
from zkrq.protocol.deciding import Decided
from zkrq.protocol.records import unpack
from zkrq.replication.replicas import Replicas


def _handed(decided: Decided[calls.ClaimReply]) -> Iterator[str]:
    """The ids of the items that a claim request was given."""
    records, parts = dict(decided.records), iter(decided.reply.handed)
    for bundle, first, count, _ in zip(parts, parts, parts, parts, strict=True):
        for position in range(first - 1, first - 1 + count):
            yield id_at(bundle, unpack(records[bundle]), position)


def _handed_of_groups(decided: Decided[calls.ClaimReply]) -> Counter[str | None]:
    """How many items of each group a claim request was given."""
    records, parts, handed = dict(decided.records), iter(decided.reply.handed), Counter[str | None]()
    for bundle, _, count, _ in zip(parts, parts, parts, parts, strict=True):
        handed[unpack(records[bundle]).group] += count
    return handed


@contextmanager
def listening(loop: Loop, found: Findings, ledgers: Mapping[str, Ledger]) -> Generator[None, None, None]:
    """Note when Redis last told a client that a claim holds, and when each claim request was begun."""
    with ExitStack() as of_each:
        for code in LOADED:
            of_each.enter_context(_listening(code, loop, found, ledgers))
        yield


@contextmanager
def _listening(code: Code, loop: Loop, found: Findings, ledgers: Mapping[str, Ledger]) -> Generator[None, None, None]:
    many: type[Leases] = code.module("consuming.leases").Leases
    one: type[Lease] = code.module("consuming.lease").Lease
    replicas: type[Replicas] = code.module("replication.replicas").Replicas
    requests = (code.module("protocol.calls").Claim, code.module("protocol.calls").Turn)
    add, extend = many.add, one.extend
    decide = replicas.decide

    def note(lease: Lease) -> None:
        if (claim := lease()) is not None:
            found.told_at[cast("Claim[Any]", claim)] = loop.now

    def note_added(leases: Leases, added: Iterable[Lease]) -> None:
        noted = list(added)
        for lease in noted:
            note(lease)
        add(leases, noted)

    async def note_extended(lease: Lease, seconds: float) -> None:
        await extend(lease, seconds)
        note(lease)

    async def note_decide(replicas: Replicas, call: Decision[Any], **options: Any) -> Decided[Any]:
        if not isinstance(call, requests):
            return await decide(replicas, call, **options)
        call = cast("calls.Claim | calls.Turn", call)
        ledger = ledgers.get(call.queue)
        if ledger is None:  # a queue of flows
            return await decide(replicas, cast("Decision[Any]", call))
        request = f"{call.owner}/{call.seq}"
        where = replicas.membership._register  # pyright: ignore[reportPrivateUsage]
        asked_at = ledger.asked_at.setdefault((where, request), loop.now)
        asked, began = Request(loop.now, where=where), replicas.membership.view.epoch
        ledger.requests.append(asked)
        decided = await decide(replicas, cast("Decision[Any]", call))
        if isinstance(call, requests[1]) and decided.reply.verdict != calls.CLAIMED:
            return decided  # as a request alone that is refused
        asked.answered_at, asked.calm, asked.moved = loop.now, found.calm, decided.epoch != began
        asked.ids = list(_handed(decided))
        if code.is_present:  # the release before knows no rates
            # A repeated request is given what its first try was: its claims may have begun then.
            begun, of_groups = (
                Begun(decided.reply.clock, asked_at, loop.now, len(asked.ids)),
                _handed_of_groups(decided),
            )
            if not asked.moved:
                ledger.check_rates(where, began, request, begun, of_groups)
            if not found.clocks_set:  # through all changes of the view, by no server's clock
                ledger.check_rates(where, None, request, begun._replace(clock_us=round(loop.now * 1e6)), of_groups)
        for id in asked.ids:
            ledger.asked_for.setdefault((id, request), asked_at)
        if ledger.pauses.is_in_force(asked_at):
            found.counts["claim requests while paused"] += 1
            if asked.ids:
                found.violation(f"handed out while paused: {asked.ids} under {request}, asked for at {asked_at:.3f} s")
        return decided

    with (
        patch.object(many, "add", note_added),
        patch.object(one, "extend", note_extended),
        patch.object(replicas, "decide", note_decide),
    ):
        yield
