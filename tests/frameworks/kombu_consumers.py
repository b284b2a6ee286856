"""Consumers over the transport for kombu, whose messages are kept."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kombu import Connection, Queue
from kombu.transport.virtual import Message

from tests.harness import HANG


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def publish(connection: Connection, body: object, **options: Any) -> None:
    connection.Producer().publish(body, routing_key="jobs", **options)


class Consumer:
    """A consumer of the queue, whose messages are kept."""

    def __init__(self, connection: Connection, prefetch: int = 0, **options: Any) -> None:
        self.messages: list[Message] = []
        self._connection = connection
        queue = Queue("jobs", routing_key="jobs")
        self.consumer = connection.Consumer(queue, callbacks=[self._keep], **options)
        self.consumer.qos(prefetch_count=prefetch)

    def _keep(self, body: object, message: Message) -> None:
        self.messages.append(message)

    def drain(self, count: int) -> list[Any]:
        """Wait until there are so many messages; their bodies."""
        end = time.monotonic() + HANG
        while len(self.messages) < count:
            assert time.monotonic() < end
            self._connection.drain_events(timeout=HANG)
        return [message.payload for message in self.messages]

    def is_quiet(self) -> bool:
        """Whether no message comes for a moment."""
        try:
            self._connection.drain_events(timeout=0.3)
        except TimeoutError:
            return True
        return False
