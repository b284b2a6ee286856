"""What a Redis server says of itself: its life, and whether it can be used."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server said when it was connected to.

    ``epoch``: the latest that it has seen.  ``queues``: how many it knows.  ``clock_us``: its clock.  ``ahead``:
    seconds by which its clock was ahead of this client's, negative: behind; 0 within the time that the question took.
    Memory is in bytes, 0: no limit.
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
        """Whether it was enrolled by another deployment than this, or holds queues that nobody vouches for."""
        return self.deployment != deployment and bool(self.generation or self.queues)

    @property
    def unfit(self) -> str | None:
        """Why this server cannot be used, or None."""
        if self.role != "master":
            return f"role is {self.role!r}, must be 'master': zkrq replicates by itself"
        if self.maxmemory_policy != "noeviction":
            return f"maxmemory-policy is {self.maxmemory_policy!r}, must be 'noeviction': Redis would drop items"
        if self.cluster:
            return "cluster mode is on: zkrq wants independent servers"
        return None
