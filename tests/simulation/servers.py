"""The simulated Redis servers: a ``MiniRedis`` each, with what may happen to its process and its data."""

from __future__ import annotations

import enum
import random
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from tests.simulation.loop import WORLD, Loop
from tests.simulation.patches import EPOCH
from tests.simulation.trace import Trace
from zkrq.replication.stream import ErrorReply
from zkrq.testing.redis.server import Dump, MiniRedis


class ProcessState(enum.Enum):
    UP = "up"
    STOPPED = "stopped"  # SIGSTOP: what comes is kept by the kernel
    DOWN = "down"


class Pace(NamedTuple):
    """What work costs: seconds for each element that a command touches, and for each byte that travels."""

    seconds_an_element: float = 0.0
    seconds_a_byte: float = 0.0

    @property
    def costs(self) -> bool:
        return self.seconds_an_element > 0


class Far(Protocol):
    """The far end of a connection, as a server sees it."""

    def reply(self, reply: object) -> None:
        """Send a reply, or a message of a subscription."""
        ...

    def refusal(self, command: list[bytes]) -> ErrorReply | None:
        """What a client is answered that has no right to this command, None if it has."""
        ...

    def on_end(self, call: Callable[[], None]) -> None:
        """Have ``call`` made when this connection has ended."""
        ...

    def reset(self) -> None:
        """The process at the server's end has died."""
        ...


class SimServer:
    """One server by its name.  ``redis`` is its present life; it keeps its data also while it is down (the disk)."""

    def __init__(self, name: str, loop: Loop, chance: random.Random, trace: Trace) -> None:
        self.name = name
        self.status = ProcessState.UP
        self.lives = 0
        self.executed = 0
        self._loop = loop
        self._chance = chance
        self._trace = trace
        self.clock = 0.0
        """Seconds by which its clock is ahead."""
        self.pace = Pace()
        self._busy_until = 0.0
        self._connections: dict[Far, None] = {}
        self._pending: deque[tuple[Far, list[bytes]]] = deque()
        self.redis = self._begin()
        self.old_dump: Dump | None = None
        self.closed = ""
        """The error with which it refuses every client, empty: none."""
        self.mistakes: list[str] = []
        """Errors of scripts: they refuse by a status."""

    def __repr__(self) -> str:
        return f"<SimServer {self.name} {self.status.value} life {self.lives}>"

    def _begin(self) -> MiniRedis:
        self.lives += 1
        return MiniRedis(run_id=f"{self._chance.getrandbits(160):040x}", clock_us=self.clock_us)

    def clock_us(self) -> int:
        """What its clock shows, in microseconds."""
        return int((EPOCH + self._loop.skipped + self.clock + self._loop.now) * 1e6)

    # -- connections -------------------------------------------------------------------------------------------------

    def accept(self, far: Far) -> None:
        self._connections[far] = None

    def forget(self, far: Far) -> None:
        """This connection has ended."""
        self._connections.pop(far, None)

    def take(self, far: Far, command: list[bytes]) -> None:
        """A command has arrived; a stopped server executes it when it goes on, also if its client has gone by then."""
        match self.status:
            case ProcessState.UP:
                self._execute(far, command)
            case ProcessState.STOPPED:
                self._pending.append((far, command))
            case ProcessState.DOWN:
                pass

    def _execute(self, far: Far, command: list[bytes]) -> None:
        self.executed += 1
        if command[0] == b"SUBSCRIBE":
            channel = command[1]
            far.on_end(self.redis.subscribe(channel, lambda text: far.reply([b"message", channel, text])))
            far.reply([b"subscribe", channel, 1])
            return
        before = self.redis.touched
        reply = far.refusal(command) or self.redis.execute(*command)
        if isinstance(reply, ErrorReply) and reply.text.startswith("ERR ") and " script: " in reply.text:
            self.mistakes.append(f"{self.name} at {self._loop.now:.3f} s: {reply.text}")
        if not self.pace.costs:
            far.reply(reply)
            return
        # A refusal costs nothing, but no reply overtakes another one.
        took = (self.redis.touched - before) * self.pace.seconds_an_element
        self._busy_until = max(self._loop.now, self._busy_until) + took
        self._loop.call_at(self._busy_until, far.reply, reply, context=WORLD)

    # -- faults ------------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """The process dies; what its disk holds is all that it had written."""
        self.status = ProcessState.DOWN
        self._pending.clear()
        for far in tuple(self._connections):
            far.reset()
        self._connections.clear()

    def start(self, dump: Dump | None) -> None:
        """A new process begins with this data."""
        self.redis = self._begin()
        self.redis.restore(dump)
        self.status = ProcessState.UP

    def stop(self) -> None:
        """SIGSTOP."""
        if self.status is ProcessState.UP:
            self.status = ProcessState.STOPPED

    def go_on(self) -> None:
        """SIGCONT: all that came meanwhile is executed, each connection's in its order, the connections mixed."""
        if self.status is not ProcessState.STOPPED:
            return
        self.status = ProcessState.UP
        queues: dict[Far, deque[list[bytes]]] = {}
        for far, command in self._pending:
            queues.setdefault(far, deque()).append(command)
        self._pending.clear()
        while queues:
            far = self._chance.choice(list(queues))
            self._execute(far, queues[far].popleft())
            self._trace.counts["executed after a stop"] += 1
            if not queues[far]:
                del queues[far]
