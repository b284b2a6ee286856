"""Bound how far the clocks of clients and servers may differ, and find the wrong one.

A push carries its client's time, and each server judges its age by its own clock.  So one server whose clock is wrong
refuses pushes that all others accept.  The clock that is wrong is the one that differs from the majority of the clocks
of servers and client; with two servers, the client's clock decides.  Where no majority agrees, no clock is called
wrong: a guess would evict a healthy server.

No I/O: the readings are arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from zkrq.protocol.view import Life, ServerId

PUT_WINDOW = 300.0
"""Seconds after which a push in flight is refused; tombstones live twice as long.  If the clocks of a client and a
server differ by more, every push is refused."""

PUT_WINDOW_MS = round(PUT_WINDOW * 1000)

CLOCK_BOUND = PUT_WINDOW / 3
"""Seconds by which a server's clock may differ from the others' before the server leaves the view.  Two clocks within
the bound differ by at most two thirds of the put window; the last third covers a push in flight."""

CLOCK_WARNING = 5.0
"""Seconds of difference between the clocks of a client and a server that cause a warning."""


class Reading(NamedTuple):
    """A reading of a server process's clock, in microseconds, and when a client asked, by the client's own clock."""

    run_id: str
    clock_us: int
    asked_at: float


class Expected(NamedTuple):
    """The time that a server's clock should show, in microseconds, 0: unknown; and for how many milliseconds the client
    has known that process of the server.  It cannot notice a change of the clock that was made before."""

    clock_us: int
    known_ms: int


UNKNOWN = Expected(0, 0)


class Clocks:
    """Predict what the servers' clocks say now, by this client's monotonic clock since each was last read.

    Readings are kept per queue, so that a change of a clock is noticed in all queues.  For a queue that this client has
    not claimed from yet, the first reading of all is used, which the client makes when it connects.
    """

    def __init__(self) -> None:
        self._read: dict[tuple[str, ServerId], tuple[Life, int, float]] = {}

    def expected(self, queue: str, server: ServerId, life: Life, now: float, first: Reading | None) -> Expected:
        """Return what the clock of this life of the server should say.

        ``now``: seconds, when a call is sent.  ``first``: the first reading of this server's clock.
        """
        if first is None or first.run_id != life.run_id:
            return UNKNOWN
        known, clock_us, read_at = self._read.get((queue, server), (None, 0, 0.0))
        if known != life:
            _, clock_us, read_at = first
        return Expected(clock_us + round((now - read_at) * 1e6), round((now - first.asked_at) * 1e3))

    def note(self, queue: str, server: ServerId, life: Life, clock_us: int, sent_at: float) -> None:
        """Keep the reading of a call that was sent at ``sent_at``; so a connection that is always slow looks like no
        jump."""
        self._read[queue, server] = life, clock_us, sent_at


class Compared(NamedTuple):
    """The clocks of some servers and of one client, compared.

    ``ahead``: seconds by which each server's clock is ahead of this client's, negative if it is behind.  ``wrong``: why
    each server is at fault whose clock differs from the majority's.  ``client``: seconds by which this client's clock
    is ahead of the majority's, 0 while it agrees.  ``undecided``: whether clocks differ and no majority agrees.
    """

    ahead: Mapping[ServerId, float]
    wrong: Mapping[ServerId, str]
    client: float = 0.0
    undecided: bool = False

    @property
    def sentences(self) -> tuple[str, ...]:
        """Say which clocks are wrong, and what to do; empty if all agree."""
        texts = [f"server {id}: {reason}" for id, reason in self.wrong.items()]
        if self.client:
            texts.append(f"{_apart(_OWN, self.client, _SERVERS)}: {CORRECT_CLOCK}")
        if self.undecided:
            read = ", ".join(_apart(id, seconds, _CLIENT) for id, seconds in sorted(self.ahead.items()))
            texts.append(f"the clocks differ, and no majority agrees ({read}): set them right")
        return tuple(texts)

    @property
    def kind(self) -> tuple[frozenset[ServerId], bool, bool]:
        """What is wrong, without the seconds, which differ from one reading to the next."""
        return frozenset(self.wrong), bool(self.client), self.undecided

    @property
    def stops_pushes(self) -> bool:
        """Whether some server refuses this client's pushes for their age."""
        return any(abs(seconds) > PUT_WINDOW for seconds in self.ahead.values())

    def against(self, server: ServerId) -> str:
        """Say why this server must not join the view: its clock is wrong, or may be; empty if it may join."""
        if self.undecided and abs(self.ahead.get(server, 0.0)) > CLOCK_BOUND:
            return "; ".join(self.sentences)
        return self.wrong.get(server, "")

    def refusing(self) -> dict[ServerId, str]:
        """Return the servers that refuse this client's pushes for their age while others accept them, and why.

        Empty if all refuse them, since then nothing is written by trying.
        """
        refusing = [id for id, seconds in sorted(self.ahead.items()) if abs(seconds) > PUT_WINDOW]
        if len(refusing) == len(self.ahead):
            return {}
        return {id: self.wrong.get(id) or "; ".join(self.sentences) for id in refusing}


CORRECT_CLOCK = "set it right (chrony, NTP)"
"""What to do about a wrong clock."""


AGREED = Compared({}, {})
"""No clock is known to differ."""


def compare(ahead: Mapping[ServerId, float], bound: float = CLOCK_BOUND) -> Compared:
    """Find the clocks that differ by more than ``bound`` seconds from the majority of the servers' and this client's.

    ``ahead``: seconds by which each server's clock is ahead of this client's, negative if it is behind.
    """
    clocks = sorted((0.0, *ahead.values()))
    # A majority that agrees contains the median; of an even number of clocks, one of the two in the middle.
    for middle in (clocks[(len(clocks) - 1) // 2], clocks[len(clocks) // 2]):
        if 2 * sum(abs(each - middle) <= bound for each in clocks) > len(clocks):
            break
    else:
        return Compared(ahead, {}, undecided=True)
    wrong = {
        id: f"{_apart('its clock', seconds - middle, _OTHERS)}: {CORRECT_CLOCK}"
        for id, seconds in sorted(ahead.items())
        if abs(seconds - middle) > bound
    }
    return Compared(ahead, wrong, client=-middle if abs(middle) > bound else 0.0)


def find_apart(ahead: Mapping[ServerId, float], bound: float) -> list[str]:
    """List the servers whose clocks differ by more than ``bound`` seconds from this client's, and say which clock is
    wrong.

    ``ahead``: seconds by which each server's clock is ahead of this client's, negative if it is behind.
    """
    texts: list[str] = []
    compared = compare(ahead, bound)
    for id, seconds in sorted(ahead.items()):
        if abs(seconds) <= bound:
            continue
        odd = "one of the two clocks is wrong"
        if (id in compared.wrong) != bool(compared.client):
            odd = f"it is {'this client' if compared.client else id} that differs from the others"
        texts.append(f"the clock of server {_apart(id, seconds, _CLIENT)}: {odd}")
    return texts


_OWN, _CLIENT, _SERVERS, _OTHERS = "this client's clock", "this client's", "the servers'", "the others'"


def _apart(clock: str, seconds: float, other: str) -> str:
    return f"{clock} is {abs(seconds):.1f} s {'ahead of' if seconds > 0 else 'behind'} {other}"
