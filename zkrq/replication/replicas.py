"""The two ways to change items: *put* everywhere at once, or *decide* on the primary and apply to the others.

Both go on until the view that this client holds after its last compare-and-set is covered by the server lives that
answered OK, or until the operation's time is up.  What was decided is decided again after every change of the view: the
scripts are idempotent by token and stamp the epoch anew.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, cast

from zkrq.errors import ClaimLost, ConfigError, OutcomeUnknown, QueueFull, Unavailable, ZkrqError
from zkrq.protocol.clocks import PUT_WINDOW, PUT_WINDOW_MS, Clocks
from zkrq.protocol.records import GONE_BYTE, STATE_AT, above
from zkrq.protocol.replies import Answer, Status, Verdict
from zkrq.protocol.view import Life, ServerId, View
from zkrq.replication.copying import CopyFailed, copy_items
from zkrq.replication.full import FULL_RETRY_SECONDS
from zkrq.replication.membership import RETRY_PAUSE, Membership, check_let_in
from zkrq.replication.wire import Arguments, Word, pack_words


class Put(NamedTuple):
    """One push: the record that the client made, and in how many milliseconds the item is due; as a text also, behind a
    space, when it expires."""

    id: str
    record: bytes
    left_ms: int | str
    payload: bytes

    def above(self, n: int) -> Put:
        """The same push, of an id that has tombstones of up to this ``n``."""
        return self._replace(record=above(self.record, n))


class Duplicate(NamedTuple):
    """A push that was not made, because the item ``first`` has its key; that one is on so many servers."""

    first: str
    replicas: int


class Done(NamedTuple):
    """A push that was not made, because an item of its id was pushed before and is gone: that many servers know it."""

    replicas: int


Pushed = int | Duplicate | Done
"""What became of a push: the number of servers that have the item, or why none was needed."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a script on the primary decided, once every server of the view has it.

    ``body`` is the reply without the records, ``flat`` these: id, record, left_ms of each.  ``superseded`` are ids of
    which some server holds a greater version: somebody has decided about them later.  ``carried`` are further ids,
    decided in a round before the view changed; the servers were told of them as well.  ``epoch`` is that of the last
    round, ``copies`` how many members have it.  ``repeated``: the primary may execute an earlier try of the call yet.
    """

    body: tuple[object, ...]
    flat: Sequence[object]
    superseded: frozenset[bytes]
    carried: frozenset[bytes] = frozenset()
    epoch: int = 0
    copies: int = 0
    repeated: bool = False

    @property
    def ids(self) -> Sequence[bytes]:
        """Of what was decided."""
        return cast("Sequence[bytes]", self.flat[::3])


class _Expired(Exception):
    """The operation's time is up."""


class _Effort:
    """One operation: its time, whether anything may have happened yet, and what has kept it from being over."""

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self.until = self._loop.time() + seconds
        self.touched = False
        self.trouble = ""

    def left(self) -> float:
        """The seconds that are left."""
        return self.until - self._loop.time()

    def hurry(self, seconds: float) -> None:
        """Leave no more time than this."""
        self.until = min(self.until, self._loop.time() + seconds)

    def check(self) -> None:
        if self._loop.time() >= self.until:
            raise _Expired(self.trouble or "no time left")

    def note(self, answers: Mapping[ServerId, Answer]) -> bool:
        """Take note; returns whether all answers are good."""
        if all(answer.status is Status.OK for answer in answers.values()):
            self.touched = self.touched or bool(answers)
            return True
        self.touched = self.touched or any(answer.may_have_happened for answer in answers.values())
        self.trouble = _reasons(answers)
        return False


class Replicas:
    """Carries out operations over the view of a ``Membership``."""

    def __init__(
        self,
        membership: Membership,
        *,
        operation_timeout: float,
        removed: Callable[[str, Iterable[bytes]], None],
    ) -> None:
        """``removed`` is called with the items of a queue that every server of the view knows as gone."""
        self.membership = membership
        self._clocks = Clocks()
        self.operation_timeout = operation_timeout
        self._removed = removed

    async def _until_all_done(
        self, effort: _Effort, attempt: Callable[[View], Awaitable[Mapping[ServerId, Answer]]]
    ) -> None:
        """Make attempts, each under the view that the last one's answers led to, until all its answers are good."""
        view = self.membership.view
        while True:
            effort.check()
            answers = await attempt(view)
            if effort.note(answers):
                return
            try:
                async with asyncio.timeout_at(effort.until):
                    view = await self._next_view(view, answers)
            except TimeoutError:
                raise _Expired(effort.trouble) from None

    async def _next_view(self, view: View, answers: Mapping[ServerId, Answer]) -> View:
        """The view to go on with after these answers.  Raises ``ConfigError`` where a server does not let this client
        in."""
        check_let_in(answers)
        failed = {
            id: answer
            for id, answer in answers.items()
            # A learner that is full must not halt the pushes that all members take.
            if answer.verdict is Verdict.EVICT or (answer.status is Status.REFUSED and id in view.learners)
        }
        newer = view
        if failed:
            answered = {id for id, answer in answers.items() if id not in failed and answer.verdict is not Verdict.WAIT}
            newer = await self.membership.evict(view, failed, answered)
        elif any(answer.verdict is Verdict.REFRESH for answer in answers.values()):
            newer = await self.membership.refresh(view)
        if newer.epoch == view.epoch:
            await asyncio.sleep(RETRY_PAUSE)
        return newer

    # -- put -------------------------------------------------------------------------------------------------------

    async def put(self, queue: str, puts: Sequence[Put]) -> list[Pushed | ZkrqError]:
        """Apply new items to every server of the view.

        Returns by position the number of servers that hold the item, or the error to raise for it.  Raises
        ``NotEnoughReplicas``, ``Unavailable`` when nothing was written.
        """
        effort = _Effort(self.operation_timeout)
        arguments: Arguments = [queue, PUT_WINDOW_MS]
        for put in puts:
            arguments += put
        packed = pack_words(arguments)
        covered: set[tuple[ServerId, Life]] = set()
        refusals: Counter[int] = Counter()
        tombstones: dict[int, dict[ServerId, int]] = {}
        doubtful: set[ServerId] = set()
        copies, primary = 0, ServerId("")

        async def attempt(view: View) -> Mapping[ServerId, Answer]:
            nonlocal copies, primary
            self.membership.check_writable(view)
            if kept_out := await self.membership.kept_out(view):
                return kept_out
            await self._check_room(view, effort)
            copies, primary = len(view.members), view.primary(queue)
            missing = [id for id, life in view.receivers.items() if (id, life) not in covered]
            answers = await self.membership.call_all(missing, "put", queue, view, packed)
            effort.note(answers)
            if self.membership.full.note(view, answers):
                effort.hurry(FULL_RETRY_SECONDS)
            for id, answer in answers.items():
                if answer.status is Status.OK:
                    covered.add((id, view.receivers[id]))
                    late, gone = cast("tuple[list[int], list[int]]", answer.body)
                    refusals.update(late)
                    for at, n in zip(gone[::2], gone[1::2], strict=True):
                        tombstones.setdefault(at, {})[id] = n
                if answer.repeated or (answer.may_have_happened and answer.status is not Status.OK):
                    doubtful.add(id)
            if not effort.touched and any(answer.verdict is Verdict.REFUSE for answer in answers.values()):
                raise Unavailable(f"refused, nothing was written: {effort.trouble}")
            return answers

        try:
            await self._until_all_done(effort, attempt)
        except (_Expired, ZkrqError) as error:
            if effort.touched:
                return [_unknown_push(put.id, error) for put in puts]
            if isinstance(error, _Expired):
                raise Unavailable(f"nothing was written: {error}") from error
            raise
        if not refusals and not tombstones:
            return [copies] * len(puts)
        results = [_judge(put.id, refusals[at], len(covered), copies) for at, put in enumerate(puts, start=1)]
        if tombstones:
            above_all = {at: puts[at - 1].above(max(known.values())) for at, known in tombstones.items()}
            decided = await self._push_again(queue, list(above_all.values()), effort.left())
            for (at, put), result in zip(above_all.items(), decided, strict=True):
                taken = refusals[at] + len(tombstones[at]) < len(covered)
                was_gone = primary in tombstones[at] and primary not in doubtful
                if isinstance(result, ZkrqError) and taken:
                    result = _unknown_push(put.id, result)
                elif isinstance(result, Done) and taken and not was_gone:
                    result = copies  # it was there by this push, and a consumer was done with it already
                results[at - 1] = result
        return results

    async def _push_again(self, queue: str, puts: Sequence[Put], seconds: float) -> Sequence[Pushed | ZkrqError]:
        """Have the primary say whether ids that some server knows as gone may begin a new life."""
        try:
            return await self.push(queue, 0, puts, seconds=seconds)
        except ZkrqError as error:
            return [error] * len(puts)

    async def _check_room(self, view: View, effort: _Effort) -> None:
        """Ask members that were full for room, before anything is written.  Raises ``Unavailable``."""
        suspects = self.membership.full.among(view)
        if not suspects or effort.touched:
            return
        answers = await self.membership.call_all(suspects, "room", "", view, ())
        full = self.membership.full.note(view, answers)
        if full:
            raise Unavailable(f"refused, nothing was written: no room on {_reasons({id: answers[id] for id in full})}")

    async def push(
        self, queue: str, max_size: int, puts: Sequence[Put], *, seconds: float | None = None
    ) -> list[Pushed | ZkrqError]:
        """Have the primary decide about new items that have a key, or whose queue has a limit (``max_size``, 0: none).

        Returns by position what ``put`` does.  Raises ``NotEnoughReplicas``, ``Unavailable`` when nothing was written,
        ``OutcomeUnknown``.  ``seconds``: the time that it has, None: the usual.
        """
        arguments: Arguments = [queue, PUT_WINDOW_MS, max_size]
        for put in puts:
            arguments += put
        decision = await self.decide("push", queue, arguments, puts=puts, seconds=seconds)
        (outcomes,) = cast("tuple[list[bytes]]", decision.body)
        return [_judge_decided(put.id, outcome, decision) for put, outcome in zip(puts, outcomes, strict=True)]

    # -- decide, then apply ------------------------------------------------------------------------------------------

    async def decide(
        self,
        script: str,
        queue: str,
        arguments: Arguments,
        *,
        trim: bool = False,
        fenced: str = "",
        puts: Sequence[Put] = (),
        implied: Callable[[tuple[object, ...], int], Sequence[Word]] | None = None,
        seconds: float | None = None,
    ) -> Decision:
        """Have the primary decide, and every other server of the view apply what it decided.

        ``fenced`` names an owner that every server refuses from then on.  ``trim`` lets the call drop old tombstones.
        ``puts`` are the new items that it decides about: these need ``min_replicas``, their payloads go with them, and
        the script is told whether another primary may have decided about them before.  ``implied`` makes the decisions
        of which the reply does not tell the record, all of them removals, from the reply and the epoch.  ``seconds``:
        the time that it has, None: the usual.
        Raises ``Unavailable`` when nothing happened, ``OutcomeUnknown`` when it may have, ``ClaimLost`` when the owner
        was fenced.
        """
        effort = _Effort(self.operation_timeout if seconds is None else seconds)
        outcome: Decision | None = None
        carried: set[bytes] = set()
        last: Sequence[bytes] = ()
        unanswered: set[tuple[ServerId, Life]] = set()
        gone: Sequence[bytes] = ()
        payload_of = {put.id.encode(): put.payload for put in puts} if puts else {}

        async def attempt(view: View) -> Mapping[ServerId, Answer]:
            nonlocal outcome, last, gone
            if kept_out := await self.membership.kept_out(view):
                return kept_out
            primary = view.primary(queue)
            # A learner's copy, and what an evicted server still holds, must meet the tombstones of what is gone.
            trimming = int(trim and not view.learners and not view.eligible)
            given: Arguments = [PUT_WINDOW_MS, trimming, *arguments] if trim else arguments
            if puts:
                self.membership.check_writable(view)
                await self._check_room(view, effort)
                given = [int(effort.touched), *arguments]
            sent_at = asyncio.get_running_loop().time()
            if script == "claim":
                given = [self._clocks.expected(queue, primary, view.members[primary], sent_at), *given]
            answer = await self.membership.call(primary, script, queue, view, given)
            effort.note({primary: answer})
            if script == "claim" and answer.status is Status.OK:
                self._clocks.note(queue, primary, view.members[primary], cast("int", answer.body[3]), sent_at)
            if puts and self.membership.full.note(view, {primary: answer}):
                effort.hurry(FULL_RETRY_SECONDS)
            life = (primary, view.members[primary])
            if answer.repeated or (answer.may_have_happened and answer.status is not Status.OK):
                unanswered.add(life)
            if answer.status is Status.FENCED:
                raise ClaimLost("this consumer was declared dead: its claims are lost")
            if answer.verdict is Verdict.REFUSE:
                raise Unavailable(f"{primary} refused {script}: {answer.reason}")
            if answer.verdict is not Verdict.DONE:
                return {primary: answer}
            flat = cast("list[Word]", answer.body[-1])
            gone = _removed(flat)
            if implied:
                removals = list(implied(answer.body[:-1], view.epoch))
                flat = flat + removals
                gone += cast("list[bytes]", removals[::3])
            # Decided before, when a server did not get to know it: decided anew, or told of as well.
            carried.update(last)
            last = ids = cast("list[bytes]", flat[::3])
            carried.difference_update(ids)
            # Also where nothing was decided ("not found", "full"): the others know whether this is still the primary.
            # Not for claims, which are asked for again and again.
            asked = bool(ids or fenced or carried) or script != "claim"
            others = [id for id in view.receivers if id != primary] if asked else []
            given = [queue, PUT_WINDOW_MS, trimming, fenced, 2 if puts else 0, 0]
            given += _with_payloads(flat, payload_of) if puts else flat
            apply = "apply_new" if puts else "apply"
            applied = await self.membership.call_all(others, apply, queue, view, pack_words(given)) if others else {}
            if puts and self.membership.full.note(view, applied):
                effort.hurry(FULL_RETRY_SECONDS)
            answers = {primary: answer, **applied}
            answers |= await self._complete_payloads(queue, view, ids, applied)
            for id in others if carried else ():
                answers |= await self._copy(queue, view, sorted(carried), to=id)
            superseded, copies = _superseded(ids, applied.values()), len(view.members)
            outcome = Decision(
                answer.body[:-1], flat, superseded, frozenset(carried), view.epoch, copies, life in unanswered
            )
            return answers

        try:
            await self._until_all_done(effort, attempt)
        except ClaimLost:
            raise
        except (_Expired, ZkrqError) as error:
            if effort.touched:
                raise OutcomeUnknown(f"it may have happened: {error}") from error
            if isinstance(error, _Expired):
                raise Unavailable(f"nothing happened: {error}") from error
            raise
        assert outcome is not None
        if outcome.superseded:
            gone = [id for id in gone if id not in outcome.superseded]
        if gone:
            self._removed(queue, gone)
        return outcome

    async def _complete_payloads(
        self, queue: str, view: View, decided: Sequence[bytes], answers: Mapping[ServerId, Answer]
    ) -> dict[ServerId, Answer]:
        """Give members the payloads that they lack because a decision came before its item's push.

        Returns the answers of servers that failed meanwhile.  A learner is left to its catch-up, which brings every
        payload.
        """
        failed: dict[ServerId, Answer] = {}
        for id, answer in answers.items():
            if answer.status is Status.OK and answer.body[1] and id in view.members:
                bare = [decided[position - 1] for position in cast("list[int]", answer.body[1])]
                failed |= await self._copy(queue, view, bare, to=id)
        return failed

    async def _copy(self, queue: str, view: View, ids: Sequence[bytes], *, to: ServerId) -> dict[ServerId, Answer]:
        """Copy items with their payloads from the primary; returns the answer of the server that failed, if one did."""
        try:
            place = partial(self.membership.place, view)
            await copy_items(place(view.primary(queue)), place(to), queue, ids)
        except CopyFailed as failure:
            return {failure.server: failure.answer}
        return {}

    async def align_claims(self, queue: str, owner: str) -> None:
        """Where another server than the primary knows of claims of this owner, have it learn what the primary knows of
        those items.  Raises ``Unavailable``."""

        async def align(view: View) -> dict[ServerId, Answer]:
            answers: dict[ServerId, Answer] = {}
            for id in view.receivers.keys() - {view.primary(queue)}:
                cursor: object = b"0"
                while True:
                    answer = await self.membership.call(id, "claims", queue, view, [owner, cast("bytes", cursor)])
                    answers[id] = answer
                    if answer.status is not Status.OK:
                        return answers
                    cursor, ids = answer.body
                    failed = await self._copy(queue, view, cast("list[bytes]", ids), to=id)
                    if failed:
                        return {**answers, **failed}
                    if cursor == b"0":
                        break
            return answers

        await self._tell(queue, align)

    async def names(self, script: str, queue: str, *, everywhere: bool = False) -> list[str]:
        """What a script names page by page: on the queue's primary, or together on every server of the view.

        Names that are there from the beginning to the end are returned.  Raises ``Unavailable``.
        """
        found = set[bytes]()

        async def attempt(view: View) -> dict[ServerId, Answer]:
            answers: dict[ServerId, Answer] = {}
            for id in sorted(view.receivers) if everywhere else (view.primary(queue),):
                cursor = b"0"
                while True:
                    answer = answers[id] = await self.membership.call(id, script, queue, view, [cursor])
                    if answer.verdict is Verdict.REFUSE:
                        raise Unavailable(f"{id}: {answer.reason}")
                    if answer.status is not Status.OK:
                        return answers
                    cursor, page = cast("tuple[bytes, list[bytes]]", answer.body)
                    found.update(page)
                    if cursor == b"0":
                        break
            return answers

        await self._tell(queue, attempt)
        return sorted(name.decode() for name in found)

    async def tell_all(self, script: str, queue: str, arguments: Arguments) -> None:
        """Run a script that repeats without harm on every server of the view.  Raises ``Unavailable``."""

        async def tell(view: View) -> dict[ServerId, Answer]:
            return await self.membership.call_all(list(view.receivers), script, queue, view, arguments)

        await self._tell(queue, tell)

    async def _tell(self, queue: str, attempt: Callable[[View], Awaitable[Mapping[ServerId, Answer]]]) -> None:
        try:
            await self._until_all_done(_Effort(self.operation_timeout), attempt)
        except _Expired as error:
            raise Unavailable(f"not every server of queue {queue!r} could be told in time: {error}") from error

    # -- reading -------------------------------------------------------------------------------------------------------

    async def ask(self, script: str, queue: str, arguments: Arguments | None = None) -> tuple[object, ...]:
        """Run a script that only reads on the queue's primary.  Raises ``Unavailable``."""
        body: tuple[object, ...] = ()

        async def attempt(view: View) -> Mapping[ServerId, Answer]:
            nonlocal body
            primary = view.primary(queue)
            answer = await self.membership.call(primary, script, queue, view, arguments)
            if answer.verdict is Verdict.REFUSE:
                raise Unavailable(f"{primary}: {answer.reason}")
            body = answer.body
            return {primary: answer}

        try:
            await self._until_all_done(_Effort(self.operation_timeout), attempt)
        except _Expired as error:
            raise Unavailable(f"no primary of queue {queue!r} could be asked in time: {error}") from error
        return body


def _reasons(answers: Mapping[ServerId, Answer]) -> str:
    """Which servers kept an attempt from being the last, and why."""
    return "; ".join(f"{id}: {answer.reason}" for id, answer in answers.items() if answer.verdict is not Verdict.DONE)


def _with_payloads(flat: Sequence[Word], payload_of: Mapping[bytes, bytes]) -> Arguments:
    """The id, record, left_ms of each item, followed by its payload, empty for what somebody else has pushed."""
    parts = iter(flat)
    given: Arguments = []
    for id, record, left_ms in zip(parts, parts, parts, strict=True):
        given += (id, record, left_ms, payload_of.get(cast("bytes", id), b""))
    return given


def _removed(flat: Sequence[Word]) -> list[bytes]:
    """Ids of what was decided to be gone."""
    ids, records = cast("tuple[list[bytes], list[bytes]]", (flat[::3], flat[1::3]))
    return [id for id, record in zip(ids, records, strict=True) if record[STATE_AT] == GONE_BYTE]


def _superseded(decided: Sequence[bytes], answers: Iterable[Answer]) -> frozenset[bytes]:
    """Ids of which a server said that it holds a greater version."""
    told = (cast("list[int]", answer.body[0]) for answer in answers if answer.status is Status.OK)
    positions = (position for some in told for position in some)
    return frozenset(decided[position - 1] for position in positions)


def _judge(id: str, refusals: int, takers: int, copies: int) -> Pushed | ZkrqError:
    """What became of a put that ``refusals`` of ``takers`` servers refused for its age."""
    if refusals == 0:
        return copies
    if refusals < takers:
        return _unknown_push(id, None)
    return _late(id)


def _judge_decided(id: str, outcome: bytes, decision: Decision) -> Pushed | ZkrqError:
    """What ``push.lua`` says became of a push.

    An earlier try of what was refused may be executed yet, when the key is free, or there is room.
    """
    match outcome[:1]:
        case b"+":
            return decision.copies
        case b"D":
            return Done(decision.copies)
        case b"=" | b"F" if decision.repeated:
            return _unknown_push(id, None)
        case b"=":
            return Duplicate(outcome[1:].decode(), decision.copies)
        case b"F":
            return QueueFull()
        case _:
            return _late(id)


def _late(id: str) -> ConfigError:
    return ConfigError(
        f"the push of {id} was refused, nothing was written: its id is older than {PUT_WINDOW:g} s, or the clock here "
        f"differs from the servers' by more than that"
    )


def _unknown_push(id: str, cause: Exception | None) -> OutcomeUnknown:
    why = f" ({cause})" if cause else ""
    error = OutcomeUnknown(f"the push of {id} may have happened{why}; push again with the same id", ids=(id,))
    error.__cause__ = cause
    return error
