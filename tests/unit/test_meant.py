"""An option or a method that does not exist: the error names the one that was meant."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any

import pytest

import zkrq
import zkrq.sync
import zkrq.testing
from zkrq.base import meant
from zkrq.base.settings import QueueOptions
from zkrq.working.handlers import read_handler

FUNCTIONS: dict[str, Callable[..., object]] = {
    "push()": zkrq.Queue[Any].push,
    "zkrq.Retry": zkrq.Retry,
    "zkrq.Processes": zkrq.Processes,
    "zkrq.Worker": zkrq.Worker,
    "Worker.add()": zkrq.Worker.add,
    "zkrq.connect()": zkrq.connect,
}
QUEUE_OPTIONS = {*QueueOptions.__annotations__, "codec", "results"}


def options_of(place: str) -> Collection[str]:
    return QUEUE_OPTIONS if place == "Cluster.queue()" else inspect.signature(FUNCTIONS[place]).parameters


@pytest.mark.parametrize("place", meant.HOMES)
def test_options_are_looked_for_where_they_are(place: str) -> None:
    assert set(meant.HOMES[place]) <= set(options_of(place))


@pytest.mark.parametrize("option", meant.OPTIONS)
def test_the_option_of_a_peer_has_one_here(option: str) -> None:
    ours = meant.OPTIONS[option]
    assert [place for place, options in meant.HOMES.items() if ours in options]
    assert not [place for place in meant.HOMES if option in options_of(place)]


@pytest.mark.parametrize("method", meant.METHODS)
def test_the_method_of_a_peer_has_one_here(method: str) -> None:
    assert hasattr(zkrq.ResultQueue, meant.METHODS[method])
    assert not hasattr(zkrq.ResultQueue, method)


ANY: Any = zkrq

OF_PUSH = "at, at_latest, delay, group, headers, id, key, key_window, priority, replace, task, ttl"

CALLS: dict[str, Callable[[Any], Any]] = {
    "zkrq.Retry has no option 'max_tries': use 'max_attempts'": lambda _: ANY.Retry(max_tries=3),
    "zkrq.Retry has no option 'delay': use 'delay' of push()": lambda _: ANY.Retry(delay=3),
    "zkrq.Limits has no option 'concurency', only concurrency, rate: did you mean 'concurrency'?": lambda _: ANY.Limits(
        concurency=3
    ),
    "zkrq.Worker has no option 'max_jobs': use 'concurrency'": lambda _: ANY.Worker(max_jobs=3),
    "zkrq.Worker has no option 'time_limit': use 'time_limit' of Worker.add()": lambda _: ANY.Worker(time_limit=3),
    "Worker.add() has no option 'job_timeout': use 'time_limit'": lambda q: ANY.Worker().add(q, print, job_timeout=3),
    "zkrq.connect() has no option 'redis_settings': use 'redis'": lambda _: ANY.connect(redis_settings=3),
    "zkrq.Groups has no option 'xyz', only by_task, concurrency, named, ordered, rate": lambda _: ANY.Groups(xyz=3),
    "push() has no option 'countdown': use 'delay'": lambda q: q.push(1, countdown=3),
    f"push() has no option 'dealy', only {OF_PUSH}: did you mean 'delay'?": lambda q: q.push(1, dealy=3),
    "push() has no option 'max_retries': use 'max_attempts' of zkrq.Retry": lambda q: q.push(1, max_retries=3),
    "push_many() has no option '_defer_by': use 'delay'": lambda q: q.push_many([1], _defer_by=3),
    "push_many() has no option 'id': use 'id' of push()": lambda q: q.push_many([1], id="a"),
}


@pytest.mark.anyio
@pytest.mark.parametrize("text", CALLS)
async def test_an_unknown_option_names_the_one_that_was_meant(text: str) -> None:
    async with zkrq.testing.cluster() as cluster:
        queue = cluster.queue("emails")
        with pytest.raises(TypeError) as caught:
            outcome = CALLS[text](queue)
            if inspect.isawaitable(outcome):
                await outcome
        assert str(caught.value) == text
        assert (await queue.size()).ready == 0


@pytest.mark.anyio
async def test_an_unknown_method_names_the_one_that_was_meant() -> None:
    async with zkrq.testing.cluster() as cluster:
        queue: Any = cluster.queue("emails")
        for method in ("call", "result"):
            with pytest.raises(AttributeError) as caught:
                getattr(queue, method)
            assert str(caught.value).endswith(f"{method}() is of cluster.queue('emails', results=zkrq.Results())")
        with pytest.raises(AttributeError, match=r"no attribute 'enqueue_job': use push\(\)"):
            queue.enqueue_job("send")
        with pytest.raises(AttributeError, match=r"no attribute 'enqueue': use queue\(...\).push\(\)"):
            cluster.enqueue("send")  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
        with pytest.raises(AttributeError, match=r"^'Queue' object has no attribute 'size_'$"):
            queue.size_  # noqa: B018


def test_the_same_for_threads() -> None:
    cluster: Any = zkrq.sync.connect(["redis://127.0.0.1:1"], "127.0.0.1:1")
    with pytest.raises(AttributeError, match=r"use queue\(...\).push\(\)"):
        cluster.enqueue("send")
    with pytest.raises(AttributeError, match="keeps no results"):
        cluster.queue("emails").call(1)


@pytest.mark.parametrize("name", ["ctx", "ctx, to", "ctx, *, to=None"])
def test_a_handler_written_for_arq_is_refused(name: str) -> None:
    handler = eval(f"lambda {name}: None")
    with pytest.raises(
        zkrq.ConfigError, match="a handler gets the item, or the item and its claim, and no ctx as in arq"
    ):
        read_handler(handler)
    read_handler(eval(f"lambda {name.replace('ctx', 'item')}: None"))
