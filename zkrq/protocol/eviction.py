"""Evict servers that failed from the view, so that operations complete without them.

An operation completes only when every server of the view has answered, so one dead server halts all of them until it is
evicted.  Any client evicts, by compare-and-set of the view; the operations themselves are the failure detector.  A
wrong eviction loses nothing by itself: the server comes back under a new generation, with everything copied.  But
without each rule below, some schedule loses items or halts all clients.

* *The servers that stay have answered*, in this very operation or when the eviction asks.  Without this rule, a client
  that is cut off from the healthy servers evicts them one after the other, and keeps the dead one; or a view is left
  whose only member has lost its memory.  So a client that is cut off from most servers fails itself, and so does one
  that a server does not let in, whatever it sees of the others.
* *The last member stays.*  A view without members could not say whose data counts.
* *Below min_replicas only after a grace.*  There no push completes for any client, so a short problem of one client
  must not be enough.
* *The view changes by compare-and-set*, and the loser starts again from the view that won.  Without this rule, a client
  that has not seen an eviction undoes it, and the server counts as in sync without the writes in between.
* *Silence counts only with standing.*  What a server says itself (another life, no such generation, not a master) is
  the same for every client, and evicts it.  Silence is one client's impression.  If a client behind a broken link
  evicted for silence, it would evict a healthy server, others would bring it back, and so on while the link is broken:
  every turn copies everything.  So a client evicts for silence only a server that has answered it in this life, which
  every client ensures (``attend``), so that a usual death costs milliseconds.
* *An eviction for silence costs standing* against that process.  A link that breaks again and again would restore the
  client's standing with each admission; with this rule, the client errs once about a process.
* *A client without standing accuses*: it writes into the view that the server does not answer it.  Any client that the
  server answers refutes that.  An accusation that stands for long enough becomes an eviction, so a server that died
  before the only client connected does not stay forever.  Without refutation, accusations would only be delayed
  evictions; without accusation, a new client could never evict a server that is dead for all.
* *A refutation forbids the eviction, and nothing else.*  The calls of a contradicted client are retried within their
  time, because a server that hangs for a little longer than a time-out answers the next try.  Only a client that the
  server has failed for ``patience``, which is as long as a call is retried, fails its calls before they are sent.
* *A server that lets no client in is accused, never evicted immediately*, whatever the client's standing.  A wrong
  password is the mistake of one client or of the server, and the client cannot tell which.  Without the others' word,
  one client with an old password would evict every server; without an eviction, one server with a wrong password would
  halt all clients.  The others refute over a connection of their own that is made for it: the one that they have may be
  from before the password was changed.  So does the accuser itself, which may be kept out of one queue only.  For a
  client that the server never let in, in this life, the mistake is the client's.  And a server that keeps clients out
  is never evicted below min_replicas, because no push could complete without it.
* *A server whose clock differs from the majority's leaves immediately*.  It refuses pushes that the others accept, so
  without this rule nearly every push of every client has an unknown outcome.  The majority of the clocks is the same
  for every client, so no other client is asked; the one that evicts reads all clocks anew, at the same time.  Only with
  two servers the client's own clock decides; then a client whose clock is as wrong as that of one server evicts the
  other one, which loses nothing.  While too few others would be left, the server stays: it still executes claims and
  acks, and pushes fail before they are sent.
* *A server that has no room for a connection* (``maxclients``) *is accused of silence, whatever the client's standing*.
  It serves those who are connected, and they refute; the calls of the others wait for room.  Where nobody is connected,
  for instance after a restart, the server would halt all clients.  A full server turns away every client that connects,
  so a second accuser proves nothing, and one refutation counts for all of them.
* *A server that may drop items* (a ``maxmemory-policy`` that evicts keys) *leaves if pushes complete without it*, one
  server at a time.  No call shows that the policy was changed, so running clients read it now and then (``inspect``).
  The server holds every item until its memory is full, so it stays in use where pushes need it.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, Final

from zkrq.protocol.attempts import find_askew
from zkrq.protocol.enrolment import seal
from zkrq.protocol.replies import FAILURES, IMPRESSIONS, NEVER_HALTING, Answer, Status, Verdict
from zkrq.protocol.steps import (
    Answers,
    Change,
    Evict,
    Evicted,
    Identify,
    Jitter,
    Look,
    Monotonic,
    Nonce,
    NothingDone,
    Now,
    Operation,
    Swap,
    check_let_in,
)
from zkrq.protocol.view import (
    Eviction,
    Judgement,
    Life,
    ServerId,
    View,
    accuse,
    accused,
    accused_of_denial,
    evict,
    refute,
    weigh_eviction,
)
from zkrq.protocol.witness import CONTRADICTION, Witness

if TYPE_CHECKING:
    from zkrq.protocol.server_info import ServerInfo

EVICTION_GRACE = 5.0
"""Seconds for which servers must have failed this client before it takes the view below ``min_replicas``."""

REFUTE_SPREAD = 0.05
"""Seconds over which the clients that refute an accusation are spread: one of them is enough."""

REFUTE_TRIES = 5
"""Lost compare-and-sets after which one refutation is given up."""


class Evicting:
    """Evict servers, accuse them, and refute the accusations of others.

    The model of the protocol overrides one of the methods to switch a rule off.
    """

    def __init__(self, witness: Witness, *, patience: float) -> None:
        """``witness``: this client's experience of the servers; the runner keeps it up to date.

        ``patience``: seconds for which a server that answers only other clients must have failed this one before calls
        fail without being retried; as long as a call is retried.
        """
        self.witness: Final = witness
        self._patience = patience

    def evict(self, known: View, failed: Answers, answered: Set[ServerId]) -> Operation[View]:
        """Evict servers that failed under ``known``; return the view to continue with.

        ``answered`` names the servers that did answer.  A view of the same epoch is returned if nothing can be done
        yet: the caller waits and retries until its time runs out.  A client makes one change of the view at a time, so
        that many operations that meet the same dead server evict it once.

        Raises ``Denied`` if a server does not let this client in, and that is this client's trouble; ``NothingDone`` if
        a server has failed only this client for long.
        """
        view = yield from Look()
        if view.epoch > known.epoch:
            return view
        askew = any(answer.status is Status.ASKEW for answer in failed.values())
        failed = {id: answer for id, answer in failed.items() if answer.status is not Status.ASKEW}
        others = yield from self.probe(view, view.members.keys() - failed.keys() - answered)
        if any(answer.verdict not in FAILURES for answer in others.values()):
            check_let_in(others)
            return view
        failed = {**failed, **others}
        if askew:
            found = yield from Identify(list(view.receivers))
            failed = {**failed, **(yield from self.find_askew(view, failed, found))}
        if not failed:
            return view
        now = yield from Monotonic()
        failing_since = self.witness.note_failed(failed, now)
        weighed = weigh_eviction(view, failed)
        if weighed is not Eviction.HARMLESS:
            check_let_in(failed)
        if weighed is Eviction.IMPOSSIBLE:
            self.witness.note_unusable({id: answer.reason for id, answer in failed.items()})
            return view
        judgements = self.judge(view, failed, now)
        if unheard := [id for id, judgement in judgements.items() if judgement is Judgement.ACCUSE]:
            kept_out = {id for id in unheard if failed[id].verdict is Verdict.CORRECT}
            return (yield from Swap(accuse(view, unheard, client=self.witness.client, kept_out=kept_out)))
        if not {Judgement.WAIT, Judgement.CONTRADICTED}.isdisjoint(judgements.values()):
            return view
        if weighed is Eviction.HALTING:
            serving = any(answer.status in NEVER_HALTING for answer in failed.values())
            if serving or now - failing_since < EVICTION_GRACE:
                return view
        wanted = evict(view, failed, by=(yield from Nonce()), now_ms=(yield from Now()))
        written = yield from Swap(wanted)
        if written is wanted:
            silent = [id for id in judgements if failed[id].verdict is Verdict.EVICT]
            self.witness.note_evicted({id: view.receivers[id] for id in silent}, now)
            yield Evicted(failed, wanted.epoch)
        return written

    def find_askew(
        self, view: View, failed: Answers, found: Mapping[ServerId, ServerInfo | Answer]
    ) -> Operation[Answers]:
        """Return the servers that have to leave for their clocks; see ``attempts.find_askew``."""
        return (yield from find_askew(view, failed, found))

    def probe(self, view: View, unasked: Set[ServerId]) -> Operation[Answers]:
        """Ask the members that would stay and have not answered yet; return the answers of those that fail.  A server
        that knows a later epoch has answered."""
        answers = yield from seal(view, unasked)
        return {id: answer for id, answer in answers.items() if answer.status not in (Status.OK, Status.STALE)}

    def judge(self, view: View, failed: Answers, now: float) -> dict[ServerId, Judgement]:
        """Decide about each receiver that is silent or keeps this client out; what a server says about itself needs no
        decision.  Raises ``Denied``, ``NothingDone`` if a call is not to be retried."""
        judgements: dict[ServerId, Judgement] = {}
        for id, answer in sorted(failed.items()):
            kept_out = answer.verdict is Verdict.CORRECT
            if not kept_out and answer.status not in IMPRESSIONS:
                continue
            crowded = answer.verdict is Verdict.ACCUSE
            judgements[id] = self.witness.judge(view, id, now, kept_out=kept_out, crowded=crowded)
            if judgements[id] is Judgement.CONTRADICTED:
                check_let_in({id: answer})
                if not crowded and self.witness.failing_for(id, now) >= self._patience:
                    raise NothingDone(f"{id}: {CONTRADICTION}")
        return judgements

    def inspect(self) -> Operation[dict[ServerId, str]]:
        """Ask the receivers for their options and clocks; evict those whose clocks are wrong, and those that may drop
        items, while pushes complete without them.

        Return why, of those that may drop items and stay.
        """
        staying: dict[ServerId, str] = {}
        view = yield from Look()
        found = yield from Identify(sorted(view.receivers))
        askew = yield from self.find_askew(view, {}, found)
        if askew:
            yield Evict(view, askew, frozenset())
        for id, who in sorted(found.items()):
            if isinstance(who, Answer) or who.dropping is None:
                continue
            view = yield from Look()
            is_met = view.receivers.get(id) == Life(who.run_id, who.generation)
            if is_met and weigh_eviction(view, {id}) is Eviction.HARMLESS:
                view = yield from Evict(view, {id: Answer(Status.DROPPING, (), who.dropping)}, frozenset())
            if id in view.receivers:
                staying[id] = who.dropping
        return staying

    # -- accusations of others -----------------------------------------------------------------------------------------

    def attend(self) -> Operation[None]:
        """Ask the servers that are in a new life, which gives this client standing, and those that are accused; refute
        the accusations of those that answer."""
        view = yield from Look()
        doubted, closed = accused(view), accused_of_denial(view)
        answers = {**(yield from seal(view, (doubted | self.witness.unmet) - closed))}
        if closed:
            yield Jitter(REFUTE_SPREAD)
            anew = yield from seal(view, closed, anew=True)
            # Many clients connect now: a connection that is slow to be made says nothing about the server.
            answers |= {id: answer for id, answer in anew.items() if answer.status not in IMPRESSIONS}
        reached = {id for id, answer in answers.items() if answer.status is Status.OK}
        if doubted & reached:
            yield Jitter(REFUTE_SPREAD)
            yield from self.refute(view, doubted & reached)
        failed = {id: answer for id, answer in answers.items() if answer.verdict in FAILURES}
        if failed:
            yield Evict(view, failed, reached)

    def refute(self, known: View, servers: Set[ServerId]) -> Operation[None]:
        """Write into the view that these servers have answered this client in the lives that ``known`` names."""

        def wrongly(view: View) -> set[ServerId]:
            return {id for id in servers & accused(view) if view.receivers[id] == known.receivers[id]}

        def change(view: View, /, *, by: str) -> View:
            return refute(view, wrongly(view), client=self.witness.client)

        for _ in range(REFUTE_TRIES):
            view = yield from Look()
            if not wrongly(view):
                return
            yield Change(view, change)
