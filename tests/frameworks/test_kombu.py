"""The transport for kombu on real servers: messages out and in, acks, prefetch; sending by Celery; mailboxes."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Generator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from kombu import Connection, Exchange, Queue
from kombu.transport.virtual import Message

import zkrq
from tests import odd
from tests.frameworks.kombu_consumers import Consumer, publish, until
from tests.harness import HANG
from zkrq import local, sync
from zkrq.kombu import BROKER_URL, HEADERS, TASK_ID
from zkrq.operations.kinds import Text
from zkrq.operations.operation import Parameter
from zkrq.operations.push import PUSH


def test_what_is_put_is_got_and_acked(connection: Connection, jobs: sync.Queue[bytes]) -> None:
    queue = connection.SimpleQueue("jobs")
    queue.put({"to": "ann", "at": 1})
    queue.put("ümläut")
    assert queue.qsize() == 2
    first, second = queue.get(timeout=HANG), queue.get(timeout=HANG)
    assert [first.payload, second.payload] == [{"to": "ann", "at": 1}, "ümläut"]
    assert jobs.size() == (0, 0, 2, 0)
    first.ack()
    second.ack()
    until(lambda: jobs.size() == (0, 0, 0, 0))
    queue.close()
    publish(connection, "x")
    assert connection.channel().queue_purge("jobs") == 1
    assert jobs.size() == (0, 0, 0, 0)


def test_options_of_a_message(connection: Connection, jobs: sync.Queue[bytes]) -> None:
    eta = (datetime.now(UTC) + timedelta(days=2)).isoformat()
    publish(connection, "later", priority=7, headers={"eta": eta, "id": "the-task"}, expiration=3 * 86400)
    (item,) = jobs.scan()
    assert (item.state, item.priority, item.headers) == ("scheduled", 7, {TASK_ID: "the-task"})
    assert item.seconds_left is not None
    assert item.expires_in is not None
    assert 86400 < item.seconds_left < 2 * 86400 < item.expires_in


def test_no_more_than_the_prefetch_count_is_held(connection: Connection, jobs: sync.Queue[bytes]) -> None:
    for number in range(9):
        publish(connection, number, priority=number)
    consumer = Consumer(connection, prefetch=2)
    with consumer.consumer:
        assert consumer.drain(2) == [8, 7], "the urgent ones first"
        assert consumer.is_quiet()
        consumer.messages[0].ack()
        assert consumer.drain(3) == [8, 7, 6]
        assert consumer.is_quiet()
        consumer.consumer.qos(prefetch_count=4)
        consumer.drain(5)
        assert consumer.is_quiet()
        for message in consumer.messages[1:]:
            threading.Thread(target=message.ack).start()  # as Celery's pools do
        consumer.drain(9)
    until(lambda: jobs.size().ready == 0)


def test_a_lone_message_is_handed_over_before_more_is_asked_for(
    connection: Connection, jobs: sync.Queue[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is there is handed over without a pause."""
    monkeypatch.setattr("zkrq.kombu.HAND_OVER_SECONDS", 10 * HANG)
    for number in range(20):
        publish(connection, number)
    consumer = Consumer(connection)
    with consumer.consumer:
        consumer.drain(20)
        publish(connection, 20)
        assert consumer.is_quiet(), "it would wait for the rest of the pause"
    with consumer.consumer:
        assert consumer.drain(21) == list(range(21)), "a consumer that was cancelled meanwhile can begin anew"


def test_what_becomes_of_messages_that_are_not_acked(
    options: dict[str, Any], connection: Connection, jobs: sync.Queue[bytes]
) -> None:
    for _ in range(4):
        publish(connection, "x")
    with Connection(BROKER_URL, transport_options=options) as other:
        consumer = Consumer(other, prefetch=4)
        with consumer.consumer:
            consumer.drain(4)
            rejected, requeued, *_ = consumer.messages
            rejected.reject()
            until(lambda: jobs.size().dead == 1)
            requeued.reject(requeue=True)
            consumer.drain(5)
            again = consumer.messages[4]
            assert again.delivery_info["redelivered"]
            assert not requeued.delivery_info["redelivered"]
        assert jobs.size() == (0, 0, 3, 1), "held until they are acked"
    until(lambda: jobs.size() == (3, 0, 0, 1))


def test_no_ack(connection: Connection, jobs: sync.Queue[bytes]) -> None:
    publish(connection, 1)
    publish(connection, 2)
    assert connection.channel().basic_get("jobs", no_ack=True) is not None
    consumer = Consumer(connection, no_ack=True)
    with consumer.consumer:
        assert consumer.drain(1) == [2]
    until(lambda: jobs.size() == (0, 0, 0, 0))


def test_messages_of_a_lost_claim_make_room(
    connection: Connection, jobs: sync.Queue[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    publish(connection, 1)
    consumer = Consumer(connection, prefetch=1)
    with consumer.consumer:
        consumer.drain(1)
        publish(connection, 2)
        (held,) = jobs.scan("claimed")
        assert jobs.cancel(held.id)
        assert consumer.drain(2) == [1, 2]
        assert "may be run elsewhere" in caplog.text
        consumer.messages[0].ack()


def test_a_lost_message_that_is_acked_makes_room_once(connection: Connection, jobs: sync.Queue[bytes]) -> None:
    for number in range(5):
        publish(connection, number, headers={"id": str(number)})
    consumer = Consumer(connection, prefetch=2)
    with consumer.consumer:
        consumer.drain(2)
        (first,) = (item for item in jobs.scan("claimed") if item.headers[TASK_ID] == "0")
        assert jobs.cancel(first.id)
        assert consumer.drain(3) == [0, 1, 2]
        consumer.messages[0].ack()
        assert consumer.is_quiet()


def test_a_prefetch_count_may_be_lowered(connection: Connection, jobs: sync.Queue[bytes]) -> None:
    consumer = Consumer(connection, prefetch=9)
    with consumer.consumer:
        assert consumer.is_quiet()
        consumer.consumer.qos(prefetch_count=2)
        for number in range(5):
            publish(connection, number)
        consumer.drain(2)
        assert consumer.is_quiet()
        consumer.messages[0].ack()
        consumer.drain(3)


def test_what_is_recovered_is_delivered_again_once(connection: Connection, jobs: sync.Queue[bytes]) -> None:
    for number in range(3):
        publish(connection, number)
    consumer = Consumer(connection, prefetch=3)
    with consumer.consumer:
        consumer.drain(3)
        consumer.consumer.recover(requeue=True)
        consumer.drain(6)
        for message in consumer.messages[3:]:
            assert not message.delivery_info["redelivered"], "it was no delivery"
            message.ack()
        until(lambda: jobs.size() == (0, 0, 0, 0))


def test_two_consumers_of_a_queue_on_one_connection(connection: Connection, jobs: sync.Queue[bytes]) -> None:
    one, two = (Consumer(connection, prefetch=1, channel=connection.channel()) for _ in range(2))
    with one.consumer:
        with two.consumer:
            publish(connection, 1)
            publish(connection, 2)
            for _ in range(2):
                connection.drain_events(timeout=HANG)
            for consumer in (one, two):
                (message,) = consumer.messages
                message.ack()
            until(lambda: jobs.size() == (0, 0, 0, 0))
        publish(connection, 3)
        connection.drain_events(timeout=HANG)
        assert one.messages[1].payload == 3, "the other one's end is not its own"


def test_an_item_that_is_no_message_is_a_dead_letter(connection: Connection, jobs: sync.Queue[bytes]) -> None:
    for item in (b"[1]", b'{"to": "ann"}', b'{"body": "", "properties": {"delivery_info": 1}}', b"\xff"):
        jobs.push(item)
    publish(connection, "x")
    consumer = Consumer(connection)
    with consumer.consumer:
        assert consumer.drain(1) == ["x"]
    until(lambda: jobs.size().dead == 4)
    assert any("no message of kombu" in (letter.reason or "") for letter in jobs.dead_letters())


def test_a_rejection_is_repeated_until_it_is_known(
    servers: local.Servers, options: dict[str, Any], jobs: sync.Queue[bytes]
) -> None:
    options |= {"operation_timeout": 0.3, "command_timeout": 0.3}
    with Connection(BROKER_URL, transport_options=options) as connection:
        publish(connection, 1)
        consumer = Consumer(connection)
        with consumer.consumer:
            consumer.drain(1)
            for server in servers.redis:
                server.pause()
            with pytest.raises(zkrq.Unavailable):
                connection.channel().queue_declare("jobs")
            consumer.messages[0].reject()
            time.sleep(3 * options["operation_timeout"])
            for server in servers.redis:
                server.resume()
            until(lambda: jobs.size().dead == 1)


def test_a_waiting_consumer_times_out(connection: Connection) -> None:
    with Consumer(connection).consumer, pytest.raises(TimeoutError):
        connection.drain_events(timeout=0.1)


def test_moments_of_every_kind(connection: Connection, jobs: sync.Queue[bytes]) -> None:
    for eta in ("tomorrow", 5, (datetime.now(UTC) + timedelta(days=5000)).isoformat()):
        with pytest.raises(zkrq.ConfigError, match=r"eta|at is"):
            publish(connection, 1, headers={"eta": eta})
    with pytest.raises(zkrq.ConfigError, match="ttl"):
        publish(connection, 1, expiration=0)
    now = datetime.now(UTC)
    for eta in (now.replace(year=2000), now.replace(tzinfo=None), now.astimezone(timezone(timedelta(hours=9)))):
        publish(connection, 1, headers={"eta": eta.isoformat()})
    assert jobs.size() == (3, 0, 0, 0)


def test_a_connection_that_failed_keeps_no_session(options: dict[str, Any]) -> None:
    missing = {**options, "found": False}
    failed = Connection(BROKER_URL, transport_options=missing)
    with pytest.raises(zkrq.ConfigError, match=options["namespace"]):
        failed.connect()
    with sync.connect(**options) as cluster:
        with Connection(BROKER_URL, transport_options=missing) as connection, Consumer(connection).consumer:
            until(lambda: len(cluster.consumers()) == 1)
        until(lambda: not cluster.consumers())


def test_a_fork_has_a_connection_of_its_own(connection: Connection, jobs: sync.Queue[bytes]) -> None:
    publish(connection, "parent")
    consumer = Consumer(connection, prefetch=1)
    consumer.consumer.add_queue(Queue("others", routing_key="others"))
    with consumer.consumer:
        consumer.drain(1)
        child = os.fork()
        if not child:  # it must not settle its parent's claims
            code = 1
            try:
                consumer.consumer.channel.close()
                assert threading.active_count() == 1, "it claims nothing for its parent's consumers"
                publish(connection, "child")
                connection.channel().close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert jobs.size()[:3] == (1, 0, 1)
        consumer.messages[0].ack()
        assert consumer.drain(2) == ["parent", "child"]


def test_celery_sends_what_is_due_later(options: dict[str, Any], jobs: sync.Queue[bytes]) -> None:
    app = Celery("shop", broker=BROKER_URL, broker_transport_options=options, task_default_queue="jobs")

    @app.task(name="remind", shared=False)
    def remind(who: str) -> None: ...

    sent = remind.apply_async(("ann",), countdown=7 * 86400, priority=3)
    (item,) = jobs.scan()
    assert (item.state, item.priority, item.headers[TASK_ID]) == ("scheduled", 3, sent.id)
    assert item.seconds_left is not None
    assert item.seconds_left > 6 * 86400, "which no visibility time-out bears"
    remind.apply_async(("bob",), expires=86400)
    assert [item.expires_in for item in jobs.scan()] == [None, None], "a worker revokes it"
    with pytest.raises(zkrq.ConfigError, match="no queue to the exchange 'elsewhere'"):
        app.send_task("remind", exchange="elsewhere", routing_key="remind")
    assert app.control.ping(timeout=0.1) == [], "no worker"
    app.pool.force_close_all()


def test_celery_sends_one_of_a_key_in_a_window(
    options: dict[str, Any], jobs: sync.Queue[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    app = Celery("shop", broker=BROKER_URL, broker_transport_options=options, task_default_queue="jobs")

    @app.task(name="digest", shared=False)
    def digest() -> None: ...

    headers = {"zkrq_key": "ann", "zkrq_key_window": 60, "zkrq_group": "tenant-42"}
    digest.apply_async(headers=headers)
    (item,) = jobs.peek()
    assert (item.key, item.group, item.task) == ("ann", "tenant-42", "digest")
    jobs.clear()
    with caplog.at_level(logging.INFO, "zkrq.kombu"):
        again = digest.apply_async(headers=headers)
    assert f"task {again.id} was not queued: item {item.id} has its key 'ann'" in caplog.text
    for wrong in ({"zkrq_group": ""}, {"zkrq_group": 0}, {"zkrq_key": ""}):
        with pytest.raises(zkrq.ConfigError, match=r"must (not be empty|be a str|be printable)"):
            digest.apply_async(headers=wrong)
    with pytest.raises(zkrq.ConfigError, match="zkrq_key_window is 'soon', must be seconds"):
        digest.apply_async(headers={"zkrq_key": "eve", "zkrq_key_window": "soon"})
    digest.apply_async(headers=headers, retries=1)
    digest.apply_async(headers={"zkrq_key": "bob"})
    assert [each.key for each in jobs.scan()].count("bob") == 1
    assert jobs.size().ready == 2, "a retry is sent, whatever its key"
    digest.apply_async(headers={"zkrq_key": "bob", "zkrq_replace": True, "zkrq_headers": {"trace": "ab"}})
    assert [(each.key, each.headers.get("trace")) for each in jobs.scan() if each.key] == [("bob", "ab")]
    app.pool.force_close_all()


def test_every_option_of_a_push_is_a_header(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert HEADERS.without.keys() == {"id", "delay", "at", "priority", "ttl", "task"}
    colour = Parameter("colour", Text(10), "Of the item.")
    added = replace(PUSH, parameters=(*PUSH.parameters, colour))
    monkeypatch.setattr("zkrq.kombu.HEADERS", replace(HEADERS, operation=added))
    app = Celery("shop", broker=BROKER_URL, broker_transport_options=options, task_default_queue="jobs")
    with pytest.raises(TypeError, match="push\\(\\) has no option 'colour'"):
        app.send_task("digest", headers={"zkrq_colour": "red"})
    app.pool.force_close_all()


# -- what nobody stores --------------------------------------------------------------------------------------------


class Mailbox:
    """A queue that ends with its process, bound to an exchange; what came is kept."""

    def __init__(self, connection: Connection, exchange: Exchange, key: str = "", name: str = "mine") -> None:
        self.bodies: list[Any] = []
        self._connection = connection
        queue = Queue(name, exchange, routing_key=key, auto_delete=True, durable=False)
        self.consumer = connection.Consumer(queue, callbacks=[self._keep], no_ack=True, auto_declare=False)
        self.consumer.declare()

    def _keep(self, body: object, message: Message) -> None:
        self.bodies.append(body)

    def drain(self, count: int) -> list[Any]:
        end = time.monotonic() + HANG
        while len(self.bodies) < count:
            assert time.monotonic() < end
            self._connection.drain_events(timeout=HANG)
        return self.bodies


@pytest.fixture
def another(options: dict[str, Any], connection: Connection) -> Generator[Connection]:
    """As of another process."""
    connection.connect()
    with Connection(BROKER_URL, transport_options={**options, "description": "another"}) as another:
        yield another


@pytest.mark.parametrize(
    ("type", "bound", "fits", "differs"),
    [("fanout", "", "any", None), ("direct", "key", "key", "other"), ("topic", "worker.#", "worker.online", "task")],
)
def test_a_mailbox_hears_what_fits(
    connection: Connection, another: Connection, type: str, bound: str, fits: str, differs: str | None
) -> None:
    exchange = Exchange("control", type=type, durable=False)
    here, there = Mailbox(connection, exchange, bound), Mailbox(another, exchange, bound, name="theirs")
    producer = another.Producer(exchange=exchange)
    if differs:
        producer.publish("for others", routing_key=differs)
    for number in range(3):
        producer.publish(number, routing_key=fits)  # before anything is consumed
    with here.consumer, there.consumer:
        assert here.drain(3) == there.drain(3) == [0, 1, 2]
        producer.publish("later", routing_key=fits)
        assert here.drain(4)[-1] == there.drain(4)[-1] == "later"


def test_a_mailbox_costs_the_servers_no_queue(connection: Connection, options: dict[str, Any]) -> None:
    exchange = Exchange("control", type="fanout", durable=False)
    mailbox = Mailbox(connection, exchange)
    connection.Producer(exchange=exchange).publish("x")
    with mailbox.consumer:
        mailbox.drain(1)
    with sync.connect(**options) as cluster:
        assert cluster.queues() == []


def test_a_durable_queue_of_a_fanout_keeps_its_messages(connection: Connection, another: Connection) -> None:
    exchange = Exchange("news", type="fanout")
    queue = Queue("kept", exchange)
    queue(connection.channel()).declare()
    connection.Producer().publish("x", exchange=exchange)
    with another.SimpleQueue("kept") as kept:
        assert kept.get(timeout=HANG).payload == "x"


@pytest.mark.parametrize("no_ack", [False, True])
def test_a_callback_may_raise_anything(
    connection: Connection, jobs: sync.Queue[bytes], unheard: None, no_ack: bool
) -> None:
    """The error ends one call of ``drain_events``; the next calls deliver the other messages."""
    chance = random.Random(47)
    errors = [make("text") for make in odd.CLASSES]
    errors += [odd.some(chance, [*odd.CLASSES, *odd.WISHES]) for _ in range(30)]
    total = len(errors) + 20
    for number in range(total):
        publish(connection, number)
    delivered, raised, kept = Counter[int](), list[BaseException](), list[Message]()

    def handle(body: int, message: Message) -> None:
        delivered[body] += 1
        kept.append(message)
        if body < len(errors):
            raise errors[body]

    end = time.monotonic() + HANG
    with connection.Consumer(Queue("jobs", routing_key="jobs"), callbacks=[handle], no_ack=no_ack):
        while delivered.total() < total:
            assert time.monotonic() < end
            try:
                connection.drain_events(timeout=HANG)
            except BaseException as error:
                raised.append(error)
        if not no_ack:
            for message in kept:
                message.ack()
        until(lambda: jobs.size() == (0, 0, 0, 0))
    assert delivered == dict.fromkeys(range(total), 1)
    assert {id(error) for error in raised} == {id(error) for error in errors}
