"""Hold what `zkrq doctor` has read: of each Redis server, of ZooKeeper, of the namespace.  No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from zkrq.protocol.view import Life

if TYPE_CHECKING:
    from zkrq.base.settings import Settings
    from zkrq.coordination.zookeeper.asking import HostReport
    from zkrq.protocol.levels import ClientInfo
    from zkrq.protocol.replies import Answer
    from zkrq.protocol.view import ServerId, View


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """One Redis server.

    ``url``: without its password.  ``refusal``: why nothing could be read of it, or it cannot be used, None if it can.
    ``info``: the fields of INFO.  ``ahead``: seconds by which its clock is ahead of this client's.  ``round_trip``:
    seconds, the median of some.  ``appendfsync``: None if this user may not read it.  ``lacking``: commands for which
    the user has no right.  ``generation`` and the fields after it: who enrolled it, empty if no client did.
    ``set_aside``: number of damaged entries that are set aside, by queue, of the first ``QUEUES_LOOKED_AT`` queues.
    """

    id: ServerId
    url: str
    refusal: Answer | None = None
    info: Mapping[str, str] = field(default_factory=dict[str, str])
    ahead: float = 0.0
    round_trip: float = 0.0
    appendfsync: str | None = None
    lacking: tuple[str, ...] = ()
    generation: str = ""
    epoch: int = 0
    name: str = ""
    deployment: str = ""
    queues: int = 0
    set_aside: Mapping[str, int] = field(default_factory=dict[str, int])

    def number(self, name: str) -> int:
        """Return a field of INFO that is a number; 0 if there is none."""
        text = self.info.get(name, "")
        return int(text) if text.isdecimal() else 0

    @property
    def version(self) -> str:
        """The version that it reports: Valkey's own, where it is Valkey."""
        return self.info.get("valkey_version") or self.info.get("redis_version", "")

    @property
    def product(self) -> str:
        return "Valkey" if "valkey_version" in self.info else "Redis"


class Facts(NamedTuple):
    """Everything that was read.

    ``given``: the servers of the first shard that this client was given.  ``hosts``: ZooKeeper's servers.  ``session``:
    why there is no session, or no such namespace; empty if there is one.  ``passing``: whether that may pass by itself.
    ``granted``: the session timeout that ZooKeeper gives, in seconds, 0: unknown.  ``first``: the first shard's name.
    ``views``: by shard, empty if the namespace's could not be read.  ``unreadable``: by shard, why its view, or the map
    of all, cannot be read by this release, and what to do.  ``clients``: those that are there, by session.  ``latest``:
    the last level that this release speaks.
    """

    settings: Settings
    given: tuple[ServerId, ...]
    servers: Mapping[ServerId, ServerFacts]
    hosts: tuple[HostReport, ...]
    session: str = ""
    passing: bool = False
    granted: float = 0.0
    first: str = ""
    views: Mapping[str, View] = {}
    unfounded: bool = False
    unreadable: Mapping[str, tuple[str, str]] = {}
    clients: Mapping[str, ClientInfo] = {}
    latest: int = 0

    @property
    def read(self) -> dict[ServerId, ServerFacts]:
        """The servers of which something could be read."""
        return {id: each for id, each in self.servers.items() if each.refusal is None}

    @property
    def strangers(self) -> set[ServerId]:
        """The given servers that no view names: each was removed, renamed, or never added."""
        known = {id for view in self.views.values() for id in view.servers}
        return set(self.given) - known if self.first in self.views else set()

    @property
    def lives(self) -> dict[ServerId, Life]:
        """The lives of these servers."""
        return {id: Life(each.info.get("run_id", ""), each.generation) for id, each in self.read.items()}
