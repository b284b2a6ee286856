"""Keep the results of Celery's tasks in zkrq: ``result_backend="zkrq://"``.  Needs the extra ``celery``.

The servers are those of ``result_backend_transport_options``, or of ``broker_transport_options`` if the broker is zkrq,
or come from the environment.  A result is kept under the id of its task (``client/stored.py``).  A caller of
``AsyncResult.get`` is woken.  Of a chord each part is counted once, together with its result, however often it is
delivered, so its body starts when all are there.
"""

# Celery has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# pyright: reportMissingTypeStubs=false, reportIncompatibleMethodOverride=false

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TYPE_CHECKING, Any, TypeVar

from zkrq.base.codecs import RAW
from zkrq.base.errors import ConfigError, NotEnoughReplicas, OutcomeUnknown, Unavailable, ZkrqError
from zkrq.base.limits import RESULT_TTL_LEAST, RESULT_TTL_MAX
from zkrq.client.stored import Rank, StoredResult, StoredResults
from zkrq.kombu import BROKER_URL, Client, clients

if TYPE_CHECKING:
    from zkrq.client.cluster import Cluster

try:
    import celery.states as states
    from celery.backends.base import BaseKeyValueStoreBackend, SyncBackendMixin
    from celery.exceptions import TimeoutError as CeleryTimeout
    from celery.result import GroupResult
    from kombu.utils.encoding import bytes_to_str, ensure_bytes
except ModuleNotFoundError as error:
    raise ConfigError("zkrq.kombu.results needs celery: pip install 'zkrq[celery]'") from error

__all__ = ["QUEUE", "ZkrqBackend"]

QUEUE = "celery-results"
"""Name under which results are kept, as of a queue without items."""

WAIT_SECONDS = 1.0
"""Seconds of one wait where the caller wants to be called between waits."""

SIZE, ADDED = ".s", ".t"
"""Ends of the keys of a group that name the size of its chord, and the number of tasks that were added later."""

R = TypeVar("R")


class ZkrqBackend(BaseKeyValueStoreBackend, SyncBackendMixin):
    """Result backend: results survive the loss of servers, and their callers are woken."""

    supports_autoexpire = True
    supports_native_join = True
    implements_incr = True

    def __init__(self, url: str | None = None, **kwargs: Any) -> None:
        """Connect to nothing yet.  Raises ``ConfigError`` for options that are wrong."""
        super().__init__(**kwargs)
        if url not in (None, BROKER_URL):
            raise ConfigError(
                f"result_backend is {BROKER_URL!r}: servers and namespace are result_backend_transport_options, or "
                "come from the environment"
            )
        self.thread_safe = True  # which Celery leaves to a setting
        options = _options_of(self.app.conf)
        self._client: Client = clients.enter(options)
        self._close = weakref.finalize(self, clients.leave, options)
        self._chord = threading.local()

    def close(self) -> None:
        """Close the connection, unless another one of this process has the same options."""
        self._close()

    def as_uri(self, include_password: bool = True) -> str:
        return BROKER_URL

    def exception_safe_to_retry(self, exc: BaseException) -> bool:
        """Whether ``result_backend_always_retry`` may repeat what failed so: storing twice is as good as once."""
        return isinstance(exc, Unavailable | NotEnoughReplicas | OutcomeUnknown)

    @property
    def _ttl(self) -> float:
        """Seconds for which results are kept; Celery's "for ever" is the longest time that zkrq has."""
        return min(max(float(self.expires or RESULT_TTL_MAX), RESULT_TTL_LEAST), RESULT_TTL_MAX)

    def _call(self, act: Callable[[StoredResults], Awaitable[R]]) -> R:
        return self._client.portal.call(lambda cluster: act(_stored(cluster)))

    # -- what Celery's base class is made of ---------------------------------------------------------------------------

    def get(self, key: str | bytes) -> bytes | None:
        return self.mget([key])[0]

    def mget(self, keys: Sequence[str | bytes]) -> list[bytes | None]:
        ids = [bytes_to_str(key) for key in keys]
        return [kept and kept.value for kept in self._call(lambda stored: stored.get(ids))]

    def set(self, key: str | bytes, value: str | bytes) -> None:
        self._set_with_state(key, value, states.SUCCESS)

    def _set_with_state(self, key: str | bytes, value: str | bytes, state: str) -> None:
        id, text = bytes_to_str(key), ensure_bytes(value)
        rank = Rank.DONE if state == states.SUCCESS else Rank.FAILED if state in states.READY_STATES else Rank.PRESENT
        self._call(lambda stored: stored.store(id, text, ttl=self._ttl, rank=rank))

    def _store_result(
        self, task_id: str, result: Any, state: str, traceback: Any = None, request: Any = None, **kwargs: Any
    ) -> Any:
        """Store a result without looking at the present one, as the base class does: the servers keep a success."""
        meta = self._get_result_meta(result=result, state=state, traceback=traceback, request=request)
        meta["task_id"] = bytes_to_str(task_id)
        self._set_with_state(self.get_key_for_task(task_id), self.encode(meta), state)
        return result

    def delete(self, key: str | bytes) -> None:
        self._call(lambda stored: stored.forget([bytes_to_str(key)]))

    # -- waiting -------------------------------------------------------------------------------------------------------

    def wait_for(
        self,
        task_id: str,
        timeout: float | None = None,
        interval: float | None = 0.5,
        no_ack: bool = True,
        on_interval: Callable[[], object] | None = None,
    ) -> Mapping[str, Any]:
        """Wait until a task has ended; return its meta.  Raises Celery's ``TimeoutError`` after ``timeout`` seconds."""
        for _, meta in self.get_many([task_id], timeout, interval, on_interval=on_interval):
            return meta
        raise CeleryTimeout("The operation timed out.")

    def get_many(
        self,
        task_ids: Iterable[str],
        timeout: float | None = None,
        interval: float | None = 0.5,
        no_ack: bool = True,
        on_message: Callable[[Mapping[str, Any]], object] | None = None,
        on_interval: Callable[[], object] | None = None,
        max_iterations: int | None = None,
        READY_STATES: Iterable[str] = states.READY_STATES,  # noqa: N803 (Celery's name)
    ) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield id and meta of each task when it has ended.  Raises Celery's ``TimeoutError``."""
        self._ensure_not_eager()
        until = None if timeout is None else time.monotonic() + timeout
        opened = self._client.portal.open()
        waiting: dict[Future[StoredResult | None], str] = {}
        for id in dict.fromkeys(map(str, task_ids)):
            key = bytes_to_str(self.get_key_for_task(id))
            waiting[opened.start(lambda key=key: _stored(opened.cluster).wait(key, timeout=timeout))] = id
        try:
            while waiting:
                done, _ = wait(waiting, _left(until, WAIT_SECONDS), FIRST_COMPLETED)
                if on_interval:  # before a failure is raised: it raises that of a parent, which is the cause
                    on_interval()
                for future in done:
                    id, meta = waiting.pop(future), self._meta_of(future)
                    if meta is not None:
                        self._cache[id] = meta
                        if on_message is not None:
                            on_message(meta)
                        yield id, meta
                    else:
                        raise CeleryTimeout(f"Operation timed out ({timeout})")
        finally:
            for future in waiting:
                future.cancel()

    def iter_native(self, result: Any, on_interval: Callable[[], object] | None = None, **kwargs: Any) -> Iterator[Any]:
        """Yield the results of a set as they come; raise the failure of a task before it, after which none comes."""
        parent = getattr(result, "parent", None)

        def look() -> None:
            if on_interval:
                on_interval()
            node = parent
            while node is not None:
                node.maybe_throw()
                node = node.parent

        return super().iter_native(result, on_interval=look if parent is not None else on_interval, **kwargs)

    def _meta_of(self, future: Future[StoredResult | None]) -> Mapping[str, Any] | None:
        """Return the meta of a task that has ended, None if its caller's time is over first."""
        try:
            kept = future.result()
        except ZkrqError as error:
            raise CeleryTimeout(f"its result could not be asked for in time: {error}") from error
        meta: Any = self.decode_result(kept.value) if kept and kept.is_last else None
        return meta

    # -- chords --------------------------------------------------------------------------------------------------------

    def incr(self, key: str | bytes) -> int:
        """Return the size of a chord that is complete: the base class asks when ``on_chord_part_return`` has found
        that."""
        return self._chord.size

    def set_chord_size(self, group_id: str, chord_size: int) -> None:
        """Note how many tasks a chord waits for."""
        self._set_with_state(self.get_key_for_group(group_id, SIZE), str(chord_size), states.SUCCESS)

    def add_to_chord(self, chord_id: str, result: Any) -> None:
        """Have a chord wait for one task more, which takes part in place of the one that added it."""
        added, counter = (bytes_to_str(self.get_key_for_group(chord_id, key)) for key in (f"{ADDED}{result.id}", ADDED))
        self._call(lambda stored: stored.count(added, counter, ttl=self._ttl))

    def _size_of(self, gid: str, request: Any) -> int:
        """Return how many tasks a chord waits for."""
        size, added = self.mget([self.get_key_for_group(gid, SIZE), self.get_key_for_group(gid, ADDED)])
        given = request.chord.get("chord_size") if size is None else int(size)
        if given is None:
            given = len(GroupResult.restore(gid, backend=self) or ())
        return int(given) + int(added or 0)

    def _is_complete(self, gid: str) -> bool:
        """Look at all results of a chord."""
        group: Any = GroupResult.restore(gid, backend=self)
        return group is not None and bool(group.ready())

    def on_chord_part_return(self, request: Any, state: Any, result: Any, **kwargs: Any) -> None:
        """Count the end of a task of a chord; start the body after the last one.

        A task that is delivered again is counted once.  If its worker died after it was counted, it looks at all
        results itself, since the worker may have died before it could start the body.
        """
        gid = request.group
        if not gid or not request.chord:
            return
        id, counter = (bytes_to_str(key) for key in (self.get_key_for_task(request.id), self.get_key_for_chord(gid)))
        count = self._call(lambda stored: stored.count(id, counter, ttl=self._ttl))
        size = self._size_of(gid, request)
        is_again = bool((request.delivery_info or {}).get("redelivered"))
        if count == 0 or (count < size and not (is_again and self._is_complete(gid))):
            return
        self._chord.size = request.chord["chord_size"] = size
        super().on_chord_part_return(request, state, result, **kwargs)


def _stored(cluster: Cluster) -> StoredResults:
    """Return the results in an open cluster, on its event loop."""
    return StoredResults(cluster.queue(QUEUE, codec=RAW))


def _options_of(conf: Any) -> Mapping[str, Any]:
    """Return the options of the client: those of the broker, if the results have none and the broker is zkrq."""
    own = dict(conf.get("result_backend_transport_options") or {})
    own.pop("global_keyprefix", None)
    if own:
        return own
    brokers = conf.get("broker_write_url") or conf.get("broker_url")
    transport = conf.get("broker_transport")
    is_zkrq = brokers == BROKER_URL or transport in ("zkrq", "zkrq.kombu:Transport")
    return dict(conf.get("broker_transport_options") or {}) if is_zkrq else {}


def _left(until: float | None, most: float) -> float:
    """Return the seconds until a moment, 0 to ``most``."""
    return most if until is None else min(max(until - time.monotonic(), 0.01), most)
