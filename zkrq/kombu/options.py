"""Sort the options of the transport: for the cluster, for its queues, for kombu; and explain those of other brokers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

from zkrq.base.errors import ConfigError
from zkrq.base.settings import QUEUE_DEFAULTS
from zkrq.client.connecting import connect

if TYPE_CHECKING:
    from zkrq.client.cluster import Cluster

QUEUE_OPTIONS = frozenset({"claim_timeout", "retry", "dead_letters", "max_size", "max_payload_bytes"})

DROP_EXPIRED = "drop_expired"

KOMBU_OPTIONS = frozenset(
    {
        "body_encoding",
        "connect_retries_timeout",
        "deadletter_queue",
        "interval_max",
        "interval_start",
        "interval_step",
        "max_retries",
    }
)

_RESTORING = "no task is kept beside its queue to be restored: a killed worker's are ready again when its session ends"
_CONNECTION = "the timeouts of zkrq are command_timeout, operation_timeout and session_timeout"
_KEYS = "all keys of a namespace begin with its name: give namespace"
_URLS = "give a URL for each server in redis"
_SETTINGS = "it is a setting of the queue, which zkrq queues set changes"
_POLLING = "no server is polled: a worker is woken when a task arrives"

LEFT_OVER: Mapping[str, str] = {
    "visibility_timeout": "a task is held for as long as its worker lives, however long it takes",
    "ack_emulation": "acks are always kept by the servers",
    "unacked_key": _RESTORING,
    "unacked_index_key": _RESTORING,
    "unacked_mutex_key": _RESTORING,
    "unacked_mutex_expire": _RESTORING,
    "unacked_restore_limit": _RESTORING,
    "unacked_restore_interval": _RESTORING,
    "unacked_restore_throttle": _RESTORING,
    "sep": "a priority is no part of a queue's name",
    "priority_steps": "there are ten priorities, 0 to 9, in one queue; a higher one is served first",
    "queue_order_strategy": "priorities go first, and queues take turns",
    "fanout_prefix": "fanout exchanges are topics of the namespace",
    "fanout_patterns": "fanout exchanges are topics of the namespace",
    "sentinel_fanout_compat": "fanout exchanges are topics of the namespace",
    "global_keyprefix": _KEYS,
    "socket_timeout": _CONNECTION,
    "socket_connect_timeout": _CONNECTION,
    "socket_keepalive": _CONNECTION,
    "socket_keepalive_options": _CONNECTION,
    "health_check_interval": "an idle server is asked every ten seconds, a busy one answers all the time",
    "reauth_check_interval": "a server that refuses its password is reported: give the new redis_password",
    "retry_on_timeout": "calls are retried for operation_timeout, without doing anything twice",
    "max_connections": "a process needs few connections to each server, whatever it does",
    "client_name": "give description",
    "master_name": f"there are no sentinels: {_URLS}",
    "min_other_sentinels": f"there are no sentinels: {_URLS}",
    "sentinel_kwargs": f"there are no sentinels: {_URLS}",
    "polling_interval": _POLLING,
    "wait_time_seconds": _POLLING,
    "groups": _SETTINGS,
    "limits": _SETTINGS,
    "confirm_publish": "a push that returned is always confirmed by every in-sync server",
}
"""Options of other transports that are often left over, and those of ``Cluster.queue`` that no program of Celery needs
to have, and why."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the transport, by use."""

    connect: Callable[[], AbstractAsyncContextManager[Cluster]]
    """``zkrq.connect`` with its arguments."""
    queue: Mapping[str, Any]
    """Arguments of ``Cluster.queue``."""
    drop_expired: bool
    """Whether servers drop a task whose ``expires`` is over before a worker has it; its result stays PENDING then."""


def split_options(options: Mapping[str, Any]) -> Options:
    """Sort options.  Raises ``ConfigError`` for those that zkrq does not have, a line for each, and for bad values."""
    settings = {
        name: value for name, value in options.items() if name not in QUEUE_OPTIONS | KOMBU_OPTIONS | {DROP_EXPIRED}
    }
    unknown = sorted(settings.keys() - signature(connect).parameters.keys())
    if unknown:
        reasons = [f"\n  {name}: {LEFT_OVER[name]}" for name in unknown if name in LEFT_OVER]
        raise ConfigError(
            f"broker_transport_options: zkrq has no {', '.join(unknown)}: remove "
            f"{'it' if len(unknown) == 1 else 'them'}{''.join(reasons)}"
        )
    drop_expired = options.get(DROP_EXPIRED, False)
    if not isinstance(drop_expired, bool):
        raise ConfigError(f"broker_transport_options: {DROP_EXPIRED} is {drop_expired!r:.99}, must be true or false")
    queue = {name: value for name, value in options.items() if name in QUEUE_OPTIONS}
    try:
        connect(**settings)
    except TypeError as error:
        raise ConfigError(f"broker_transport_options: {error}") from error
    try:
        QUEUE_DEFAULTS.updated(queue)
    except ConfigError as error:
        raise ConfigError(f"broker_transport_options: {error}") from error
    return Options(partial(connect, **settings), queue, drop_expired)
