"""A push, the claim of its item and the handler are one trace, by the conventions for messaging."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import zkrq
import zkrq.sync
import zkrq.testing
from tests.harness import HANG, take
from zkrq.opentelemetry import instrument

pytestmark = pytest.mark.anyio


class Traces:
    """Spans that have ended."""

    def __init__(self) -> None:
        self.provider = TracerProvider()
        self._exporter = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


@pytest.fixture
def traces() -> Traces:
    return Traces()


@pytest.fixture
async def cluster(traces: Traces) -> AsyncGenerator[zkrq.testing.TestCluster]:
    async with zkrq.testing.cluster() as cluster:
        instrument(cluster, traces.provider)
        yield cluster


def ids(span: ReadableSpan) -> tuple[int, int]:
    assert span.context
    return span.context.trace_id, span.context.span_id


def parent(span: ReadableSpan) -> tuple[int, int] | None:
    return (span.parent.trace_id, span.parent.span_id) if span.parent else None


def links(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def attributes(span: ReadableSpan) -> Mapping[str, object]:
    assert span.attributes
    assert span.attributes["messaging.system"] == "zkrq"
    return {name.removeprefix("messaging."): value for name, value in span.attributes.items()}


async def test_an_item_is_one_trace_from_its_push_through_its_retry(
    cluster: zkrq.testing.TestCluster, traces: Traces
) -> None:
    queue = cluster.queue("emails", retry=zkrq.Retry(backoff=zkrq.constant(0)))
    problem = ValueError("no such address")

    async def handle(item: str, claim: zkrq.Claim[str]) -> None:
        with traces.tracer.start_as_current_span("send"):
            assert baggage.get_baggage("tenant") == "ann"
        if claim.attempts == 1:
            raise problem

    with traces.tracer.start_as_current_span("request"):
        token = context.attach(baggage.set_baggage("tenant", "ann"))
        receipt = await queue.push("item", task="welcome")
        context.detach(token)
    worker = zkrq.Worker().add(queue, {"welcome": handle})
    await worker.run(burst=True)
    assert (await queue.size()).ready == 0
    push, claims, (first, second) = (
        traces.one("push emails"),
        traces.named("claim emails"),
        traces.named("process emails"),
    )
    assert parent(push) == ids(traces.one("request"))
    assert parent(first) == parent(second) == ids(push)
    assert [parent(span) for span in traces.named("send")] == [ids(first), ids(second)]
    assert [(parent(span), links(span)) for span in claims] == [(None, [ids(push)])] * 2
    assert [span.kind for span in (push, claims[0], first)] == [SpanKind.PRODUCER, SpanKind.CLIENT, SpanKind.CONSUMER]
    assert attributes(push) == {
        "system": "zkrq",
        "destination.name": "emails",
        "operation.name": "push",
        "operation.type": "send",
        "message.id": receipt.id,
    }
    assert attributes(claims[0])["operation.type"] == "receive"
    assert attributes(claims[0])["batch.message_count"] == 1
    assert (first.status.status_code, second.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
    assert attributes(first)["error.type"] == "ValueError"
    assert [event.name for event in first.events] == ["exception"]
    assert [attributes(span)["zkrq.attempts"] for span in (first, second)] == [1, 2]
    assert [attributes(span)["zkrq.task"] for span in (first, second)] == ["welcome"] * 2
    assert {attributes(span)["message.id"] for span in (first, second)} == {receipt.id}


async def test_items_that_are_pushed_together_share_the_span_of_their_push(
    cluster: zkrq.testing.TestCluster, traces: Traces
) -> None:
    queue = cluster.queue("emails")
    await queue.push_many(["a", "b"], headers={"own": "x"})
    async for claim in queue.pop(wait=False):
        assert claim.headers["own"] == "x"
        async with claim:
            pass
    push = traces.one("push emails")
    assert attributes(push)["batch.message_count"] == 2
    assert [parent(span) for span in traces.named("process emails")] == [ids(push)] * 2
    assert traces.named("claim emails")


async def test_handlers_in_threads_and_many_at_a_time_have_spans_of_their_own(
    cluster: zkrq.testing.TestCluster, traces: Traces
) -> None:
    queue = cluster.queue("emails")
    seen: dict[int, int] = {}

    def handle(item: int) -> None:
        seen[item] = trace.get_current_span().get_span_context().trace_id

    pushes = await asyncio.gather(*(queue.push(number) for number in range(5)))
    await zkrq.Worker(concurrency=5).add(queue, handle).run(burst=True)
    by_id = {attributes(span)["message.id"]: ids(span)[0] for span in traces.named("push emails")}
    assert [seen[number] for number in range(5)] == [by_id[receipt.id] for receipt in pushes]
    assert not trace.get_current_span().get_span_context().is_valid


async def test_a_push_that_fails_is_an_error(cluster: zkrq.testing.TestCluster, traces: Traces) -> None:
    queue = cluster.queue("emails", max_size=1)
    await queue.push("fits")
    with pytest.raises(zkrq.QueueFull):
        await queue.push("does not", id="own-id")
    failed = traces.named("push emails")[1]
    assert (failed.status.status_code, attributes(failed)["error.type"]) == (StatusCode.ERROR, "QueueFull")
    assert attributes(failed)["message.id"] == "own-id"


async def test_an_item_that_nobody_traced_begins_a_trace(cluster: zkrq.testing.TestCluster, traces: Traces) -> None:
    async with cluster.servers.connect(description="untraced") as untraced:
        await untraced.queue("emails").push("x", headers={"traceparent": "nonsense"})
    with traces.tracer.start_as_current_span("poller"):
        async with await take(cluster.queue("emails")):
            pass
    around = ids(traces.one("poller"))
    assert (parent(traces.one("process emails")), links(traces.one("process emails"))) == (around, [around])


def test_threads_push_in_the_trace_of_the_caller(traces: Traces, caplog: pytest.LogCaptureFixture) -> None:
    with zkrq.sync.embedded() as cluster:
        instrument(cluster, traces.provider)
        queue = cluster.queue("emails")
        with traces.tracer.start_as_current_span("request"):
            queue.push("x")
        claim = queue.pop_one(timeout=HANG)
        assert claim is not None
        with claim:
            pass
    assert parent(traces.one("push emails")) == ids(traces.one("request"))
    assert parent(traces.one("process emails")) == ids(traces.one("push emails"))
    assert "detach" not in caplog.text
