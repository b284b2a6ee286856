"""Traces for OpenTelemetry: spans for pushes, claim requests and handlers, connected through the items' headers.

::

    zkrq.opentelemetry.instrument(cluster)

Needs the extra ``opentelemetry``, which is the API; the application configures the SDK.  Names and attributes follow
the semantic conventions for messaging:

- ``push QUEUE``, a producer's span in the caller's context, around ``push`` or ``push_many``; its context goes into the
  headers of the items, in the form of the propagator that is set (``traceparent`` unless it was changed);
- ``claim QUEUE``, a client's span around a claim request that got items, linked to their pushes;
- ``process QUEUE``, a consumer's span around a handler or the body of ``async with claim``: a child of the push, and
  the current span there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextvars import Token
from typing import TYPE_CHECKING, Any

from zkrq.base.errors import ConfigError, Receipt, Receipts
from zkrq.consuming.observing import Observer, Outgoing, PushOutcome

if TYPE_CHECKING:
    from zkrq import sync
    from zkrq.client import cluster as asynchronous
    from zkrq.consuming.claims import Claim

try:
    from opentelemetry import baggage, context, propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, TracerProvider
except ModuleNotFoundError as error:
    raise ConfigError("zkrq.opentelemetry needs opentelemetry-api: pip install 'zkrq[opentelemetry]'") from error

MAX_LINKS = 100
"""Items to which the span of a claim request is linked; the SDK keeps 128 links."""


def instrument(cluster: asynchronous.Cluster | sync.Cluster, tracer_provider: TracerProvider | None = None) -> Tracing:
    """Trace what a cluster does, from now on.  ``tracer_provider``: None is the global one."""
    tracing = Tracing(trace.get_tracer("zkrq", tracer_provider=tracer_provider))
    cluster.observe(tracing)
    return tracing


class Tracing(Observer):
    """Make spans of what one cluster does.  Made by ``instrument``."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._pushes = dict[Outgoing, Span]()
        self._deliveries = dict[int, tuple[Span, Token[Context]]]()  # by id, because a claim must not be kept

    # -- pushes ----------------------------------------------------------------------------------------------------

    def before_push(self, push: Outgoing) -> None:
        attributes = _attributes(push.queue, "push", "send")
        if push.id is not None:
            attributes["messaging.message.id"] = push.id
        span = self._tracer.start_span(f"push {push.queue}", kind=SpanKind.PRODUCER, attributes=attributes)
        propagate.inject(push.headers, trace.set_span_in_context(span))
        self._pushes[push] = span

    def after_push(self, push: Outgoing, outcome: PushOutcome) -> None:
        span = self._pushes.pop(push, None)
        if span is None:  # it had begun before this was observed
            return
        if isinstance(outcome, Receipt):
            span.set_attribute("messaging.message.id", outcome.id)
        elif isinstance(outcome, Receipts):
            span.set_attribute("messaging.batch.message_count", len(outcome))
        _end(span, outcome if isinstance(outcome, BaseException) else None)

    # -- claims ----------------------------------------------------------------------------------------------------

    def claimed(self, queue: str, claims: Sequence[Claim[Any]], seconds: float) -> None:
        if not claims:
            return
        now = time.time_ns()
        attributes = _attributes(queue, "claim", "receive")
        attributes["messaging.batch.message_count"] = len(claims)
        links = [Link(origin) for claim in claims[:MAX_LINKS] if (origin := _origin(_context_of(claim))).is_valid]
        span = self._tracer.start_span(
            f"claim {queue}",
            Context(),  # one request serves all consumers, so it belongs to none of their traces
            SpanKind.CLIENT,
            attributes,
            links,
            start_time=now - round(seconds * 1e9),
        )
        span.end(now)

    # -- handlers --------------------------------------------------------------------------------------------------

    def before_delivery(self, claim: Claim[Any]) -> None:
        queue, parent = claim.queue, _context_of(claim)
        attributes = _attributes(queue, "process", "process")
        attributes["messaging.message.id"] = claim.id
        attributes["zkrq.attempts"] = claim.attempts
        if task := claim.task:
            attributes["zkrq.task"] = task
        origin, around = _origin(parent), trace.get_current_span().get_span_context()
        links = [Link(each) for each in (origin, around) if each.is_valid]
        span = self._tracer.start_span(
            f"process {queue}", parent if origin.is_valid else None, SpanKind.CONSUMER, attributes, links
        )
        inside = trace.set_span_in_context(span)
        for name, value in baggage.get_all(parent).items():
            inside = baggage.set_baggage(name, value, inside)
        self._deliveries[id(claim)] = span, context.attach(inside)

    def after_delivery(self, claim: Claim[Any], error: BaseException | None) -> None:
        begun = self._deliveries.pop(id(claim), None)
        if begun is None:
            return
        span, token = begun
        if trace.get_current_span() is span:  # with zkrq.sync this call is in another context than the one before
            context.detach(token)
        _end(span, error)


def _attributes(queue: str, name: str, kind: str) -> dict[str, str | int]:
    return {
        "messaging.system": "zkrq",
        "messaging.destination.name": queue,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }


def _context_of(claim: Claim[Any]) -> Context:
    """Return the context in which the item was pushed, as its headers say; an empty one if they say nothing."""
    headers: Mapping[str, str] = claim.headers
    return propagate.extract(headers, Context())


def _origin(parent: Context) -> trace.SpanContext:
    return trace.get_current_span(parent).get_span_context()


def _end(span: Span, error: BaseException | None) -> None:
    if error is not None and span.is_recording():
        span.set_attribute("error.type", type(error).__qualname__)
        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, str(error)))
    span.end()
