"""Provide the namespace that users see: its queues, its consumers, its servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, tzinfo
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from zkrq.base.checks import Duration, check_id, check_name
from zkrq.base.codecs import JSON
from zkrq.base.errors import ConfigError, ZkrqError
from zkrq.base.flows import check_state
from zkrq.base.meant import unknown_method
from zkrq.base.settings import AS_DECLARED, QueueOptions, Settings
from zkrq.base.tasks import together
from zkrq.client.addresses import RedisServers, check_shard, choose_name, name_servers
from zkrq.client.client import Client
from zkrq.client.consumers import Consumer, count_claims, describe_consumer
from zkrq.client.inspection import Sizes, Statistics, read_all_statistics, read_statistics
from zkrq.client.moments import read_schedule
from zkrq.client.queue import Queue, check_pop
from zkrq.client.scheduling import StoredSchedules
from zkrq.client.timetable import divided
from zkrq.client.topics import Listener, broadcast
from zkrq.consuming.deliveries import Deliveries
from zkrq.operations.schedules import CATCH_UP
from zkrq.protocol import calls
from zkrq.protocol.replies import Answer
from zkrq.protocol.shards import FIRST, ShardName
from zkrq.protocol.view import ServerId, View
from zkrq.replication.urls import check_url, dial

if TYPE_CHECKING:
    from zkrq.base.codecs import Codec
    from zkrq.base.flows import FlowState, FlowStatus
    from zkrq.base.limits import Results
    from zkrq.client.health import Health
    from zkrq.client.quieting import Quieted
    from zkrq.client.results import ResultQueue
    from zkrq.client.schedules import Recurring
    from zkrq.client.shard import Shard
    from zkrq.client.shards import ShardStatus
    from zkrq.consuming.observing import Observer
    from zkrq.coordination.coordinator import Coordinator
    from zkrq.operations.push import RepeatedOptions
    from zkrq.protocol.levels import ClientInfo
    from zkrq.protocol.recurring import Missed
    from zkrq.replication.replicas import Replicas
    from zkrq.replication.wire import Dial

T = TypeVar("T")
R = TypeVar("R")

READ_AT_ONCE = 100
"""Queues whose statistics are asked for at the same time: one command for those with the same primary."""

OPEN_CHECK_SECONDS = 1.0
"""Seconds between checks that the cluster is still open, while a call waits for a server to be in sync."""


class Cluster:
    """A namespace on N Redis servers.  ``queue()`` gives access to the items.

    ``async with`` opens and closes it, or ``open`` and ``aclose`` where the two are called in different places, by a
    framework for instance.  It is opened once: to connect again, make another one.
    """

    def __init__(
        self,
        servers: Mapping[str, str],
        coordinator: Coordinator,
        settings: Settings,
        *,
        dial: Dial = dial,
        shards: Mapping[ShardName, Mapping[str, str]] = MappingProxyType({}),
    ) -> None:
        """``servers``: of the first shard; ``shards``: of others, for those whose servers need URLs of their own."""
        settings.check_servers(len(servers))
        self.namespace = settings.namespace
        self._client = Client({FIRST: servers, **shards}, coordinator, settings, dial=dial)

    def _opened(self) -> Cluster | None:
        return self

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise unknown_method(self, name, "queue(...).")

    def __repr__(self) -> str:
        opened = self._client.is_open
        state = f"epoch {self.view.epoch}, {len(self.view.members)} in sync" if opened else "not open"
        return f"<Cluster {self.namespace!r} {state}>"

    async def open(self) -> Self:
        """Connect.  ``aclose`` must follow: until then, background tasks run and the session is alive.

        If this raises or is cancelled, everything is closed.  Raises ``ConfigError`` for problems to correct,
        ``Unavailable`` for problems that may pass, and ``Closed`` if it was opened before.
        """
        await self._client.open()
        return self

    async def __aenter__(self) -> Self:
        """Open; see ``open``."""
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop claiming, end every ``pop``, hand back claims, end the session.  Bounded in time and idempotent.

        Finish running work first: a handler loses a claim that it still holds.
        """
        await self._client.aclose()

    # -- queues ------------------------------------------------------------------------------------------------------

    @overload
    def queue(
        self, name: str, *, codec: Codec[T], results: Results[R], **options: Unpack[QueueOptions]
    ) -> ResultQueue[T, R]: ...

    @overload
    def queue(self, name: str, *, results: Results[R], **options: Unpack[QueueOptions]) -> ResultQueue[Any, R]: ...

    @overload
    def queue(
        self, name: str, *, codec: Codec[T], results: None = None, **options: Unpack[QueueOptions]
    ) -> Queue[T]: ...

    @overload
    def queue(self, name: str, *, results: None = None, **options: Unpack[QueueOptions]) -> Queue[Any]: ...

    def queue(
        self,
        name: str,
        *,
        codec: Codec[Any] = AS_DECLARED,
        results: Results[Any] | None = AS_DECLARED,
        **options: Unpack[QueueOptions],
    ) -> Queue[Any]:
        """Return the queue of that name; a queue need not be created.

        ``codec``: how items become bytes, default ``JSON``.  ``claim_timeout``: seconds until an unextended claim
        expires, default 30; zkrq extends claims while the process runs.  ``retry``: the policy after a failure, None
        (the default): ``Retry()``.  ``dead_letters``: how many of them are kept and for how long, None (the default):
        as other programs have declared, or ``DeadLetters()``.  ``results``: keep what handlers return, in a
        ``ResultQueue``, which has ``result`` and ``call``; None (the default): keep nothing.  ``max_size``: a push
        raises ``QueueFull`` if this many items are queued, scheduled and claimed, None (the default): as other programs
        have declared, or no limit; it costs each push one more round trip.  ``max_payload_bytes``: limit of an encoded
        item, default 1 MiB.  ``limits``: of items claimed at once and of claims begun in a time, over all workers and
        processes, None (the default): whatever other programs have declared; see ``Limits``.  ``groups``: with
        ``Groups()`` items that are pushed without a ``group`` form one group, ``Groups(concurrency=5, rate=(50, 1.0))``
        also limits each group, and ``Groups(ordered=True)`` keeps its order; None (the default): each stands in line by
        itself.  ``history``: how many of the items that have ended last are kept for ``Queue.history``, up to 10,000,
        0: none from now on, None (the default): as many as other programs have declared, or none.  ``saved``: how what
        handlers save becomes bytes, default ``JSON``.

        The first call for a name declares the queue in this process, and the same name returns the same object.  Later
        calls need no options; one that is given with another value raises ``ConfigError``.  Options belong to this
        process: give all processes the same ones.  But ``limits``, ``history``, ``max_size``, ``dead_letters``, the
        ``ttl`` of ``results``, and what ``groups`` says of each group, are settings of the queue: they are stored with
        it before the first push or claim of this process, hold for all processes, and outlive this one.  What was
        declared before changes nothing.
        """
        self._client.check_open()
        check_name("the queue's name", name)
        return self._client.queue(name, {"codec": codec, "results": results, **options})

    def pop(
        self, *queues: Queue[T], prefetch: int | None = None, limit: int | None = None, wait: bool = True
    ) -> Deliveries[T]:
        """Iterate over claims of several queues, which take turns: ``async for claim in cluster.pop(emails, reports)``.

        ``claim.queue`` is the queue's name.  ``prefetch``: items claimed ahead from each queue.  ``wait=False``: one
        queue after the other, until nothing is ready in any.  Otherwise as ``Queue.pop``.  Raises ``ConfigError``
        without a queue, or for one of another cluster.
        """
        self._client.check_open()
        if not queues:
            raise ConfigError("name at least one queue to pop from")
        opened = [self._client.queues.get(queue.name) for queue in queues]
        parts = [each.parts for each, queue in zip(opened, queues, strict=True) if each and each.queue() is queue]
        if len(parts) < len(queues):
            raise ConfigError("a queue to pop from belongs to another cluster")
        check_pop(prefetch, limit)
        return Deliveries([each.line for each in parts], prefetch, limit, wait, queues=queues)

    def every(
        self,
        when: Duration | str,
        queue: Queue[T],
        item: T | Callable[[datetime], T],
        *,
        name: str | None = None,
        offset: Duration = 0.0,
        zone: tzinfo | str | None = None,
        catch_up: Duration = CATCH_UP,
        missed: Missed = "last",
        **options: Unpack[RepeatedOptions],
    ) -> Recurring[T]:
        """Push ``item``, or the result of ``item(moment)``, at every moment: once, no matter how many processes declare
        it.

        ``when``: seconds between two moments (multiples of it since 1970, plus ``offset``), or a cron expression (extra
        ``cron``; in the time zone ``zone``, which may be a name such as "Europe/Berlin", None: UTC). ``name``
        identifies the schedule, None: derived from the schedule and the item; every process must declare the same.
        One with a name is stored, so operators can pause and change it; see ``schedules`` for what holds then.
        ``item(moment)`` must return the same in every process: use the moment, not the clock or random numbers.

        ``catch_up``: seconds by which a moment may be pushed late, 1 to 604,800 (a week), default 240.  More than 240
        needs a ``name`` if moments are to count in which no process was there, and gives every item a key of its
        moment.  ``missed``: of several moments that are due, because no process was there to push them or this one was
        asleep, "all" are pushed, the "last" one, or with "none" only those that are less than 10 seconds late.
        Moments that are not pushed are reported as ``MomentsLost``.

        ``options``: those of each push, with the meanings of ``Queue.push``: all but ``id``, ``delay``, ``at`` and
        ``replace``.  With a ``key`` a moment pushes nothing while another item has it, the one of the moment before for
        instance; it excludes a ``catch_up`` of more than 240, with which each item has the key of its moment.

        Ends with the cluster, with ``cancel()``, or with ``async with``.
        Raises ``ConfigError`` for bad arguments.
        """
        self._client.check_open()
        schedule = read_schedule(when, offset=offset, zone=zone)
        divided("every()", options)  # finds options that there are not
        return self._client.schedules.declare(
            schedule, queue, item, name=name, catch_up=catch_up, missed=missed, **options
        )

    def schedules(self) -> StoredSchedules:
        """Return the schedules that this namespace stores: list them, add, change, pause and remove them at run time.

        Those that ``every`` declares with a ``name`` are stored, too; what it declares are defaults.  See
        ``StoredSchedules``.
        """
        return StoredSchedules(self._client, self.queue)

    def flows(self, state: FlowState | str | None = None) -> AsyncGenerator[FlowStatus]:
        """Iterate over the flows of all queues: ``async for status in cluster.flows()``; what has ended comes last.

        ``state``: only those in this state.  One that has ended is found for its ``keep``, with its figures and without
        ``ids``.  Raises ``ConfigError`` for an unknown state; ``Unavailable``, behind the others, if some queue cannot
        be asked.
        """
        self._client.check_open()
        return self._client.flows.every(check_state(state))

    # -- topics ------------------------------------------------------------------------------------------------------

    async def broadcast(self, topic: str, message: T, *, codec: Codec[T] = JSON) -> int:
        """Send a message to all present listeners of a topic; return their number, as one server counts it.

        Best effort: the message is not stored, and a process that does not listen at this moment misses it.  Push an
        item instead if it must not be lost.  ``codec``: how the message becomes bytes, at most 1 MiB.
        Raises ``Unavailable`` if no in-sync server answers: it may have been sent.  The same holds if this call is
        cancelled.  ``CodecError``, ``PayloadTooLarge``, ``ConfigError``: nothing was sent.
        """
        self._client.check_open()
        return await broadcast(self._client.shard, self.namespace, topic, message, codec)

    def listen(self, topic: str, *, codec: Codec[T] = JSON) -> Listener[T]:
        """Iterate over the messages that are broadcast to a topic: ``async for message in cluster.listen("topic")``.

        Each message is heard once, whichever in-sync servers it comes from.  A message that is sent while this client
        has no connection is lost, and so are the oldest of more than 1,000 unread ones.  ``async with`` listens
        immediately, and stops at its end.  Raises ``ConfigError`` for a bad name.
        """
        self._client.check_open()
        return Listener(self._client.shard, self._client.tasks, self.namespace, topic, codec)

    # -- names -------------------------------------------------------------------------------------------------------

    async def queues(self) -> list[str]:
        """List all queues that ever had an item and were not deleted since, and some that only had consumers.

        One that was emptied goes within about a quarter of an hour.  Asks for the figures of each, as ``statistics``
        does.  Raises ``Unavailable``.
        """
        return list(await self.statistics())

    async def _remembered(self) -> list[str]:
        """List all queues of which the servers remember something, also those that were deleted."""
        found = await together(replicas.names(calls.Queues()) for replicas in self._everywhere())
        return found[0] if len(found) == 1 else sorted({name for names in found for name in names})

    def _everywhere(self) -> Sequence[Replicas]:
        """Return the servers of the shards that are there; of all shards if none is."""
        here, _ = self._client.shards.reachable()
        return [shard.replicas for shard in here]

    # -- looking -----------------------------------------------------------------------------------------------------

    @property
    def view(self) -> View:
        """Which servers of the first shard are in sync, as this client knows it.

        Raises ``Closed`` if the cluster was never opened.
        """
        return self._client.shard.view

    async def consumers(self) -> Mapping[str, Consumer]:
        """Return every live consumer by owner id, with the number of its claims in each queue; reads all claims.

        Raises ``Unavailable``, also if ZooKeeper does not answer.
        """
        self._client.check_open()
        claims = await count_claims(self._everywhere(), await self._remembered())
        alive = await self._client.upgrading.consumers()
        return {owner: describe_consumer(info, claims.get(owner, {})) for owner, info in alive.items()}

    async def quiet(self, *owners: str, host: str | None = None) -> Quieted:
        """Have consumers claim nothing more and finish what they have, until ``unquiet`` or the end of their process.

        ``owners``: owner ids, as ``consumers`` returns them; or ``host``: all consumers of this machine that are there
        now.  One that started later is not quiet.  A call that waits for items keeps waiting, one that does not is told
        that none is ready; items claimed ahead go back.  In ``consumers`` a quiet one has ``quiet`` set, and has
        finished once it holds no claim.
        Returns within about ten seconds which of them say that they are quiet; the others follow when they hear.  If
        this call is cancelled, or the client dies, they may become quiet or not: repeat it.
        Raises ``ConfigError`` for a consumer that is not there, ``Unavailable`` without ZooKeeper.
        """
        self._client.check_open()
        return await self._client.quieting.quiet(owners, host)

    async def unquiet(self, *owners: str, host: str | None = None) -> Quieted:
        """Let quiet consumers claim again.  Arguments, return value and errors are those of ``quiet``."""
        self._client.check_open()
        return await self._client.quieting.unquiet(owners, host)

    async def clients(self) -> Mapping[str, ClientInfo]:
        """Return every live client by the id of its session: its host, its release, and the levels that it speaks.

        A consumer that has not named its release yet has no version.
        Raises ``Unavailable``.
        """
        self._client.check_open()
        return await self._client.upgrading.clients()

    @property
    def level(self) -> int:
        """The active level: what is written now, see docs/upgrading.md.  Raises ``Closed`` if it was never opened."""
        return min(self.view.level, self._client.upgrading.level)

    async def upgrade(self, level: int | None = None, *, force: bool = False) -> int:
        """Make a later level active; return it.  Clients that do not speak it are refused from then on.

        ``level``: None: the latest that this release speaks.  ``force``: even if ``clients()`` has some that do not
        speak it.  It is never lowered again; until it is raised, going back to the release before is safe.  A crash in
        the middle leaves some shards at the former level: call it again.

        Raises ``ConfigError`` if such clients are there, and names them; ``Unavailable``; ``OutcomeUnknown``: some
        shards, or all, have the level; call it again.
        """
        self._client.check_open()
        return await self._client.upgrading.upgrade(level, force=force)

    async def statistics(self, queues: Iterable[str] | None = None) -> Mapping[str, Statistics]:
        """Sum up these queues, None: every queue that ever had an item and was not deleted.  Raises ``Unavailable``."""
        self._client.check_open()
        names = await self._remembered() if queues is None else list(dict.fromkeys(queues))
        used = self._client.queues

        def read(name: str) -> Awaitable[Statistics]:
            return read_all_statistics(self._client.shards, name, used[name].parts.held if name in used else 0)

        found: dict[str, Statistics] = {}
        for start in range(0, len(names), READ_AT_ONCE):
            some = names[start : start + READ_AT_ONCE]
            found |= zip(some, await asyncio.gather(*map(read, some)), strict=True)
        return found if queues is not None else {name: told for name, told in found.items() if not told.deleted}

    @property
    def queues_in_use(self) -> tuple[str, ...]:
        """Names of the queues that this process has asked for by ``queue``, and that it holds or has used lately."""
        return tuple(self._client.queues)

    def health(self) -> Health:
        """Report what this client knows, without asking a server.  Raises ``Closed`` if it was never opened."""
        return self._client.health()

    async def check_health(self) -> Health:
        """Connect to servers that this client has not met, as those added after it was made; report the health."""
        self._client.check_open()
        for shard in self._client.shards.open.values():
            unknown = [id for id in shard.view.receivers if not shard.fleet.servers[id].identity]
            told = await shard.fleet.identify(unknown)
            if shard.membership.only_looks:
                shard.membership.overlook({id: who for id, who in told.items() if isinstance(who, Answer)})
        return self.health()

    async def ping(self) -> None:
        """Ask every in-sync server whether a push and a claim could be made now.  Nothing is written.

        Returns if so.  Raises what they would raise: ``NotEnoughReplicas``, ``Unavailable``, ``ConfigError``; the
        first ones only after ``operation_timeout`` if a server that does not answer has to be evicted first.
        """
        self._client.check_open()
        await self._client.ping()

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Let an observer see what this client does: metrics, traces, hooks.  May be called before the cluster is open.

        What the observer does not override costs nothing.  Returns a function that removes it.
        """
        return self._client.observers.add(observer)

    # -- servers -------------------------------------------------------------------------------------------------------

    async def add_server(self, url: str, *, name: str | None = None, force: bool = False, shard: str = FIRST) -> str:
        """Add a Redis server to the namespace; return its name once it is in sync.

        ``name``: its name, None: host and port, or the next one (``redis-4`` after ``redis-3``) where the others have
        names.  ``shard``: the one that gets another copy of its items.  All that the server holds of this namespace is
        wiped.  One that belongs to another deployment of the same name is refused, unless ``force`` takes it over.
        Other clients find its URL in the view, without user and password: they use those of the first server that they
        were given.  If this call is cancelled, the server is still caught up.
        Raises ``ConfigError`` for a server that cannot be used, ``Unavailable`` if it or ZooKeeper does not answer.
        """
        client = self._client
        client.check_open()
        check_url(url)
        used = client.shards.find(check_shard(shard))
        if name is None:
            taken = {id for each in client.shards.open.values() for id in (*each.view.servers, *each.fleet.urls)}
            name = choose_name(url, used.view.servers, taken)
        id = self._check_new_name(name, used)
        _check_tls(client, {id: url})
        await used.roster.add(id, url, force=force)
        if id in used.view.receivers:
            # By a life that may have ended unnoticed, as when it was just taken over: a call that meets it evicts it.
            with suppress(ZkrqError):
                await used.ask_for_room()
        used.repairer.want(id)
        while not await used.roster.wait_in_sync(id, OPEN_CHECK_SECONDS):
            client.check_open()
        return id

    async def remove_server(self, name: str) -> None:
        """Remove a server from the namespace, dead or alive; its data stays on it, and no client asks it again.

        To replace a dead server, add the new one first.  Raises ``ConfigError`` for an unknown name, or if too few
        servers would be left; ``Unavailable`` without ZooKeeper: the server may be removed.
        """
        self._client.check_open()
        await self._client.shards.with_server(ServerId(name)).roster.remove(ServerId(name))

    async def rename_server(self, name: str, new: str) -> None:
        """Give a server of the namespace another name, while all clients continue; nothing is copied.

        Clients that connect later are given it under the new name (``ZKRQ_REDIS``); one that is given the former name
        uses what the view says.  Raises ``ConfigError`` for an unknown name, and for a new one that is bad or taken;
        ``Unavailable`` without ZooKeeper: the server may be renamed.
        """
        client = self._client
        client.check_open()
        used = client.shards.with_server(ServerId(name))
        await used.roster.rename(ServerId(name), self._check_new_name(new, used))

    def _check_new_name(self, name: str, used: Shard) -> ServerId:
        """Return a name that no server of another shard has.  Raises ``ConfigError``."""
        id = ServerId(check_id("a server's name", name))
        for other in self._client.shards.open.values():
            if other is not used and id in other.view.servers:
                raise ConfigError(f"there is a server {id} in shard {other.name}: use another name")
        return id

    # -- shards --------------------------------------------------------------------------------------------------------

    @property
    def shards(self) -> Mapping[str, ShardStatus]:
        """The shards of this namespace by name, as this client knows them.

        Raises ``Closed`` if the cluster was never opened.
        """
        return self._client.shards.status()

    async def add_shard(self, name: str, redis: RedisServers, *, min_replicas: int | None = None) -> None:
        """Add a shard of these servers to the namespace; when this returns, it takes its part of the pushes.

        ``name``: 1 to 32 of a-z, 0-9, ``_`` and ``-``.  ``redis``, ``min_replicas``: as for ``connect``.  Its servers
        must be reachable by all clients, which find them by themselves, and hold nothing of this namespace.  A shard
        that is draining takes pushes again.  If this fails or is cancelled, call it again.
        Raises ``ConfigError`` for servers that cannot be used, ``Unavailable`` if one of them, the first shard or
        ZooKeeper does not answer, ``OutcomeUnknown``.
        """
        self._client.check_open()
        servers = name_servers(redis)
        _check_tls(self._client, servers)
        await self._client.resharding.add(check_shard(name), servers, min_replicas)

    async def drain_shard(self, name: str) -> None:
        """Push no more plain items to a shard; consumers empty it.  ``shard_sizes`` shows what is left.

        Items with an ``id`` or a ``key``, and those of queues with a ``max_size``, still go there if it is the home of
        their queue, because no other shard could know whether such an item is there already.  If this fails or is
        cancelled, call it again.
        Raises ``ConfigError`` for an unknown name, and for the only shard that takes pushes; ``Unavailable``.
        """
        self._client.check_open()
        await self._client.resharding.drain(check_shard(name))

    async def remove_shard(self, name: str, *, force: bool = False) -> None:
        """Remove a draining shard in which nothing is left; its servers are free then, once they were flushed.

        ``force``: also within 300 seconds after ``drain_shard``, and while the shard remembers ids of removed items of
        queues whose home it was; a push that is repeated under such an id may put its item into the queue again, and
        one of an item that was placed there raises ``ConfigError``.
        Raises ``ConfigError``, and changes nothing, if an item is left, it is too early, or this program's clock is
        wrong, by which that is judged; ``Unavailable``: it may be closed to pushes, so call it again.
        """
        self._client.check_open()
        if not force:
            await self._client.shard.check_own_clock()
        await self._client.resharding.remove(check_shard(name), force=force)

    async def shard_sizes(self, name: str) -> Mapping[str, Sizes]:
        """Count what is left in a shard, of every queue that has an item there.  Raises ``ConfigError``,
        ``Unavailable``."""
        self._client.check_open()
        replicas = self._client.shards.find(check_shard(name)).replicas
        found = {
            queue: (await read_statistics(replicas, queue)).sizes for queue in await replicas.names(calls.Queues())
        }
        return {queue: sizes for queue, sizes in found.items() if any(sizes)}

    # -- after a disaster ----------------------------------------------------------------------------------------------

    async def recover(
        self,
        servers: Sequence[str] | Mapping[str, str],
        *,
        without_zookeeper: bool = False,
        older_zookeeper: bool = False,
        shard: str = FIRST,
    ) -> None:
        """Continue with the data of these servers after all in-sync ones were lost, without waiting for the others.

        For operators, if the namespace does not recover by itself.  Items that only the other servers held are lost,
        which is logged.  Servers without data start empty.  Call it instead of entering ``async with``, or inside; for
        servers of another shard than the first one inside.

        ``without_zookeeper``: ZooKeeper has lost the namespace, so found it again from what these servers hold, in a
        cluster that was made with ``found=True`` and is not entered.  Name those that were in sync: if one was not,
        items that were acked since may be delivered again.  Only a namespace of one shard can be founded again.

        ``older_zookeeper``: ZooKeeper was restored from an older backup, so that servers have seen a later view than
        the one that it has: write a view over it, above all that they have seen, for what these servers hold.  The same
        is at stake.  Call it instead of entering ``async with`` for the first shard, and inside for another ``shard``,
        afterwards.  One that the restored shard map lacks is added again: give ``servers`` as URLs by name then.

        Raises ``ConfigError`` if a server of the view is alive, or for an unknown name; ``Unavailable``: repeat it.
        """
        named = frozenset(map(ServerId, servers))
        if without_zookeeper:
            if not self._client.settings.found:
                raise ConfigError("to found the namespace again, make the cluster with found=True")
            await self._client.refound(named)
            return
        if older_zookeeper:
            await self._reinstate(shard, named, name_servers(servers) if isinstance(servers, Mapping) else {})
            return
        if self._client.is_open:
            self._client.check_open()
            if await self._client.shards.recover(named):
                return
            if len(theirs := {self._client.shards.with_server(id) for id in named}) > 1:
                raise ConfigError("these servers belong to several shards: recover one after the other")
            for each in theirs:
                await each.repairer.recover_with(named)
            return
        try:
            if not await self._client.open(recover_with=named):
                raise ConfigError("nothing to recover: a server of the view is alive")
        finally:
            await self.aclose()

    async def _reinstate(self, shard: str, servers: frozenset[ServerId], urls: Mapping[str, str]) -> None:
        if shard == FIRST:
            await self._client.reinstate(servers)
            return
        self._client.check_open()
        await self._client.resharding.reinstate(check_shard(shard), servers, urls)


def _check_tls(client: Client, servers: Mapping[str, str]) -> None:
    """Raise ``ConfigError`` for a server without TLS where this client was told to use it: clients that were told the
    same would not connect to that server, and write nothing more."""
    for name, url in servers.items():
        if client.shards.told.lacks_tls(url):
            raise ConfigError(
                f"server {name} would be used without TLS, which this client was told to use: write rediss://"
            )
