"""What clients were told, and the promises that follow from it."""

from __future__ import annotations

import enum
import re
from collections import defaultdict
from collections.abc import Callable, Collection
from functools import lru_cache

from tests.model.bundle import CLAIMED, DEAD, Draft
from tests.model.content import QUEUE, Clock, Item, Token, group_of, handed, owner_of, place_of
from tests.model.server import Server, items_of
from zkrq.protocol.calls import Claim, Fence, Redrive
from zkrq.protocol.clocks import PUT_WINDOW_MS
from zkrq.protocol.flows import CANCELLED, DONE, FAILED
from zkrq.protocol.shards import FIRST_VIEW


class Promise(enum.Enum):
    """What may not happen."""

    LOST = "lost"
    TWO_HOLDERS = "two live holders"
    REDELIVERED = "came back after its ack"
    ACK_REFUSED = "ack refused to a live holder"
    WITHHELD = "withheld from a live holder"
    STRANDED = "stranded"
    DIVERGED = "differs after a scrub"
    EVICTED_AGAIN = "evicted again what others reach"
    EVICTED_FOR_ONE = "evicted for one client's trouble"
    FAILED_EARLY = "failed before its time was up, though every server answers"
    HALTED = "halted by one server that lets nobody in"
    IN_DOUBT = "in doubt for one server's clock"
    TWICE = "exists twice"
    TOLD_OTHERWISE = "told one end, then another"
    RESULT_LOST = "result of a returned ack lost"
    SAVED_LOST = "saved state lost"
    OVER_THE_LIMIT = "more held at once than the limit"
    MISREAD = "a client was let in where there is what it cannot read"
    OVER_THE_LIMIT_OF_A_GROUP = "more of a group held at once than its limit"
    BESIDE_HOME = "claimed beside home"
    OUT_OF_ORDER = "out of order in a group"
    TOKEN_WENT_BACK = "token of a group went back"
    FLOW_EARLY = "what follows a flow came before all members had ended"
    FLOW_AFTER = "a member came after what follows its flow"
    FLOW_TWICE = "a flow is followed twice"
    FLOW_TOLD_OTHERWISE = "a flow had another outcome before"
    NOTHING_FOLLOWS = "nothing follows a flow"
    INCONSISTENT = "what a client knows is inconsistent"


class Broken(Exception):
    def __init__(self, promise: Promise, detail: str) -> None:
        super().__init__(f"{promise.value}: {detail}")
        self.promise = promise


def check_consistent(*checks: Callable[[], None]) -> None:
    """Raise ``Broken`` with what one of these says to be wrong."""
    try:
        for check in checks:
            check()
    except AssertionError as error:
        raise Broken(Promise.INCONSISTENT, str(error)) from error


_PLACED = re.compile(rb"-[0-9a-f]{8}-0(@[a-z]+)?")
"""What the id of a plain item has besides its number: the try that made it, and the shard that it was made for."""


@lru_cache(maxsize=100_000)
def same(item: Item) -> Item:
    """What the user calls the item, whichever shard it was placed on."""
    return _PLACED.sub(b"", item)


class Flow:
    """What clients know about the flow."""

    def __init__(self, counts: defaultdict[str, int]) -> None:
        self.counts = counts
        self.returned = set[Item]()
        """Members whose push has returned."""
        self.follows = False
        """Whether something follows it."""
        self.outcome = b""
        self.came = set[Item]()
        """What came after it."""
        self.waits = dict[Item, frozenset[Item]]()
        """Members that wait, and for which of those whose push had returned."""
        self.let_go = set[Item]()
        """Those of them that were handed out."""
        self.is_judged = True
        self.is_ending = False
        """Whether a client is about to have the end decided."""
        self.is_cut_short = False
        """Whether somebody cancels it, or has it fail: members that are queued may go."""
        self.is_followed_in_leg = False
        """Whether what follows is pushed into the other queue."""
        self.is_undone = False
        """Whether something follows a failure."""

        self.stands = False
        """Whether the inner flow is a member, where flows are nested."""
        self.has_leg = False
        """Whether there are two queues: then what was added by a push that has not returned may come after the end."""

    def __repr__(self) -> str:
        return f"{self.returned=} {self.outcome=} {self.came=}"

    def counts_for(self, bundle: Item) -> bool:
        """Whether the flow has to wait for the members of a bundle."""
        return not self.has_leg or any(place_of(item)[0] == bundle for item in self.returned)

    def tell(self, outcome: bytes) -> None:
        """A client was told how the flow has ended."""
        if self.outcome and outcome != self.outcome and self.is_judged:
            raise Broken(Promise.FLOW_TOLD_OTHERWISE, f"{outcome}, {self.outcome} before")
        self.outcome = outcome


class Ledger:
    """Kept by an observer who sees all clients; no client reads in it but for the leases that its own clock tells."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.keeps_results = False
        """Whether consumers ack with a result: their token."""
        self.pushed: set[Item] = set()
        self.later = set[bytes]()
        """Bundles that were pushed in the form of the second level."""
        self.placed: dict[Item, str] = {}
        """The register of the shard on which a push has returned, where there are several; by ``same``."""
        self.acked: set[Item] = set()
        self.maybe_acked: defaultdict[Item, set[Token]] = defaultdict(set)
        self.begun_at: dict[Item, int] = {}
        self.returned_at: dict[Item, int] = {}
        self.is_declared = not clock.declared
        """Whether the order is declared everywhere: pushes that began before have no place in it."""
        self._moment = 0
        """Of pushes into ordered groups."""
        self.may_have_ended: set[Item] = set()
        """Items that a consumer may have acked or buried."""
        self.handed_out: set[Item] = set()
        self.redriven: set[Item] = set()
        self.greatest: dict[int, tuple[int, ...]] = {}
        """The greatest token of each group."""
        self.home = FIRST_VIEW
        """The register of the home of the queue, where items of another shard come home."""
        self.asked_at: dict[Token, str] = {}
        """The register of the shard of each claim request there."""
        self.asked_in_order: set[Token] = set()
        """Claim requests that began when the order was declared everywhere."""
        self.results: dict[Item, bytes] = {}
        """Of acks that have returned."""
        self.saves = False
        """Whether consumers save what they have done."""
        self.saved: defaultdict[Item, frozenset[bytes]] = defaultdict(frozenset)
        """Marks that every later delivery is given: of saves that have returned, and of what deliveries were given."""
        self.told: dict[Item, tuple[bytes, bytes]] = {}
        """Final states that callers have learned, by item."""
        self.coming: set[Item] = set()
        """Items that a home may have adopted."""
        self.may_come_again: set[Item] = set()
        """Items that two shards may have."""
        self.pardons = 0
        """How often servers were allowed to lose something."""
        self.refused_acks: defaultdict[Item, set[Token]] = defaultdict(set)
        self.tokens: list[Token] = []
        self.lapsed = clock.lapsed
        self.holders: defaultdict[Item, set[Token]] = defaultdict(set)
        self.settled: set[Token] = set()
        self.fenced: set[Token] = set()
        self.pushing: set[float] = set()
        self.pushing_plain: set[float] = set()
        """Those of pushes without an identity, where there are several shards."""
        self.forgiven: set[Token] = set()
        self.counts: defaultdict[str, int] = defaultdict(int)
        self.flow = Flow(self.counts)
        self.wronged: set[tuple[str, str, str]] = set()

    # -- what clients report -----------------------------------------------------------------------------------------

    def push_returned(self, item: Item, register: str) -> None:
        """A push has returned on one of several shards."""
        self.pushed.add(item)
        where = self.placed.setdefault(same(item), register)
        self.counts["pushed to another shard"] += register != FIRST_VIEW
        if where != register:
            raise Broken(Promise.TWICE, f"item {item} on shards {where} and {register}")

    def is_at_home(self, token: Token) -> bool:
        """Whether a claim request goes to the home of the queue."""
        return self.asked_at.get(token, self.home) == self.home

    def request(self, token: Token) -> None:
        self.tokens.append(token)
        if self.is_declared:
            self.asked_in_order.add(token)
        if any(owner_of(other) == owner_of(token) for other in self.lapsed):
            self.lapsed.add(token)

    def hold(self, item: Item, token: Token) -> None:
        self.counts["holds"] += 1
        holders = self.holders[same(item)]
        holders.add(token)
        if same(item) in self.acked - self.may_come_again:
            raise Broken(Promise.REDELIVERED, f"item {item} to token {token}")
        if len(holders) > 1:
            raise Broken(Promise.TWO_HOLDERS, f"item {item} with tokens {sorted(holders)}")
        self._check_flow(item)
        if self.clock.homed and not self.is_judged(item, token):
            return
        if limit := self.clock.limit:
            held = sum(self.is_at_home(other) for tokens in self.holders.values() for other in tokens)
            self.counts["holds at the limit"] += held == limit
            if held > limit:
                raise Broken(Promise.OVER_THE_LIMIT, f"item {item} to token {token}: {held} are held")
        if limit := self.clock.group_limit:
            group = group_of(place_of(item)[0])
            held = sum(len(tokens) for other, tokens in self.holders.items() if group_of(place_of(other)[0]) == group)
            self.counts["holds at the limit of a group"] += held == limit
            if held > limit:
                raise Broken(Promise.OVER_THE_LIMIT_OF_A_GROUP, f"item {item} to token {token}: {held} are held")

    def give_saved(self, item: Item, state: bytes) -> None:
        """A consumer was given an item with this state: marks, each of a save."""
        marks = frozenset(state.split())
        self.counts["states given"] += bool(marks)
        if missing := self.saved[item] - marks:
            raise Broken(Promise.SAVED_LOST, f"item {item} with {sorted(marks)}, without {sorted(missing)}")
        self.saved[item] = marks

    def save_returned(self, item: Item, token: Token, state: bytes) -> None:
        """A save has returned."""
        self.counts["saves"] += 1
        if token not in self.forgiven:
            self.saved[item] |= frozenset(state.split())

    def _check_flow(self, item: Item) -> None:
        """What follows a flow comes once, and after all members."""
        flow = self.flow
        if not flow.is_judged:
            return
        self._check_waits(item)
        is_undone = item.startswith(b"undo")
        if is_undone or item.startswith(b"then"):
            if flow.outcome in ((CANCELLED, DONE) if is_undone else (CANCELLED, FAILED)):
                raise Broken(Promise.FLOW_TOLD_OTHERWISE, f"{item}, though it was {flow.outcome}")
            self.counts["undone" if is_undone else "follows"] += item not in flow.came
            flow.came.add(item)
            acked = {each for each in flow.returned if self.maybe_acked[each] - {"an operator"}}
            ended = self.may_have_ended if is_undone else acked
            if missing := flow.returned - ended:
                raise Broken(Promise.FLOW_EARLY, f"{item} before {sorted(missing)}")
            if len(flow.came) > 1:
                raise Broken(Promise.FLOW_TWICE, f"{sorted(flow.came)}")
        elif flow.came and item in flow.returned and not (item in self.redriven and b"undo" in flow.came):
            raise Broken(Promise.FLOW_AFTER, f"{item} after {sorted(flow.came)}")

    def _check_waits(self, item: Item) -> None:
        """A member comes after those for which it waits, and none of them afterwards."""
        flow = self.flow
        if missing := [each for each in flow.waits.get(item, ()) if not self.maybe_acked[each] - {"an operator"}]:
            raise Broken(Promise.FLOW_EARLY, f"{item} before {sorted(missing)}, for which it waits")
        if behind := [each for each in flow.let_go if item in flow.waits[each]]:
            raise Broken(Promise.FLOW_AFTER, f"{item} after {sorted(behind)}, which waited for it")
        if item in flow.waits:
            self.counts["let go"] += item not in flow.let_go
            flow.let_go.add(item)

    def is_judged(self, item: Item, token: Token) -> bool:
        """Whether a claim was asked for since it was declared that one server decides about all of them; then it is
        one of home's."""
        if token not in self.asked_in_order or self.pardons:
            return False
        if not self.is_at_home(token):
            raise Broken(Promise.BESIDE_HOME, f"item {item} to token {token}")
        self.counts["holds at home"] += 1
        return True

    def push_begins(self, item: Item) -> None:
        self._moment += 1
        self.begun_at.setdefault(item, self._moment)

    def push_returns(self, item: Item) -> None:
        self._moment += 1
        self.returned_at.setdefault(item, self._moment)

    def hold_in_order(self, item: Item, token: Token, fence: tuple[int, int]) -> None:
        """A consumer is given an item of an ordered group, with this fencing token."""
        if not self.clock.ordered or self.pardons:
            return
        group = group_of(same(item))
        if self.clock.homed and self.is_declared and not self.is_at_home(token):
            return
        if self.clock.homed and token in self.asked_in_order:
            self._check_alone(item, token)
        if token in self.asked_in_order and fence <= self.greatest.get(group, (0, 0)):
            raise Broken(Promise.TOKEN_WENT_BACK, f"item {item}: {fence} after {self.greatest[group]}")
        self.greatest[group] = max(fence, self.greatest.get(group, fence))
        if item not in self.begun_at:
            return
        mates = [other for other in self.begun_at if group_of(same(other)) == group and other != item]
        for other in mates:
            is_earlier = self.returned_at.get(other, self._moment + 1) < self.begun_at[item]
            if is_earlier and other not in self.may_have_ended and item not in self.redriven:
                raise Broken(Promise.OUT_OF_ORDER, f"item {item}, while {other} has not ended")
            is_later = self.returned_at.get(item, self._moment + 1) < self.begun_at[other]
            if is_later and other in self.handed_out and item not in self.redriven:
                raise Broken(Promise.OUT_OF_ORDER, f"item {item}, after {other} was handed out")
        self.handed_out.add(item)
        self.counts["holds in order"] += 1

    def _check_alone(self, item: Item, token: Token) -> None:
        """Raise ``Broken`` if another item of the group is claimed at home."""
        mates = {
            other: held
            for other, tokens in self.holders.items()
            for held in tokens
            if other != same(item) and group_of(other) == group_of(same(item)) and self.is_at_home(held)
        }
        if mates:
            raise Broken(Promise.OUT_OF_ORDER, f"item {item} to token {token}, while {mates} are held")

    def let_go(self, item: Item, token: Token) -> None:
        self.holders[same(item)].discard(token)

    def lapse(self, token: Token) -> None:
        """The lease is over, by the clocks of the servers and of the holder; and so are all others of its owner."""
        over = self._of_the_owner(token)
        self.lapsed |= over
        for holders in self.holders.values():
            holders -= over

    def _of_the_owner(self, token: Token) -> set[Token]:
        """Return a token and the others of its owner, which has several only where it takes turns."""
        return {token, *(other for other in self.tokens if owner_of(other) == owner_of(token))}

    def settling(self, item: Item, token: Token, verb: str) -> None:
        if verb == "ack":
            self.maybe_acked[item].add(token)
        if verb in ("ack", "bury"):
            self.may_have_ended.add(item)

    def may_be_removed(self, item: Item) -> None:
        """An operator is about to remove an item."""
        self.maybe_acked[item].add("an operator")
        self.may_have_ended.add(item)

    def not_settled(self, item: Item, token: Token) -> None:
        """The consumer was told that nothing has happened."""
        self.maybe_acked[item].discard(token)

    def settled_by(self, item: Item, token: Token, verb: str) -> None:
        self.counts["settled"] += 1
        self.settled.add(token)
        if verb == "ack":
            self.counts["acked"] += 1
            if token not in self.forgiven:
                self.acked.add(same(item))
                if self.keeps_results:
                    self.results[item] = token.encode()
                    self._check_told(item)

    def tell(self, item: Item, letter: bytes, text: bytes, *, is_later: bool) -> None:
        """A caller was told what became of an item.  ``is_later``: it asked after another one had been told the end.

        That a primary does not know an item is not the last word: the others are asked, too, in ``client/awaiting.py``.
        """
        self.counts["told"] += 1
        if letter in (b"Q", b"C", b"D", b"U"):
            if item in self.told and is_later:
                raise Broken(Promise.TOLD_OTHERWISE, f"item {item}: {self.told[item]}, then {letter}")
            return
        if self.told.setdefault(item, (letter, text)) != (letter, text):
            raise Broken(Promise.TOLD_OTHERWISE, f"item {item}: {self.told[item]}, then {letter} {text}")
        self.counts["told the end"] += 1
        if letter in (b"A", b"L"):
            self.acked.add(same(item))  # it is never delivered again
            self.maybe_acked[item].add(text.decode())
        self._check_told(item)

    def _check_told(self, item: Item) -> None:
        """Callers that asked about an acked item have learned its result."""
        if item in self.told and item in self.results and self.told[item] != (b"A", self.results[item]):
            raise Broken(Promise.RESULT_LOST, f"item {item}: {self.told[item]} instead of {self.results[item]}")

    def refused(self, item: Item, token: Token, verb: str, *, is_handed: bool = False) -> None:
        """``is_handed``: the answer that refuses the consumer hands it the item out again."""
        self.counts["refused"] += 1
        if verb == "ack":
            self.maybe_acked[item].discard(token)
            self.refused_acks[item].add(token)
        # What a lost answer has queued again another consumer may have by now.  So it is with what it has buried, if a
        # redrive has queued that again.
        is_final = verb in ("ack", "extend", "save") or (verb == "bury" and item not in self.redriven)
        if (is_final or is_handed) and token not in self.lapsed:
            raise Broken(Promise.ACK_REFUSED, f"item {item}, token {token}, {verb}")

    def withheld(self, item: Item, token: Token) -> None:
        """A consumer was told that a claim which it has just made is over."""
        self.counts["withheld"] += 1
        if token not in self.lapsed:
            raise Broken(Promise.WITHHELD, f"item {item}, token {token}")

    def evicted_wrongly(self, client: str, server: str, run_id: str) -> None:
        """A client has evicted a server for its silence that others reach: it may err once about each process."""
        self.counts["wrong evictions"] += 1
        if (client, server, run_id) in self.wronged:
            raise Broken(Promise.EVICTED_AGAIN, f"{server} by {client}")
        self.wronged.add((client, server, run_id))

    def evicted_for_one(self, client: str, server: str) -> None:
        """A client has evicted a server that keeps nobody else out: that is its own trouble."""
        raise Broken(Promise.EVICTED_FOR_ONE, f"{server} by {client}")

    def age(self, pushed_at_ms: float) -> float:
        """Which time it is for the scrub that judges this push: one that nobody is busy with is old, if need be."""
        if pushed_at_ms in self.pushing:
            return pushed_at_ms
        self.clock.old.add(pushed_at_ms)
        return pushed_at_ms + 2 * PUT_WINDOW_MS

    def fence_completed(self, token: Token) -> None:
        self.counts["fenced"] += 1
        self.fenced |= self._of_the_owner(token)

    def forgive(self) -> None:
        """The only member lost something: below min_replicas only what was pushed is safe, not the acks that it alone
        knows, whether their clients have heard of them yet or not.  Nor its refusal of an ack that an evicted server
        had still decided, which is now the one to be believed: that ack counts, whose handler had done its work.  Nor
        that it let an item go home: both shards may have it."""
        self.may_come_again |= self.coming
        self.flow.is_judged = False
        self.acked.clear()
        self.results.clear()
        self.saved.clear()
        self.told.clear()
        self.pardons += 1
        for item, tokens in self.refused_acks.items():
            self.maybe_acked[item] |= tokens
        self.forgiven.update(self.tokens)
        for token in self.tokens:
            self.lapse(token)

    # -- when all is quiet -------------------------------------------------------------------------------------------

    @property
    def owed(self) -> set[Item]:
        """Items that must still be there: pushed, and no ack of theirs may have happened."""
        return {item for item in self.pushed if not self.maybe_acked[item]}

    def owed_by(self, register: str) -> set[Item]:
        """Those of one shard."""
        return {item for item in self.owed if self.placed.get(same(item), FIRST_VIEW) == register}

    def check_shards(self, registers: Collection[str]) -> None:
        """What is owed is on a shard that there is."""
        for item in sorted(self.owed):
            if self.placed.get(same(item), FIRST_VIEW) not in registers:
                raise Broken(Promise.LOST, f"item {item.decode()} on a shard that was removed")

    def check_once(self, shards: Collection[Collection[Server]]) -> None:
        """No item is on the servers of two shards."""
        seen = set[Item]()
        for servers in shards:
            here = {same(item) for server in servers for item in server.alive}
            if here & seen:
                raise Broken(Promise.TWICE, f"items {sorted(here & seen)}")
            seen |= here

    def check_content(self, server: Server, register: str) -> None:
        """A server that is in sync has everything that its shard owes, and nothing that is gone."""
        records = server.records
        for item in sorted(self.owed_by(register)):
            if not server.has(item):
                bundle, _ = place_of(item)
                held, payload = records.get(bundle), server.held.payloads.get(bundle)
                raise Broken(
                    Promise.LOST, f"item {item.decode()} on {server.id}, which has {held} and payloads {payload}"
                )
        for item, text in self.results.items():
            bundle, position = place_of(item)
            if server.held.results.get(bundle, {}).get(position) != text:
                raise Broken(Promise.RESULT_LOST, f"item {item} on {server.id}, which has {records.get(bundle)}")
        for item in sorted(server.alive):
            if same(item) in self.acked - self.may_come_again:
                held = records.get(place_of(item)[0])
                raise Broken(Promise.REDELIVERED, f"item {item} on {server.id}, which has {held}")

    def check_likeness(self, primary: Server, follower: Server) -> None:
        """After a scrub servers in sync do not differ, but for tombstones that only a follower has."""
        here, there = primary.records, follower.records
        differing = {
            item for item, held in there.items() if here.get(item) != held and (item in here or held.is_alive)
        } | (here.keys() - there.keys())
        differing |= {place_of(item)[0] for item in primary.alive if primary.has(item) and not follower.has(item)}
        if differing:
            told = "; ".join(f"{item}: {here.get(item)}, {there.get(item)}" for item in sorted(differing))
            raise Broken(Promise.DIVERGED, f"{primary.id} and {follower.id} in {told}")

    def check_delivery(self, primary: Server, register: str, *, besides: Collection[Item] = ()) -> None:
        """Time passes, the dead are fenced: now everything that is owed can be claimed.  ``besides``: what is held."""
        held = {token for holders in self.holders.values() for token in holders}
        known = held | (self.lapsed - self.fenced)  # a fence that was not completed is found and done again, by anybody
        drafts = [Draft(bundle, record) for bundle, record in primary.records.items()]
        self.counts["orphans"] += sum(
            state == CLAIMED and draft.token_at(position) not in known
            for draft in drafts
            for position, state in enumerate(draft.states)
        )
        self.lapsed.update(self.tokens)
        self.clock.limit = self.clock.group_limit = 0
        self.clock.ordered = False
        for token in sorted(known):
            primary.ask(Fence(QUEUE, owner_of(token)))
        redrive_all(primary)
        everything = Claim(QUEUE, "the last", 1, len(primary.alive), 1, "", 0, "X", 0, 0)
        delivered = {id for id, *_ in handed(everything.read(primary.ask(everything).body))}
        if missing := self.owed_by(register) - delivered - set(besides):
            raise Broken(Promise.STRANDED, f"items {sorted(missing)} on {primary.id}")


def redrive_all(primary: Server) -> None:
    """Queue all dead letters again."""
    dead = [
        id.decode()
        for bundle, record in primary.records.items()
        for id, state in zip(items_of(bundle, record), record.states, strict=True)
        if state == DEAD
    ]
    primary.ask(Redrive(QUEUE, 0, 0, "the last", dead))
