"""Mutants of what clients do with flows: tell home, look anew, leave open what is repeated."""

from __future__ import annotations

from tests.mutants.trial import Mutant, Suite

_FLOWS = Suite("tests/behaviour/test_flows.py")
_MANY = Suite("tests/behaviour/test_flow_many.py")
_LOOKS = Suite("tests/behaviour/test_flow_looks.py")

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "repeated-member-tells-nobody",
        "zkrq/client/flows.py",
        "        if not receipt.duplicate and parts.pusher.is_decided_about(",
        "        if receipt.new is not False and parts.pusher.is_decided_about(",
        "a repeated push tells home of its member, because the first one may have failed to",
        _FLOWS,
    ),
    Mutant(
        "named-bundles-are-cut-by-their-headers",
        "zkrq/producing/bundling.py",
        "((payload, 1, len(payload) - beside) for payload in payloads)",
        "((payload, 1, len(payload)) for payload in payloads)",
        "a repeated push of many finds the same ids, whatever headers it has",
        _MANY,
    ),
    Mutant(
        "look-misses-what-was-decided",
        "zkrq/client/flow_ends.py",
        "        while anew and key in self._begun:",
        "        while False:",
        "a look after a decision begins after it",
        _LOOKS,
    ),
    Mutant(
        "flow-that-fails-is-cancelled",
        "zkrq/consuming/flow.py",
        "_LATER = (Unavailable, OutcomeUnknown, NotEnoughReplicas, QueueFull, FlowEnded)",
        "_LATER = (Unavailable, OutcomeUnknown, NotEnoughReplicas, QueueFull)",
        "a block that ends because its flow is failing does not cancel it",
        _FLOWS,
    ),
    Mutant(
        "leader-looks-at-nothing",
        "zkrq/client/flow_looks.py",
        "for row in page.rows if row.is_due}",
        "for row in page.rows if not row.is_due}",
        "the leader ends what is due",
        _LOOKS,
    ),
    Mutant(
        "stuck-flow-is-left-alone",
        "zkrq/client/flow_looks.py",
        "            if kinds == before:",
        '            if kinds != b"":',
        "the leader looks at a flow that waits for a redrive when it has changed",
        _LOOKS,
    ),
    Mutant(
        "look-is-joined-to-an-older-one",
        "zkrq/client/flow_ends.py",
        "            await self.look(flow, queue=queue, anew=True)",
        "            await self.look(flow, queue=queue)",
        "a look that an ack asks for begins after that ack",
        _LOOKS,
    ),
    Mutant(
        "maker-says-nothing",
        "zkrq/client/flows.py",
        "        if is_open:\n            self._keep_open(flow, maker)",
        "        if False:\n            self._keep_open(flow, maker)",
        "an open flow stays open while its maker is there",
        _LOOKS,
    ),
)
