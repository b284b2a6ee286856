"""Name the option or the method that a caller meant, where one is misspelt, stands elsewhere, or is a peer's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from functools import wraps
from types import FunctionType
from typing import Any, TypedDict, TypeVar, cast


class NoOptions(TypedDict):
    """Type of ``**unknown``: type checkers let no option through, and an error names what was meant at run time."""


C = TypeVar("C", bound=Callable[..., Any])
K = TypeVar("K", bound=type)

OPTIONS: Mapping[str, str] = {
    "_defer_by": "delay",
    "_defer_until": "at",
    "_expires": "ttl",
    "_job_id": "id",
    "autoretry_for": "retry",
    "broker": "redis",
    "countdown": "delay",
    "default_retry_delay": "backoff",
    "eta": "at",
    "expires": "ttl",
    "hosts": "zookeeper",
    "interval": "backoff",
    "job_id": "id",
    "job_timeout": "time_limit",
    "max": "max_attempts",
    "max_jobs": "concurrency",
    "max_retries": "max_attempts",
    "max_tasks_per_child": "max_items",
    "max_tries": "max_attempts",
    "password": "redis_auth",
    "redis_settings": "redis",
    "retries": "max_attempts",
    "retry_backoff": "backoff",
    "retry_delay": "backoff",
    "scheduled": "at",
    "ssl": "redis_tls",
    "task_id": "id",
    "timeout": "time_limit",
    "url": "redis",
}
"""Options in arq, Celery, RQ, SAQ, redis-py and kazoo -> the option that does the same here."""

HOMES: dict[str, Collection[str]] = {
    "zkrq.Retry": ("backoff", "holds_group", "max_age", "max_attempts"),
    "zkrq.Worker": ("concurrency", "grace", "pool"),
    "Worker.add()": ("batch", "time_limit", "unknown_after", "weight", "within"),
    "zkrq.Processes": ("kill_after", "max_items", "max_memory", "preload", "slots"),
    "Cluster.queue()": ("claim_timeout", "codec", "dead_letters", "groups", "history", "limits", "results", "retry"),
    "zkrq.connect()": ("namespace", "redis", "redis_auth", "redis_tls", "session_timeout", "zookeeper"),
}
"""Where options stand that are looked for elsewhere; those of ``push()`` are added where they are described."""

METHODS: Mapping[str, str] = {
    "abort": "cancel",
    "apply": "call",
    "apply_async": "push",
    "delay": "push",
    "empty": "clear",
    "enqueue": "push",
    "enqueue_at": "push",
    "enqueue_in": "push",
    "enqueue_job": "push",
    "kiq": "push",
    "put": "push",
    "queued_jobs": "scan",
    "revoke": "cancel",
    "send_task": "push",
}
"""Methods in arq, Celery, RQ, SAQ and taskiq -> the method that does the same here."""


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the question whether the known word that is most like this one was meant; empty: none is like it."""
    return next((f": did you mean {close!r}?" for close in get_close_matches(word, list(known), 1)), "")


def unknown_option(what: str, option: str, known: Collection[str]) -> TypeError:
    """Return the error for an option that a function, or the class that it makes, does not have."""
    ours = OPTIONS.get(option, option)
    home = next((home for home, options in HOMES.items() if ours in options), what)
    if ours in known:
        advice = f": use {ours!r}"
    elif home != what:
        advice = f": use {ours!r} of {home}"
    else:
        advice = f", only {', '.join(sorted(known))}{nearest(option, known)}"
    return TypeError(f"{what} has no option {option!r}{advice}")


def options_of(function: Callable[..., object]) -> Collection[str]:
    """Return the names of the options that a function takes by name alone."""
    return cast("FunctionType", function).__kwdefaults__ or {}


def unknown_method(thing: object, method: str, place: str = "") -> AttributeError:
    """Return the error for a method that an object does not have.  ``place``: of the method that is meant."""
    kind = type(thing).__name__
    text = f"{kind!r} object has no attribute {method!r}"
    if method in METHODS:
        text += f": use {place}{METHODS[method]}()"
    return AttributeError(text, name=method, obj=thing)


def unknown_method_of_queue(queue: Any, method: str) -> AttributeError:
    """Return the error for a method that a queue does not have, or only has if it keeps results."""
    if method not in {"call", "result"}:
        return unknown_method(queue, method)
    name = cast("dict[str, object]", vars(queue)).get("name", "...")
    text = f"queue {name!r} keeps no results: {method}() is of cluster.queue({name!r}, results=zkrq.Results())"
    return AttributeError(text, name=method, obj=queue)


def names_options(what: str) -> Callable[[C], C]:
    """Have a function name the option that was meant where it does not have the one that is given."""

    def decorate(function: C) -> C:
        code = cast("FunctionType", function).__code__
        known = frozenset(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]) - {"self"}

        @wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            for option in options:
                if option not in known:
                    raise unknown_option(what, option, known)
            return function(*args, **options)

        return cast("C", call)

    return decorate


def names_fields(what: str) -> Callable[[K], K]:
    """The same for a dataclass."""

    def decorate(kind: K) -> K:
        kind.__init__ = names_options(what)(kind.__init__)
        return kind

    return decorate
