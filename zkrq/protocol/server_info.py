"""Read what a Redis server reports about itself: its life, and whether it can be used."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from zkrq.protocol.keys import key

# The first version of Redis that has functions.  Valkey reports a later one, for clients that look at nothing else.
OLDEST = (7, 0)


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """A server's report at the time of its connection.

    ``epoch``: the latest that it has seen.  ``queues``: how many it knows.  ``clock_us``: its clock.  ``ahead``:
    seconds by which its clock was ahead of this client's, negative if it was late; 0 within the time that the question
    took. Memory is in bytes, 0: no limit.
    """

    run_id: str
    version: tuple[int, ...]
    role: str
    maxmemory_policy: str
    cluster: bool
    generation: str
    epoch: int
    name: str
    deployment: str
    queues: int
    clock_us: int
    ahead: float
    maxmemory: int
    used_memory: int

    def is_foreign(self, deployment: str) -> bool:
        """Tell whether another deployment enrolled it, or it holds queues of an unknown deployment."""
        return self.deployment != deployment and bool(self.generation or self.queues)

    @property
    def unfit(self) -> str | None:
        """Why this server cannot be used, or None."""
        if self.role != "master":
            return f"role is {self.role!r}, must be 'master': zkrq replicates by itself"
        if self.cluster:
            return "cluster mode is on: zkrq needs independent servers"
        return None

    @property
    def dropping(self) -> str | None:
        """Why this server may drop items, or None.  It is no reason to refuse a connection: a member that has to stay,
        because pushes need it, is used on."""
        if self.maxmemory_policy == "noeviction":
            return None
        return f"maxmemory-policy is {self.maxmemory_policy!r}, must be 'noeviction': Redis would drop items"

    @property
    def outdated(self) -> str | None:
        """Why this server cannot have the library of functions, or None.  It is no reason to evict a member, whose data
        is as good as ever, and which clients of an earlier zkrq may use."""
        if self.version >= OLDEST:
            return None
        return f"it is Redis {'.'.join(map(str, self.version))}, and zkrq needs Redis 7 or later, or Valkey"


def questions(namespace: str) -> tuple[tuple[str, ...], ...]:
    """Return the commands that ask a server for its identity."""
    return (
        ("INFO",),
        ("HMGET", key(namespace, "", "server"), "generation", "epoch", "name", "deployment"),
        ("SCARD", key(namespace, "", "queues")),
        ("TIME",),
    )


def read_server_info(replies: Sequence[object], asked_us: int, answered_us: int) -> ServerInfo:
    """Read the replies to ``questions``, which took from ``asked_us`` to ``answered_us`` by this client's clock.

    Raises ``ValueError`` for a server that cannot be used.
    """
    info, known, count, time = replies
    fields = read_info(cast(bytes, info))
    if not {"run_id", "redis_version", "role"} <= fields.keys():
        raise ValueError("INFO names no run_id, version and role: is this a proxy?")
    seconds, microseconds = cast(list[bytes], time)
    clock_us = int(seconds) * 1_000_000 + int(microseconds)
    own = read_own(cast(list[bytes | None], known))
    server = ServerInfo(
        run_id=fields["run_id"],
        version=tuple(int(part) for part in fields["redis_version"].split(".") if part.isdecimal()),
        role=fields["role"],
        maxmemory_policy=fields.get("maxmemory_policy", "unknown"),
        cluster=fields.get("cluster_enabled") == "1",
        generation=own.generation,
        epoch=own.epoch,
        name=own.name,
        deployment=own.deployment,
        queues=cast(int, count),
        clock_us=clock_us,
        ahead=(clock_us - min(max(clock_us, asked_us), answered_us)) / 1_000_000,
        maxmemory=int(fields.get("maxmemory", 0)),
        used_memory=int(fields.get("used_memory", 0)),
    )
    if server.unfit:
        raise ValueError(server.unfit)
    return server


class Own(NamedTuple):
    """What clients have written into a server about itself; see ``ServerInfo``."""

    generation: str
    epoch: int
    name: str
    deployment: str


_GENERATION, _EPOCH = re.compile(rb"[!-~]+"), re.compile(rb"[0-9]{1,15}")


def read_own(words: Sequence[bytes | None]) -> Own:
    """Read what a server holds about itself, as the scripts do (``lua/_gate.lua``).

    One whose generation or epoch is damaged is in no life that counts: it has no generation, until it is enrolled.
    """
    generation, epoch, name, deployment = (word or b"" for word in words)
    seen = int(epoch) if _EPOCH.fullmatch(epoch) else None
    is_whole = seen is not None and _GENERATION.fullmatch(generation)
    return Own(
        generation.decode() if is_whole else "",
        seen or 0,
        name.decode(errors="replace"),
        deployment.decode(errors="replace"),
    )


def read_info(info: bytes) -> dict[str, str]:
    """Read the fields of a reply to INFO."""
    lines = (line.partition(":") for line in info.decode(errors="replace").splitlines() if ":" in line)
    return {name: value for name, _, value in lines}
