"""Define the steps of which the protocol's operations consist.

An operation is a generator.  It yields *steps*, small values that say which server to ask what, or what to wait for,
and is sent the result of each: ``view = yield from Look()``, whose type the step names.  Where each call of Python is
counted, in pushes, claims and acks, it is ``view: View = yield Look()``, without the generator in between.

Between two yields nothing else of this client happens, so a decision cannot be
separated from its record.  The operation reads from top to bottom in the order in which things happen, and knows no
event loop, no Redis, no clock and no randomness; h11 did the same for HTTP.

A runner executes the steps: asyncio over real servers in production and, in virtual time, in the simulation; a random
scheduler in the model of the protocol, which runs these very generators with one rule switched off at a time.

A runner may also throw a ``Failure`` into the operation where it yields: ``TimeUp`` if the operation has no time left,
``StepFailed`` if a step failed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, Self, TypeVar

from zkrq.protocol.clocks import Compared, compare
from zkrq.protocol.replies import Answer, Status, Verdict, Why, denial
from zkrq.protocol.server_info import ServerInfo
from zkrq.protocol.view import Life, ServerId, View, ViewChange

if TYPE_CHECKING:
    from zkrq.protocol.calls import Call, Gone, NamesPage, Paged, Paging

C = TypeVar("C")
"""What a runner gives to the rows of its table beside a step."""

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

Answers = Mapping[ServerId, Answer]


# -- steps ------------------------------------------------------------------------------------------------------------


class Step(Generic[R_co]):
    """One step; ``R_co`` is the result that is sent back."""

    __slots__ = ()

    def __iter__(self) -> Generator[Step[Any], Any, R_co]:
        """Yield this step, as ``yield from`` does: its value is the result, with the type that the step names."""
        return (yield self)

    @classmethod
    def by(
        cls, of: type[C], act: Callable[[Self, C], R_co | Awaitable[R_co]]
    ) -> tuple[type[Step[Any]], Callable[[Any, C], object]]:
        """Return a row of a runner's table: ``act`` carries this step out and returns its result.

        ``of``: what the runner gives to ``act`` beside the step.
        """
        return cls, act


@dataclass(frozen=True, slots=True)
class Look(Step[View]):
    """Get the view that this client knows."""


LOOK = Look()
"""For every push, claim and ack, which begin with it."""


@dataclass(frozen=True, slots=True)
class Seen(Step[View]):
    """Get a view as this client reads by it: a client that only looks leaves out members that do not answer it."""

    view: View


@dataclass(frozen=True, slots=True)
class CheckTime(Step[None]):
    """Continue only if time is left.  ``TimeUp`` is thrown if none is."""


class Obstacles(NamedTuple):
    """Known reasons why an attempt of this client would fail.

    ``kept_out``: answers of servers that do not let it in.  ``full``: members that recently refused an item.
    ``askew``: servers whose clocks are so wrong that they refuse pushes which others accept, and why; they stay in the
    view because too few others would be left.
    """

    kept_out: Answers
    full: tuple[ServerId, ...]
    askew: Mapping[ServerId, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Begin(Step[Obstacles]):
    """Begin an attempt to write under this view.  ``TimeUp`` is thrown if no time is left.

    Calls that only read do without it, because a client finds out by asking a server that an obstacle is gone.
    """

    view: View


@dataclass(frozen=True, slots=True)
class Ask(Step[Answers]):
    """Make the same call on several servers, each in the given life.

    ``once``: do not repeat a call whose connection breaks.  ``anew``: make a connection for this call, to find out
    whether the server lets this client in now.
    """

    epoch: int
    lives: Mapping[ServerId, Life]
    call: Call[Any]
    once: bool = False
    anew: bool = False


@dataclass(frozen=True, slots=True)
class Evict(Step[View]):
    """Evict servers that failed under this view; ``answered`` names those that did answer.  The result is the view to
    continue with, unchanged if nothing can be done yet."""

    view: View
    failed: Answers
    answered: Set[ServerId]


@dataclass(frozen=True, slots=True)
class Refresh(Step[View]):
    """Read the view again.  The result is the view to continue with."""

    view: View


@dataclass(frozen=True, slots=True)
class ConfirmPlace(Step[int]):
    """Find out whether what is pushed belongs on this shard by the shard map of this number, or by a newer one.

    The result is the number of the map that says so; a smaller one than was asked for: it cannot be told yet.  The step
    fails if the push belongs elsewhere now."""

    map_number: int


@dataclass(frozen=True, slots=True)
class Rest(Step[None]):
    """Wait a moment before the next attempt."""


@dataclass(frozen=True, slots=True)
class Hurry(Step[None]):
    """Limit the operation's remaining time to these seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Removed(Step[None]):
    """Note that every server of the view knows these items of a queue to be gone."""

    queue: str
    items: Sequence[Gone]


# Steps of repair.


@dataclass(frozen=True, slots=True)
class Identify(Step[Mapping[ServerId, ServerInfo | Answer]]):
    """Ask servers for their identity.  The result has, for each without one, the answer that says why."""

    servers: Collection[ServerId]


@dataclass(frozen=True, slots=True)
class Change(Step[View]):
    """Write the result of ``change`` by compare-and-set, unless it equals the view.  The result is the view to continue
    with, which is this one or one written before it."""

    view: View
    change: ViewChange


@dataclass(frozen=True, slots=True)
class Nonce(Step[str]):
    """Make a new unique text."""


@dataclass(frozen=True, slots=True)
class Report(Step[bool]):
    """Report how many items were copied, of about ``total``.  The result says whether to renew the reservations of the
    servers now."""

    copied: int
    total: int


@dataclass(frozen=True, slots=True)
class Now(Step[int]):
    """Read this client's clock: milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Wait(Step[None]):
    """Wait this many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Breathe(Step[None]):
    """Rest in proportion to the work since the last rest, so that a scrub takes little of the servers' time."""


@dataclass(frozen=True, slots=True)
class Jitter(Step[None]):
    """Wait a random part of these seconds, so that clients do not all act together."""

    seconds: float


# Steps of an eviction, which the runner executes for ``Evict`` while this client makes no other change of the view.


@dataclass(frozen=True, slots=True)
class Monotonic(Step[float]):
    """Read this client's monotonic clock: seconds."""


@dataclass(frozen=True, slots=True)
class Swap(Step[View]):
    """Replace the view that this client knows, by compare-and-set.  The result is the new view, or one written before
    it."""

    view: View


@dataclass(frozen=True, slots=True)
class Evicted(Step[None]):
    """Note that this client has evicted servers because of these answers."""

    failed: Answers
    epoch: int


@dataclass(frozen=True, slots=True)
class NoteClocks(Step[None]):
    """Note how the clocks of servers that stay in the view compare with each other and with this client's."""

    compared: Compared


# Steps of founding, when this client knows no view yet.


class Register(NamedTuple):
    """The view, or a plan, in ZooKeeper's register, None if it was never written; and the register's version."""

    view: View | None
    version: int


@dataclass(frozen=True, slots=True)
class ReadRegister(Step[Register]):
    """Read ZooKeeper's register.  ``even_damaged``: one that holds no view of any release counts as empty."""

    even_damaged: bool = False


@dataclass(frozen=True, slots=True)
class WriteRegister(Step[None]):
    """Write a view, or a plan, if the register still has this version."""

    view: View
    version: int


@dataclass(frozen=True, slots=True)
class Log(Step[None]):
    """Log a record about a server, or about this client; ``warns``: as a warning."""

    text: str
    server: ServerId | None = None
    warns: bool = True


Operation = Generator[Step[Any], Any, T]


# -- failures ---------------------------------------------------------------------------------------------------------


class Failure(Exception):
    """An operation ended without its result.  The class says what the caller may conclude."""


class NothingDone(Failure):
    """Nothing was written: the caller may retry."""


class Unknown(Failure):
    """It may have happened."""


class Misplaced(Failure):
    """The shard takes pushes only of clients that know a newer shard map; nothing was written."""


class DecisionNeeded(Failure):
    """Nothing was written of a push, because the settings of the queue have the primary decide, which the client does
    not know."""

    def __init__(self, queue: str, why: Why) -> None:
        super().__init__(f"queue {queue!r} {why}")
        self.why = why


class TooFewMembers(Failure):
    """No push completes under this view, because fewer members are in sync than are needed; nothing was written.

    ``joining``: servers that are being caught up; ``outside``: all others that are not in sync.
    """

    def __init__(self, view: View) -> None:
        self.members, self.needed = len(view.members), view.min_replicas
        super().__init__(f"{self.members} in sync, {self.needed} needed")
        self.joining = sorted(view.learners)
        self.outside = sorted(view.servers.keys() - view.receivers.keys())


class Fenced(Failure):
    """The owner was declared dead."""


class Denied(Failure):
    """A server does not let this client in until its cause is corrected."""


class TimeUp(Failure):
    """The operation has no time left; thrown in by the runner."""


class StepFailed(Failure):
    """A step failed, for the reason in ``error``; thrown in by the runner."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Invalid(Failure):
    """The request cannot be fulfilled; nothing was changed."""


class NoNamespace(Failure):
    """The namespace does not exist, and this client may not found it."""

    def __init__(self, namespace: str) -> None:
        super().__init__(f"namespace {namespace!r} does not exist")
        self.namespace = namespace


class NotNow(Failure):
    """A repair cannot continue now; it is retried later."""


class Taken(NotNow):
    """Another client repairs the server."""


class PlaceFailed(Exception):
    """A server did not answer OK as it had to; never leaves an operation."""

    def __init__(self, server: ServerId, answer: Answer) -> None:
        super().__init__(f"{server}: {answer.reason}")
        self.server = server
        self.answer = answer


# -- shared by operations ---------------------------------------------------------------------------------------------

FULL_RETRY_SECONDS = 1.0
"""Seconds during which a push is retried that a full server has refused and another has accepted."""


@dataclass(slots=True)
class Effort:
    """Remember about an operation's attempts whether anything may have happened, and why the last one did not
    complete."""

    touched: bool = False
    trouble: str = ""

    def note(self, answers: Answers) -> bool:
        """Note answers; return whether all are OK."""
        for answer in answers.values():
            if answer.status is not Status.OK:
                self.touched = self.touched or any(answer.may_have_happened for answer in answers.values())
                self.trouble = reasons(answers)
                return False
        self.touched = self.touched or bool(answers)
        return True

    def why(self, failure: Failure) -> str:
        """Describe what ended the operation."""
        return self.trouble or "no time left" if isinstance(failure, TimeUp) else str(failure)

    def end(self, failure: Failure, nothing: str) -> NoReturn:
        """End an operation that failed; ``nothing``: words that say that nothing happened.  Raises a ``Failure``."""
        if self.touched:
            raise Unknown(f"it may have happened: {self.why(failure)}") from failure
        if isinstance(failure, TimeUp):
            raise NothingDone(f"{nothing}: {self.why(failure)}") from failure
        raise failure


def reasons(answers: Answers) -> str:
    """Describe which servers kept an attempt from completing, and why."""
    return "; ".join(f"{id}: {answer.reason}" for id, answer in answers.items() if answer.verdict is not Verdict.DONE)


def check_let_in(answers: Answers) -> None:
    """Raise ``Denied`` if a server does not let this client in."""
    for id, answer in answers.items():
        if answer.verdict is Verdict.CORRECT:
            raise Denied(denial(id, answer))


def refuse(answers: Answers) -> None:
    """Raise ``NothingDone`` if a server refused a call that only reads."""
    for id, answer in answers.items():
        if answer.verdict is Verdict.REFUSE:
            raise NothingDone(f"{id}: {answer.reason}")


def full_members(view: View, answers: Answers) -> Answers:
    """Return the answers of members that have no room."""
    return {id: answer for id, answer in answers.items() if answer.status is Status.REFUSED and id in view.members}


P = TypeVar("P", bound="Paged")


class Place(NamedTuple):
    """One server, in one life, under one epoch."""

    server: ServerId
    life: Life
    epoch: int

    def ask(self, call: Call[R]) -> Operation[R]:
        """Make one call here and return its reply.  Raises ``PlaceFailed``."""
        answers: Answers = yield Ask(self.epoch, {self.server: self.life}, call)
        answer = answers[self.server]
        if answer.status is not Status.OK:
            raise PlaceFailed(self.server, answer)
        return call.read(answer.body)

    def each_page(self, call: Paging[P], act: Callable[[P], Operation[None]]) -> Operation[None]:
        """Make the call repeatedly, each time from the end of the last page, and act on every page.

        Everything that exists during the whole scan is on some page.  Raises ``PlaceFailed``.
        """
        rest: Paging[P] | None = call
        while rest is not None:
            page = yield from self.ask(rest)
            yield from act(page)
            rest = rest.after(page)

    def names(self, call: Paging[NamesPage]) -> Operation[set[bytes]]:
        """Return the names on all pages.  Raises ``PlaceFailed``."""
        found = set[bytes]()

        def note(page: NamesPage) -> Operation[None]:
            found.update(page.names)
            yield from ()

        yield from self.each_page(call, note)
        return found


def place(view: View, server: ServerId) -> Place:
    """Return a server of the view, in the life that the view names."""
    return Place(server, view.receivers[server], view.epoch)


def compare_clocks(servers: Iterable[ServerId]) -> Operation[Compared]:
    """Read the clocks of these servers, and compare them; those that do not answer are left out."""
    return compare(clocks_ahead((yield from Identify(list(servers)))))


def clocks_ahead(identities: Mapping[ServerId, ServerInfo | Answer]) -> dict[ServerId, float]:
    """Return the seconds by which the clock of each server that has answered is ahead of this client's."""
    return {id: who.ahead for id, who in identities.items() if isinstance(who, ServerInfo)}


def describe_askew(askew: Mapping[ServerId, str]) -> str:
    """Describe which servers refuse pushes for their clocks."""
    return "; ".join(f"{id}: {reason}" for id, reason in sorted(askew.items()))
