"""What all parts of a schedule share: the servers, the view in ZooKeeper, chance, and the ledger."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import count

from tests.model.content import Clock, Token
from tests.model.promises import Ledger
from tests.model.rules import ALL_RULES, Rule, Rules
from tests.model.server import DENIED, TIMED_OUT, Request, Server
from zkrq.protocol.calls import Seal
from zkrq.protocol.replies import Answer, Status
from zkrq.protocol.server_info import ServerInfo
from zkrq.protocol.shards import FIRST_VIEW
from zkrq.protocol.view import FOUNDING, Life, ServerId, View, accused

SERVERS = tuple(ServerId(id) for id in "ABC")

Event = tuple[object, ...]

RENAMED = 0.3
"""How often a consumer has another owner id by the next request."""

DOZES = 0.2
DOZE = 250
"""How often a client dozes at a moment at which that may matter, and for how many turns at most."""


class Trouble(enum.Enum):
    """What is between one client and one server, or all clients and one server."""

    SILENT = "the client does not reach it"
    KEPT_OUT = "it does not let the client in"
    CLOSED = "it lets nobody in"
    ASKEW = "its clock is wrong: it refuses every push for its age"


BEHIND_LINKS = (Trouble.SILENT, Trouble.KEPT_OUT, Trouble.CLOSED)
"""What broken links are drawn from."""

AHEAD = 3600.0
"""Seconds by which a wrong clock is ahead."""


LIMIT, GROUP_LIMIT = 3, 2
"""Items claimed at once, of the queue and of each group, where it has limits: a request asks for up to four."""


@dataclass
class Links:
    """Schedules in which one client cannot always use one server, and clients judge by their standing."""

    server: ServerId
    trouble: Trouble
    down: bool = False
    is_cut: Callable[[object], bool] = lambda client: False
    """Whether this client is the one, and its link is down."""
    is_watched: Callable[[], bool] = lambda: False
    """Whether a client lives that answers accusations."""
    is_over: Callable[[], bool] = lambda: True
    """Whether the client of that link has ended."""

    def is_closed(self, server: ServerId) -> bool:
        """Whether this server lets nobody in, which lasts no longer than the client that it is closed to."""
        return self.down and server == self.server and self.trouble is Trouble.CLOSED and not self.is_over()

    def is_askew(self, server: ServerId) -> bool:
        """Whether the clock of this server is wrong, for every client."""
        return self.down and server == self.server and self.trouble is Trouble.ASKEW

    def answer(self, client: object, server: ServerId) -> Answer | None:
        """What a client gets instead of an answer of this server."""
        if self.is_closed(server):
            return DENIED
        if server == self.server and self.is_cut(client) and self.trouble is not Trouble.ASKEW:
            return TIMED_OUT if self.trouble is Trouble.SILENT else DENIED
        return None


class World:
    """The beginning of every schedule: three members, nothing stored.

    Schedules are of two kinds.  In one, servers fail as long as another member is in sync, which is more than what the
    protocol promises to stand, so a view may be left without anybody; what is checked is what servers in sync hold.
    With ``blackouts`` no more than ``min_replicas - 1`` servers have lost something at the same time, but all of them
    may be restarted at once: then everything must come back.

    Where there are several shards, each is a world: they differ in servers, view and register, and share all else.
    """

    def __init__(
        self,
        seed: int,
        on: Rules,
        *,
        links: bool = False,
        clocks: bool = False,
        turns: bool = False,
        limited: bool = False,
        results: bool = False,
        saves: bool = False,
        levels: bool = False,
        ordered: bool = False,
        declared: bool = False,
        homed: bool = False,
    ) -> None:
        """``clocks``: that of one server is wrong at times.  ``turns``: consumers may settle and claim in one decision.
        ``limited``: the queue has a limit.
        ``results``: consumers ack with a result.  ``saves``: they save what they have done.
        ``levels``: clients are of two releases, and the level is raised.
        ``ordered``: groups keep the order of their pushes.  ``declared``: once that is declared.  ``homed``: a limit or
        an order is declared while items are on two shards."""
        self.on = on
        self.has_all_rules = on == ALL_RULES
        """Whether what a client knows must be consistent: without some rule it need not be."""
        self.turns = turns and Rule.PRIMARY_DECIDES in on
        trouble = BEHIND_LINKS[seed // 2 // len(SERVERS) % len(BEHIND_LINKS)] if links else Trouble.ASKEW
        self.links = Links(SERVERS[seed // 2 % len(SERVERS)], trouble) if links or clocks else None
        self.blackouts = seed % 2 == 1
        clock = Clock(limit=LIMIT, group_limit=GROUP_LIMIT) if limited else Clock()
        if homed:
            clock = Clock(limit=0 if ordered else LIMIT, homed=True)
        clock.ordered, clock.declared = ordered, declared or homed
        self.ledger = Ledger(clock)
        self.ledger.keeps_results = results
        self.ledger.saves = saves
        self.levels = levels
        self.trace: list[Event] = []
        # Nothing but random() is used: what it gives for a seed is the same in every version of Python.
        self.random = random.Random(seed).random
        self._numbers = count(1)
        self.register = FIRST_VIEW
        self.version = 0
        """Of the register, until there is a view; -1: nothing was ever written."""
        self.has_ended = False
        self.is_nested = False
        """Whether the flow has its members in a flow that is a member of it."""
        self.leg: World | None = None
        """The servers of another queue, where the flow has members in two."""
        self.on_founded: Callable[[World], None] = lambda world: None
        """Called when a shard has its first view."""
        self.is_busy: Callable[[], bool] = lambda: False
        """Whether there are clients of several shards at work."""
        self.servers: Mapping[ServerId, Server] = {id: Server(id, on, clock, f"{id}1", self.nonce()) for id in SERVERS}
        if self.links:
            for id, server in self.servers.items():
                server.scripts.is_askew = partial(self.links.is_askew, id)
        members = {id: server.life for id, server in self.servers.items()}
        self.view = View(1, members, {}, {}, dict.fromkeys(SERVERS, ""), min_replicas=2, by=self.nonce())

    def beside(self, register: str, servers: Mapping[ServerId, Server]) -> World:
        """A shard that is not founded yet."""
        other = copy(self)
        other.register, other.version, other.servers = register, -1, servers
        other.view = View(FOUNDING, {}, {}, {}, dict.fromkeys(servers, ""), 2, by="")
        return other

    @property
    def is_founded(self) -> bool:
        return self.view.epoch > FOUNDING

    # -- chance ------------------------------------------------------------------------------------------------------

    def below(self, n: int) -> int:
        return int(self.random() * n)

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def doze(self) -> range:
        """Turns for which a client does nothing, in the middle of something."""
        return range(self.below(DOZE) if self.chance(DOZES) else 0)

    # -- names that are used once ------------------------------------------------------------------------------------

    def number(self) -> int:
        return next(self._numbers)

    def nonce(self) -> str:
        return f"g{self.number()}"

    def token(self) -> Token:
        token = f"{self.number():03}/1"
        self.ledger.request(token)
        return token

    def next_token(self, token: Token, *, may_rename: bool) -> Token:
        """Return the token of the request after this one: of the same owner, or sometimes of another if that may be."""
        if may_rename and self.chance(RENAMED):
            return self.token()
        owner, _, seq = token.rpartition("/")
        token = f"{owner}/{int(seq) + 1}"
        self.ledger.request(token)
        return token

    # -- what happened -----------------------------------------------------------------------------------------------

    def log(self, *event: object) -> None:
        self.trace.append(event)

    def change_view(self, view: View) -> None:
        for id, life in view.members.items():
            if self.view.members.get(id) != life:
                self.servers[id].intact = self.servers[id].life == life
        if view.epoch == self.view.epoch:
            self.ledger.counts["accusations"] += accused(view) > accused(self.view)
            self.ledger.counts["refutations"] += accused(view) < accused(self.view)
        self.view = view
        self.ledger.counts["views"] += 1
        self.log("view", view)

    def found(self, view: View, version: int) -> None:
        """Write the first view, or the plan of it, by compare-and-set."""
        if version != self.version:
            return
        self.view, self.version = view, version + 1
        self.log("view", self.register, view)
        if self.is_founded:
            for id, life in view.members.items():
                self.servers[id].intact = self.servers[id].life == life
            self.on_founded(self)

    def end(self, view: View) -> bool:
        """End the view, if it is this one: the shard is removed."""
        if self.has_ended or (self.view is not view and Rule.VIEW_ENDS_UNCHANGED in self.on):
            return False
        self.has_ended = True
        self.ledger.counts["removed shards"] += 1
        self.log("view", self.register, "ends")
        return True

    def in_sync(self, id: ServerId) -> bool:
        """Whether the server lives the life in which it is a member."""
        life = self.view.members.get(id)
        return life == self.servers[id].life

    def is_reached(self, id: ServerId) -> bool:
        """Whether a client that answers accusations lives, and the server answers it: then it has the time to say so,
        which is what the seconds are for that an accusation is left open."""
        assert self.links
        life = self.view.receivers.get(id)
        server = self.servers[id]
        reached = life == server.life and not server.paused and not self.links.is_closed(id)
        return self.links.is_watched() and reached

    def note_evicted(self, client: str, id: ServerId, life: Life, *, let_in_others: bool) -> None:
        """Report an eviction of a server that others reach, for its silence or because it keeps this client out."""
        if let_in_others:
            self.ledger.evicted_for_one(client, id)
        server, links = self.servers[id], self.links
        if links and links.is_watched() and server.life == life and not server.paused and not links.is_closed(id):
            self.ledger.evicted_wrongly(client, id, life.run_id)

    def believes(self, id: ServerId) -> bool:
        """Whether clients take the server's word; with all rules, only when it is in sync."""
        request = Request(id, self.view.members[id], self.view.epoch, Seal())
        return self.servers[id].receive(request).status is Status.OK

    def identify(self, id: ServerId) -> ServerInfo | Answer:
        """What a server says of itself."""
        server = self.servers[id]
        if server.paused:
            return TIMED_OUT
        if self.links and self.links.is_closed(id):
            return DENIED
        return ServerInfo(
            run_id=server.run_id,
            version=(7,),
            role="master",
            maxmemory_policy="noeviction",
            cluster=False,
            generation=server.held.generation,
            epoch=server.held.epoch,
            name=id,
            deployment=self.view.deployment,
            queues=int(server.held.known),
            clock_us=0,
            ahead=AHEAD if self.links and self.links.is_askew(id) else 0.0,
            maxmemory=0,
            used_memory=0,
        )
