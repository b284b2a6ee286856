"""Count what clients ask of ZooKeeper and Redis without moving an item, by the constants that the code has today.

``check.py`` compares the counts with those of a real ZooKeeper server.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.scale import sizes
from zkrq.base.settings import Settings
from zkrq.coordination.zookeeper.coordinator import RESYNC_INTERVAL
from zkrq.coordination.zookeeper.link import HEARTBEAT_INTERVAL, HEARTBEAT_TIMEOUT
from zkrq.repair.fencing import FOLLOWERS, INTERVAL_SECONDS, MAX_STRETCH
from zkrq.repair.repairer import LOOK_SECONDS

SESSION_TIMEOUT = Settings().session_timeout

ANSWER_SECONDS = SESSION_TIMEOUT * HEARTBEAT_TIMEOUT
"""Seconds after which a client without an answer leaves its ZooKeeper server."""

REPAIR_READ = 2
"""Requests of a client that tries to bring a server back: a sync, the view."""

DAY = 86_400.0

CHANGES = 3
"""Changes of the view when a server dies or is restarted: evicted, learner, member."""

VIEW_READ = 3
"""Requests of a client that is notified of a view: the stat with a new watch, a sync, the view."""

VIEW_RACE = 4
"""More of one that wanted to evict the same server, and was not the first: the write, what is there instead, a sync,
the view."""

OWNERS_PAGE = 500
"""Owners in one answer of ``owners.lua``."""

CALL_SECONDS, OWNER_SECONDS = 40e-6, 2e-6
"""Processor time of Redis for such an answer, and for each owner in it; ``check.py`` measures both."""

OWNER_BYTES = len(sizes.OWNER) + 8
"""Of an owner in such an answer: the text, and its frame in Redis' protocol."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """Clients that all push to and consume from one queue.

    subset: shards of each client.
    lookers: clients that watch the list of consumers and look for orphans, each in every shard; None: all watch it, and
    share the looks as ``zkrq.repair.fencing`` has it today, each in its own shards.
    one_list: whether a look at several shards asks for the list once, not once for each as it does today.
    servers: of each shard.
    """

    shards: int
    clients: int
    subset: int
    lookers: int | None = None
    one_list: bool = False
    servers: int = 3

    @property
    def of_a_shard(self) -> float:
        """Clients of one shard, on average."""
        return self.clients * self.subset / self.shards

    @property
    def watching(self) -> int:
        """Clients that watch the list of consumers."""
        return self.clients if self.lookers is None else min(self.lookers, self.clients)

    @property
    def looking_at_once(self) -> int:
        """Clients that look for orphans when a consumer has come or gone, on average."""
        return min(self.watching, 1 + FOLLOWERS) if self.lookers is None else self.watching

    @property
    def looking(self) -> float:
        """Clients that look for orphans in each interval, on average, while nothing happens."""
        if self.lookers is not None:
            return self.watching
        return max(self.looking_at_once, 1 + (self.clients - 1) / MAX_STRETCH)

    @property
    def lists_of_a_look(self) -> int:
        """Times that a client asks for the list of consumers when it looks for orphans."""
        if self.one_list:
            return 1
        return self.subset if self.lookers is None else self.shards

    # -- ZooKeeper, all the time ------------------------------------------------------------------------------------

    @property
    def heartbeats(self) -> float:
        """Per second, each by way of ZooKeeper's leader."""
        return self.clients / (SESSION_TIMEOUT * HEARTBEAT_INTERVAL)

    @property
    def looks_again(self) -> float:
        """Requests per second that renew a watch without a notice: on each view of the subset, the shard map (if there
        is more than one shard), the election, and the list of consumers."""
        watched = self.subset + (self.shards > 1) + 1
        return (self.clients * watched + self.watching) / RESYNC_INTERVAL

    @property
    def looks_for_orphans(self) -> float:
        """Requests per second for the list of consumers, beside as many syncs."""
        return self.looking * self.lists_of_a_look / INTERVAL_SECONDS

    @property
    def requests(self) -> float:
        """All requests to ZooKeeper per second, while nothing happens."""
        return self.heartbeats + self.looks_again + 2 * self.looks_for_orphans

    @property
    def by_the_leader(self) -> float:
        """Those of them that pass ZooKeeper's leader: the syncs."""
        return self.heartbeats + self.looks_for_orphans

    @property
    def list_bytes(self) -> int:
        """Of one answer with all consumers."""
        return sizes.children_reply(self.clients)

    @property
    def list_bytes_per_second(self) -> float:
        """Of these answers together, while nothing happens."""
        return self.list_bytes * (self.watching / RESYNC_INTERVAL + self.looks_for_orphans)

    @property
    def watches(self) -> float:
        """On views alone, in all of ZooKeeper's servers together."""
        return float(self.clients * self.subset)

    # -- ZooKeeper, when something happens --------------------------------------------------------------------------

    def view_changes(self, *, deaths: float = 1 / (90 * DAY), restarts: float = 1 / (30 * DAY)) -> float:
        """Changes of views per second, of all shards.  deaths, restarts: of one server, per second."""
        return self.shards * self.servers * (deaths + restarts) * CHANGES

    @property
    def burst(self) -> float:
        """Requests that follow the death of one server, if every client of the shard tries to evict it."""
        return self.of_a_shard * (VIEW_READ + VIEW_RACE)

    @property
    def while_away(self) -> float:
        """Further requests per second as long as a server is away: every client of the shard tries to bring it back."""
        return self.of_a_shard * REPAIR_READ / LOOK_SECONDS

    @property
    def syncs_while_away(self) -> float:
        """Those of them that pass ZooKeeper's leader."""
        return self.while_away / REPAIR_READ

    @property
    def all_lists(self) -> float:
        """Bytes of the lists that follow one consumer that comes or goes: those with the new watches, and those to look
        for orphans."""
        return float(self.list_bytes * (self.watching + self.looking_at_once * self.lists_of_a_look))

    @property
    def arrival(self) -> float:
        """Requests that follow a consumer that comes or goes: those lists, and a sync before each to look."""
        return float(self.watching + 2 * self.looking_at_once * self.lists_of_a_look)

    @property
    def restart_lists(self) -> float:
        """Bytes of the lists while all clients restart, if each that goes and each that comes causes its own."""
        return 2 * self.clients * self.all_lists

    # -- Redis ------------------------------------------------------------------------------------------------------

    @property
    def connections(self) -> float:
        """Of the server that is the primary of a queue on which every client waits: calls, and the wake-ups."""
        return 2 * self.of_a_shard

    @property
    def connections_of_a_client(self) -> float:
        """To all servers of its shards, and once more to the primaries, for wake-ups."""
        return self.subset * (self.servers + 1)

    @property
    def looks(self) -> float:
        """Processors of the primary that are busy telling all owners to each client that looks for orphans."""
        return self._lookers_of_a_shard / INTERVAL_SECONDS * self._look_seconds

    @property
    def restart_looks(self) -> float:
        """Seconds of a processor for the same after all clients were restarted: each looks when it starts."""
        return (self.of_a_shard if self.lookers is None else self.looking) * self._look_seconds

    @property
    def look_bytes(self) -> float:
        """Bytes per second of these answers."""
        return self._lookers_of_a_shard / INTERVAL_SECONDS * self.of_a_shard * OWNER_BYTES

    @property
    def _look_seconds(self) -> float:
        owners = self.of_a_shard
        return max(1.0, owners / OWNERS_PAGE) * CALL_SECONDS + owners * OWNER_SECONDS

    @property
    def _lookers_of_a_shard(self) -> float:
        """Clients that look for orphans in one shard in each interval, on average."""
        return self.looking * self.subset / self.shards if self.lookers is None else self.looking
