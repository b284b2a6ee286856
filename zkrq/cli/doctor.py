"""Define the command that examines a namespace: what is wrong with its servers, and what to do."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from contextlib import suppress
from typing import TYPE_CHECKING

from zkrq.base.errors import ZkrqError
from zkrq.base.version import __version__
from zkrq.cli.command import Command, Incomplete, Line, Lines, count, look_at, setting, settings_of
from zkrq.client.connecting import read_given
from zkrq.client.examining.reading import read_facts
from zkrq.client.examining.rules import Finding, Gravity, examine
from zkrq.operations.flows import failed_inner, held_up
from zkrq.process.exits import Exit

if TYPE_CHECKING:
    from zkrq.client.examining.facts import Facts, ServerFacts


FLOWS_SECONDS = 10.0
"""Seconds in which flows are looked at."""


async def _doctor(args: Namespace) -> Lines:
    given = read_given({**settings_of(args), "found": False, "min_replicas": args.min_replicas}, only_looks=True)
    facts = await read_facts(given)
    findings = examine(facts)
    if all(finding.gravity is Gravity.WARNING for finding in findings):
        findings += await _held_up(args)
    yield _summary(facts)
    for finding in findings:
        yield Line(f"{_WORDS[finding.gravity]}: {finding.text}", _value(finding))
    bad = [finding for finding in findings if finding.gravity is not Gravity.WARNING]
    if bad:
        wrong = any(finding.gravity is Gravity.WRONG for finding in bad)
        raise Incomplete(f"{count(len(bad), 'problem')} found", Exit.USAGE if wrong else Exit.TROUBLE)
    if not findings:
        yield Line("nothing is wrong", {"kind": "sound"})


async def _held_up(args: Namespace) -> list[Finding]:
    """Find the flows that nothing but an operator ends; none of a namespace that does not answer in time."""
    found: list[Finding] = []
    with suppress(TimeoutError, ZkrqError):
        async with asyncio.timeout(FLOWS_SECONDS), look_at(args) as cluster:
            async for status in cluster.flows("running"):
                if why := held_up(status):
                    what = f"nothing of this flow is queued or claimed any more, and it is held up by {why}"
                    name = f"{status.queue}/{status.name}"
                    step = f"`zkrq flows redrive {status.queue} {status.name}`, or `zkrq flows finish` or `cancel`"
                    if status.dead == failed_inner(status):
                        step = f"`zkrq flows finish {status.queue} {status.name}`, or `zkrq flows cancel`"
                    found.append(Finding(Gravity.WARNING, "flow-held-up", (name,), what, step))
    return found


_WORDS = {Gravity.WRONG: "wrong", Gravity.DOWN: "down", Gravity.WARNING: "warning"}


def _value(finding: Finding) -> dict[str, object]:
    return {
        "kind": finding.kind,
        "gravity": finding.gravity.value,
        "about": list(finding.about),
        "text": finding.text,
    }


def _summary(facts: Facts) -> Line:
    """Describe what was examined, in one line; as a value with the figures of each server."""
    trips = sorted(server.round_trip for server in facts.read.values())
    answered = [host for host in facts.hosts if not host.reason]
    parts = [f"examined namespace {facts.settings.namespace} by zkrq {__version__}"]
    parts += [f"{name} at epoch {view.epoch}, min_replicas {view.min_replicas}" for name, view in facts.views.items()]
    read, asked = (sum(id not in facts.strangers for id in each) for each in (facts.read, facts.servers))
    parts.append(f"{read} of {count(asked, 'Redis server')} answered")
    if trips:
        parts.append(f"round trips {1000 * trips[0]:.1f} to {1000 * trips[-1]:.1f} ms")
    parts.append(f"{len(answered)} of {count(len(facts.hosts), 'ZooKeeper server')} answered")
    if facts.granted:
        parts.append(f"session timeout {facts.granted:g} s")
    servers = {id: _server(server) for id, server in facts.servers.items()}
    hosts = [host._asdict() for host in facts.hosts]
    value = {"kind": "examined", "namespace": facts.settings.namespace, "servers": servers, "zookeeper": hosts}
    return Line("; ".join(parts), value)


def _server(server: ServerFacts) -> dict[str, object]:
    if server.refusal is not None:
        return {"url": server.url, "answered": False, "reason": server.refusal.reason}
    return {
        "url": server.url,
        "answered": True,
        "version": f"{server.product} {server.version}",
        "round_trip": server.round_trip,
        "clock_ahead": server.ahead,
        "used_memory": server.number("used_memory"),
        "maxmemory": server.number("maxmemory"),
        "appendonly": server.info.get("aof_enabled") == "1",
        "appendfsync": server.appendfsync,
    }


COMMANDS = (
    Command(
        "doctor",
        "examine every server and the namespace, and say what is wrong and what to do; changes nothing",
        _doctor,
        (setting("min-replicas", "what this client believes; told if the namespace differs", "N"),),
    ),
)
