"""One schedule: whose turn it is, which message arrives, and what fails.  All of it follows from the seed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypedDict, TypeVar

from tests.levels import LATER
from tests.model.actors import Actor, Client, Fault, Message, take
from tests.model.awaiting import determined, steps_of
from tests.model.bundle import put_together, taken_apart
from tests.model.clients import Caller, Cut, Declarer, Producer, Reaper, Upgrader, Watcher
from tests.model.coming import (
    Announcer,
    Canceller,
    Finisher,
    Grouper,
    Hasty,
    Homed,
    Mover,
    check_all_is_home,
    check_items,
    end_claims,
)
from tests.model.consumers import Consumer
from tests.model.content import QUEUE
from tests.model.ensemble import FURTHER, Ensemble
from tests.model.flow_ending import begin_leg, clients_of_flow, end_flow, is_early
from tests.model.flowing import Slow, Working
from tests.model.membership import Refused, Steps
from tests.model.promises import Broken, Promise
from tests.model.repair import Repairer, Scrubber
from tests.model.rules import ALL_RULES, Rule, Rules
from tests.model.server import TIMED_OUT, Server
from tests.model.spreading import SECONDS, Namer, Operator, Patient, Spreader, Spreading, Steady
from tests.model.world import Links, World
from zkrq.protocol.calls import Enrol, Reserve, Wipe
from zkrq.protocol.replies import Answer, Status
from zkrq.protocol.shards import ShardName
from zkrq.protocol.shards import home as home_of
from zkrq.protocol.view import ServerId

T = TypeVar("T")

FAULTS = 5
"""Faults of servers and clients in one schedule; what happens to messages is not counted."""

ORDERS = 3
"""Of as many schedules in which items come home, one declares an order, the others a limit."""

STEPS_MAX = 5000
"""Where there are several shards, twice as many."""

MIXED = 2
"""More states of items, or owners of claims, make a bundle a mixed one."""

NO_PAYLOADS = put_together([])

FINAL_SCRUBS = 3
"""Tries of the last scrub."""


FAULT_KINDS = (
    Fault.WIPED,
    Fault.FLUSHED,
    Fault.ROLLED_BACK,
    Fault.PAUSED,
    Fault.PAUSED,
    Fault.CLIENT_DIED,
    Fault.POWER_CUT,
)
"""Drawn from with equal chances, the last only in schedules with blackouts."""

FAULT = 0.012
SAVE = 0.02
TIME_OUT = 0.03
RARE = 0.06
"""The probabilities of rare steps, one within the other: a server fails; one saves a dump; a client gives up waiting
for an answer; where tombstones are not kept, they go."""

RESUMES = 0.1
"""How often a server goes on that everybody waits for, where there are several shards."""

DROP = 0.4
DOUBLE = 0.02


UPGRADERS = 2
"""Clients that raise the level, where there are two releases: one of them may die."""

CALLERS = 2
"""Clients that ask what became of items, where consumers ack with a result."""


class Kind(TypedDict, total=False):
    """What is special about a schedule; see ``Schedule``."""

    links: bool
    clocks: bool
    shards: bool
    turns: bool
    limited: bool
    results: bool
    saves: bool
    levels: bool
    ordered: bool
    settings: bool
    homing: bool
    flows: bool
    legs: bool
    nested: bool
    names: bool


class Schedule:
    def __init__(
        self,
        seed: int,
        on: Rules = ALL_RULES,
        faults: int = FAULTS,
        *,
        links: bool = False,
        clocks: bool = False,
        shards: bool = False,
        turns: bool = False,
        limited: bool = False,
        results: bool = False,
        saves: bool = False,
        levels: bool = False,
        ordered: bool = False,
        settings: bool = False,
        homing: bool = False,
        flows: bool = False,
        legs: bool = False,
        nested: bool = False,
        names: bool = False,
    ) -> None:
        """``links``: one client does not always reach one server.  ``clocks``: that of one server is wrong at times.
        ``shards``: a second shard comes and goes.  ``turns``: consumers settle and claim in one decision.
        ``limited``: the queue has a limit of items claimed at once.  ``results``: consumers ack with a result, for
        which callers ask.  ``saves``: they save what they have done.  ``levels``: clients are of two releases, and the
        level is raised.  ``ordered``: groups keep the order of their pushes.  ``settings``: they do once a client has
        declared it, and producers do not know of it.
        ``homing``: a limit or an order is declared while items are on two shards, from one of which they come home.
        ``flows``: some items are members of a flow, which another one follows.  ``legs``: in two queues;
        ``nested``: of a flow that is a member of that one; ``names``: some wait for others."""
        self._has_flow = flows = flows or legs or nested or names
        shards = shards and not homing
        self.world = World(
            seed,
            on,
            links=links,
            clocks=clocks,
            turns=turns,
            limited=limited,
            results=results,
            saves=saves,
            levels=levels,
            ordered=ordered or settings or (homing and seed // 2 % ORDERS == 0),
            declared=settings,
            homed=homing,
        )
        self.world.is_nested = nested
        self.world.ledger.flow.is_undone = nested and self.world.chance(0.5)
        self.trace = self.world.trace
        self.counts = self.world.ledger.counts
        self.on = on
        self._faults_left = faults
        self._rarity = 2.5 if shards or homing or legs else 1  # there is more going on
        self._alive: list[Actor] = []
        self._ready: list[Actor] = []
        self._network: list[Message] = []
        self._servers: dict[ServerId, Server] = {}
        self._held_up: dict[ServerId, list[Message]] = {}
        self._spreading: Sequence[Spreading] = ()
        self._ensemble = Ensemble(self.world) if shards or homing else None
        producers: Iterable[Client] = (Producer(self.world, pushed) for pushed in (range(1, 4), range(4, 7)))
        self._know(self.world)
        self._is_homing = homing
        if self._ensemble and homing:
            self._begin_apart(self._ensemble)
            return
        if self._ensemble:
            self.world.on_founded = self._know_another
            self.world.is_busy = lambda: any(isinstance(actor.client, Spreading) for actor in self._alive)
            producers = self._spread(self._ensemble)
        if legs:
            self.world.leg = begin_leg(self.world, FURTHER[0])
            self._know(self.world.leg)
        consumer = Patient if shards else Working if flows else Consumer
        self._enter(
            *(clients_of_flow(self.world, names=names) if flows else producers),
            *(consumer(self.world) for _ in range(3)),
            *((Steady if shards else Slow if flows else Repairer)(self.world) for _ in range(2)),
            Reaper(self.world),
            Scrubber(self.world),
            *(Caller(self.world) for _ in range(CALLERS if results else 0)),
            *(Upgrader(self.world) for _ in range(UPGRADERS if levels else 0)),
            *(Declarer(self.world) for _ in range(1 if settings else 0)),
        )
        if leg := self.world.leg:
            self._enter(*(kind(leg) for kind in (Working, Working, Slow, Slow, Reaper, Scrubber)))
        if self.world.links:
            self._cut(self.world.links)

    @property
    def _worlds(self) -> Sequence[World]:
        """The shards that clients use."""
        own = (self.world, self.world.leg) if self.world.leg else (self.world,)
        return self._ensemble.founded if self._ensemble else own

    def _enter(self, *clients: Client) -> None:
        begin = len(self._alive)
        actors = [Actor(f"{type(client).__name__.lower()} {n}", client) for n, client in enumerate(clients, begin)]
        self._alive += actors
        self._ready += actors

    def _know(self, world: World) -> None:
        self._servers.update(world.servers)
        self._held_up.update((id, []) for id in world.servers)

    def _know_another(self, world: World) -> None:
        """A shard was founded: it has clients of its own, unless the map has given it up meanwhile."""
        if self._ensemble and self._ensemble.map.shard_with(world.register) is None:
            return
        self._enter(*(Patient(world) for _ in range(2)), Steady(world), Reaper(world), Scrubber(world))

    def _spread(self, ensemble: Ensemble) -> Sequence[Client]:
        name = ShardName(SECONDS[self.world.below(len(SECONDS))])
        for servers in ensemble.further:
            self._servers.update(servers)
            self._held_up.update((id, []) for id in servers)
        busy: dict[int, int] = {}
        self._spreading = [
            *(Spreader(ensemble, pushed) for pushed in (range(1, 4), range(4, 7))),
            Namer(ensemble, (20, 30, 21, 31, 22, 32), busy, lingers=60),
            Namer(ensemble, (20, 40, 21, 41, 22, 42), busy, lingers=150),
            *(Operator(ensemble, name) for _ in range(2)),
        ]
        return self._spreading

    def _begin_apart(self, ensemble: Ensemble) -> None:
        """Enter clients of two shards that are there from the beginning."""
        there = ensemble.begin_with(ShardName(SECONDS[self.world.below(len(SECONDS))]))
        self._know(there)
        for world in (self.world, there):
            world.is_busy = lambda: any(isinstance(actor.client, Spreading) for actor in self._alive)
        map = ensemble.map
        home = self.world.ledger.home = map.shards[home_of(QUEUE, map.hashed)].register
        kind = Grouper if self.world.ledger.clock.ordered else Hasty
        self._spreading = [
            *(kind(ensemble, pushed) for pushed in (range(1, 5), range(5, 9))),
            *(Mover(ensemble) for _ in range(3)),
            *(Announcer(ensemble) for _ in range(2)),
            Canceller(ensemble),
        ]
        self._enter(*self._spreading)
        for world in (self.world, there):
            consumers = (Homed(world, home) for _ in range(3))
            self._enter(*consumers, *(Steady(world) for _ in range(2)), Reaper(world), Scrubber(world))

    def _cut(self, links: Links) -> None:
        cut, watchers = (
            Actor("cut", Cut(self.world, ())),
            [Actor(f"watcher {n}", Watcher(self.world)) for n in range(2)],
        )
        self._alive += [cut, *watchers]
        self._ready += [cut, *watchers]
        links.is_cut = lambda client: client is cut.client and links.down
        links.is_watched = lambda: any(watcher in self._alive for watcher in watchers)
        links.is_over = lambda: cut not in self._alive

    def run(self) -> None:
        """Go on until all clients are through, then check.  Raises ``Broken``."""
        if self._ensemble:
            with determined(self._ensemble):
                self._run(2 * STEPS_MAX)
        else:
            self._run(2 * STEPS_MAX if self.world.leg else STEPS_MAX)

    def _run(self, steps: int) -> None:
        random, ready, network = self.world.random, self._ready, self._network
        for _ in range(steps):
            if not self._alive:
                break
            dice = random() * self._rarity
            if dice < RARE and not (self._has_flow and is_early(self.world)) and self._rare(dice):
                continue
            turns = len(ready) + len(network)
            if not turns:
                self._wait()
                continue
            turn = int(random() * turns)
            if turn < len(ready):
                self._advance(take(ready, turn), [])
            elif random() < DOUBLE and not network[turn - len(ready)].request.once:
                self._count(Fault.DOUBLED)
                self._deliver(network[turn - len(ready)])
            else:
                self._deliver(take(network, turn - len(ready)))
        self._check()

    # -- clients and messages ----------------------------------------------------------------------------------------

    def _advance(self, actor: Actor, answers: list[Answer]) -> None:
        try:
            requests = actor.steps.send(answers) if answers else next(actor.steps)
        except StopIteration:
            self._alive.remove(actor)
            return
        except Refused:
            self._kill(actor)
            self.counts["refused"] += 1
            return
        if not requests:
            self._ready.append(actor)
            return
        actor.waiting_for = len(requests)
        slots: list[Answer | None] = [None] * len(requests)
        actor.answers = slots
        actor.messages = [Message(actor, slots, position, request) for position, request in enumerate(requests)]
        for message in actor.messages:
            server = message.request.server
            way = self._held_up[server] if self._servers[server].paused else self._network
            way.append(message)

    def _deliver(self, message: Message) -> None:
        if message.dropped:
            return
        request, links = message.request, self.world.links
        if links and (instead := links.answer(message.sender.client, request.server)):
            self._answer(message.sender, message.answers, message.position, instead)
            return
        server = self._servers[request.server]
        answer = server.receive(request)
        if self.world.levels and answer.status is Status.OK:
            self._check_spoken(message, server)
        self.trace.append((message.sender.name, request, answer))
        self._answer(message.sender, message.answers, message.position, answer)

    def _check_spoken(self, message: Message, server: Server) -> None:
        """Raise ``Broken`` if a client was let in at a server that holds what it cannot read."""
        client, call = message.sender.client, message.request.call
        # Those with which a server is enrolled and wiped read no record.
        if client.speaks >= LATER or isinstance(call, Enrol | Reserve | Wipe):
            return
        if held := self.world.ledger.later & server.held.records.keys():
            raise Broken(Promise.MISREAD, f"{message.sender.name}, {type(call).__name__} at {server.id}: {held}")

    def _answer(self, actor: Actor, slots: list[Answer | None], position: int, answer: Answer) -> None:
        held = slots[position]
        if held is not None:
            if held is TIMED_OUT:
                self._count(Fault.LATE)
            return
        slots[position] = answer
        actor.waiting_for -= 1
        if not actor.waiting_for and actor in self._alive:
            self._advance(actor, [answer for answer in slots if answer])

    # -- faults ------------------------------------------------------------------------------------------------------

    def _count(self, fault: Fault) -> None:
        self.counts[fault.value] += 1

    def _rare(self, dice: float) -> bool:
        """Whether this took the place of an ordinary step."""
        if dice < SAVE:
            self._any_server(self._any_world()).save()
        if dice < FAULT and self._faults_left:
            self._fail()
            return True
        if dice < TIME_OUT:
            return self._time_out()
        if Rule.TOMBSTONES_ARE_KEPT not in self.on:
            for server in self._servers.values():
                server.forget_tombstones()
        return False

    def _any_world(self) -> World:
        worlds = self._worlds
        return worlds[self.world.below(len(worlds))] if len(worlds) > 1 else worlds[0]

    def _any_server(self, world: World) -> Server:
        servers = list(world.servers.values())
        return servers[world.below(len(servers))]

    def _fail(self) -> None:
        world = self._any_world()
        server = self._any_server(world)
        fault = FAULT_KINDS[world.below(len(FAULT_KINDS) if world.blackouts else len(FAULT_KINDS) - 1)]
        match fault:
            case Fault.PAUSED:
                if self._ensemble:
                    server = next((each for each in world.servers.values() if each.paused), server)
                if server.paused:
                    fault = Fault.RESUMED
                    self._resume(server)
                else:
                    server.paused = True
            case Fault.POWER_CUT:
                self._cut_power(world)
            case Fault.CLIENT_DIED:
                self._kill(self._alive[world.below(len(self._alive))])
            case _:
                if not self._may_lose(world, server) or (fault is Fault.ROLLED_BACK and server.dump is None):
                    return
                view = world.view
                if server.id in view.members and len(view.members) < view.min_replicas:
                    world.ledger.forgive()
                if fault is not Fault.FLUSHED:
                    server.restart(self._run_id(server))
                server.restore(server.dump if fault is Fault.ROLLED_BACK else None)
        self._faults_left -= 1
        self._count(fault)
        world.log(fault, server.id)

    def _may_lose(self, world: World, server: Server) -> bool:
        """Whether everything promised must survive that this server loses its memory."""
        view = world.view
        if server.id not in view.members and not (world.blackouts and server.id in view.eligible):
            return True
        if not any(world.in_sync(id) for id in view.members if id != server.id):
            # The last one: those that were evicted last still hold everything.
            return world.blackouts and bool(view.eligible) and self._others_are_intact(world, server)
        return not world.blackouts or self._others_are_intact(world, server)

    def _others_are_intact(self, world: World, server: Server) -> bool:
        """Whether all others that count in a recovery have what they had as members."""
        others = {**world.view.members, **world.view.eligible}.keys() - {server.id}
        return bool(others) and all(world.servers[id].intact for id in others)

    def _cut_power(self, world: World) -> None:
        any(server.restart(self._run_id(server)) for server in world.servers.values())
        server = self._any_server(world)
        if server.dump and world.chance(0.5) and self._others_are_intact(world, server):
            if server.id in world.view.members and len(world.view.members) < world.view.min_replicas:
                world.ledger.forgive()
            server.restore(server.dump)
            self._count(Fault.OLD_DISK)
            world.log(Fault.OLD_DISK, server.id)

    def _kill(self, actor: Actor) -> None:
        actor.steps.close()
        self._alive.remove(actor)
        if actor in self._ready:
            self._ready.remove(actor)
        any(map(self.world.ledger.lapse, actor.client.tokens))
        self.world.log(Fault.CLIENT_DIED, actor.name)

    def _run_id(self, server: Server) -> str:
        return f"{server.id}{self.world.number()}"

    def _resume(self, server: Server) -> None:
        server.paused = False
        self._network += self._held_up[server.id]
        self._held_up[server.id].clear()

    def _wait(self) -> None:
        """Nothing but waiting is left."""
        paused = [server for server in self._servers.values() if server.paused] if self._ensemble else ()
        if paused and self.world.chance(RESUMES):
            self._count(Fault.RESUMED)
            self._resume(paused[0])
        else:
            self._time_out()

    def _time_out(self) -> bool:
        """A client gives up waiting for an answer; whether one was waiting."""
        waiting = [actor for actor in self._alive if actor.waiting_for]
        if not waiting:
            return False
        actor = waiting[self.world.below(len(waiting))]
        slots = actor.answers
        open_slots = [position for position, answer in enumerate(slots) if answer is None]
        position = open_slots[self.world.below(len(open_slots))]
        self._count(Fault.DELAYED)
        self.trace.append((actor.name, Fault.DELAYED, position))
        if self.world.chance(DROP):
            self._count(Fault.DROPPED)
            actor.messages[position].dropped = True
        self._answer(actor, slots, position, TIMED_OUT)
        return True

    # -- the end -----------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        self.world.levels = False  # who looks now is of the later release
        ledger, worlds = self.world.ledger, self._worlds
        if self._is_homing and self._ensemble:
            self._check_homed(self._ensemble)
            return
        if self.world.links:
            self.world.links.down = False
        if self._ensemble:
            # Whoever has died in the middle of a removal leaves a view that is in the map no more, or not yet ended.
            worlds = [world for world in worlds if self._ensemble.map.shard_with(world.register)]
            ledger.check_shards([world.register for world in worlds])
        are_whole = [self._check_shard(world) for world in worlds]
        if all(are_whole) and self._has_flow:
            any(self._resume(server) for server in self._servers.values())
            any(self._bring_back(world) for world in worlds)
            end_flow(worlds, self._carry_out)
        if self._ensemble:
            self._check_clients(self._ensemble)
        ledger.check_once([[world.servers[id] for id in world.view.members if world.believes(id)] for world in worlds])

    def _check_clients(self, ensemble: Ensemble) -> None:
        """Whoever looks now uses the shards that there are."""
        any(actor.steps.close() for actor in self._alive)
        any(self._resume(server) for server in self._servers.values())
        named = {name: entry.register for name, entry in ensemble.map.shards.items()}
        there = {name: register for name, register in named.items() if ensemble.is_used(register)}
        for client in [client for client in self._spreading if not isinstance(client, Operator)]:
            self._carry_out(steps_of(client.shards.open_missing()))
            used = {name: shard.register for name, shard in client.shards.open.items()}
            if not there.items() <= used.items() <= named.items():
                raise Broken(Promise.STRANDED, f"a client uses {used} of {there}")

    def _check_homed(self, ensemble: Ensemble) -> None:
        """Wait until everything is at home, and is claimed there."""
        ledger, worlds = self.world.ledger, self._worlds
        any(actor.steps.close() for actor in self._alive)
        any(self._resume(server) for server in self._servers.values())
        any(self._bring_back(world) for world in worlds)
        believed = {
            world.register: [world.servers[id] for id in world.view.members if world.believes(id)] for world in worlds
        }
        if not all(believed.values()):
            self.counts["nobody in sync"] += 1
            if self.world.blackouts:
                raise Broken(Promise.LOST, "there is nobody left to be believed")
            return
        check_items(ledger, believed)
        if any(len(believed[world.register]) < max(2, len(world.view.members)) for world in worlds):
            return
        self.counts["came to an end"] += 1
        for world in worlds:
            any(self._carry_out(Scrubber(world).scrub()) for _ in range(FINAL_SCRUBS))
        primaries = {world.register: world.servers[world.view.primary(QUEUE)] for world in worlds}
        end_claims(ledger, primaries.values())
        self._carry_out(Finisher(ensemble).work())
        home = primaries.pop(ledger.home)
        check_all_is_home(ledger, home, *primaries.values())

    def _bring_back(self, world: World) -> None:
        """Bring all servers of a shard back, as far as it can be."""
        repairer = Repairer(world)
        if world.blackouts:
            self._carry_out(repairer.recover())
        for id in [id for id in world.servers if id not in world.view.members]:
            self._carry_out(repairer.repair(id))

    def _check_shard(self, world: World) -> bool:
        if world.blackouts:
            any(self._resume(server) for server in world.servers.values())
            self._carry_out(Repairer(world).recover())
        believed = [id for id in world.view.members if world.believes(id)]
        self.counts["nobody in sync"] += not believed
        if world.blackouts and not believed:
            raise Broken(Promise.LOST, "there is nobody left to be believed")
        for id in believed:
            world.ledger.check_content(world.servers[id], world.register)
        self._count_bundles([world.servers[id] for id in believed])
        primary = world.view.primary(QUEUE)
        if primary not in believed:
            return False
        if self._has_flow and len(believed) < len(world.view.members):
            return False
        if len(believed) == len(world.view.members):
            world.ledger.pushing.clear()
            # One ends early where it evicts a learner that has lost its memory.
            any(self._carry_out(Scrubber(world).scrub()) for _ in range(FINAL_SCRUBS))
            for id in believed:
                world.ledger.check_content(world.servers[id], world.register)
                world.ledger.check_likeness(world.servers[primary], world.servers[id])
        if not self._has_flow:
            world.ledger.check_delivery(world.servers[primary], world.register)
        return len(believed) == len(world.view.members)

    def _count_bundles(self, servers: list[Server]) -> None:
        """Count what only bundles of several items can be like."""
        for id in {id for server in servers for id in server.records}:
            there = [server for server in servers if id in server.records]
            record = there[0].records[id]
            self.counts["bundles of mixed fate"] += len(set(record.states)) > MIXED
            self.counts["bundles of several owners"] += len({row.owner for row in record.rows}) > MIXED
            left = {tuple(map(bool, taken_apart(server.held.payloads.get(id, NO_PAYLOADS)))) for server in there}
            self.counts["bundles whose payloads differ"] += len(left) > 1

    def _carry_out(self, steps: Steps[T]) -> T:
        """Nothing fails any more, and no other client does anything."""
        answers: list[Answer] = []
        try:
            while True:
                requests = steps.send(answers) if answers else next(steps)
                answers = [self._servers[request.server].receive(request) for request in requests]
        except StopIteration as stop:
            return stop.value
