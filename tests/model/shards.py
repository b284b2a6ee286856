"""The shards as one client knows them: the library's own coroutines, over the servers of the model.

What follows the map, places pushes and reshards is the library's; each rule that is theirs can be switched off by one
small piece.  Only what lies beneath, a shard's view and its servers, is the model's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

from tests.model.awaiting import Awaited, doze
from tests.model.content import QUEUE
from tests.model.ensemble import Coordinator, Ensemble
from tests.model.membership import PAUSE, Steps
from tests.model.rules import Rule
from tests.model.runner import TRIES, Client
from tests.model.world import World
from zkrq.base.errors import Receipt, Unavailable, ZkrqError
from zkrq.base.events import Events, went_back
from zkrq.base.settings import Settings
from zkrq.client.resharding import Resharding
from zkrq.client.shard import Shard
from zkrq.client.shards import Shards
from zkrq.producing.bundling import Push, put_of
from zkrq.producing.options import Options
from zkrq.producing.placement import Placement, Target
from zkrq.producing.receipts import results_of
from zkrq.producing.sending import Named, Sender
from zkrq.protocol.calls import Call, PushDecided, PushPlain, Put, bundle_and_position
from zkrq.protocol.founding import Founding, Location
from zkrq.protocol.pushing import InDoubt, Pushes
from zkrq.protocol.replies import Answer
from zkrq.protocol.server_info import ServerInfo
from zkrq.protocol.shards import FIRST, ShardMap, ShardName, ShardState, choose, rejoined
from zkrq.protocol.steps import Answers, Ask, Failure, Identify, NotNow, Operation
from zkrq.protocol.view import Life, ServerId, View, ViewChange
from zkrq.replication.replicas import Replicas
from zkrq.replication.runner import Confirm, Runner, nowhere, translate

T = TypeVar("T")

SETTINGS = Settings(min_replicas=2)

PLAIN = Options()


class Dozing(Client):
    """A client that may have looked at the view long before its push leaves."""

    def ask(self, step: Ask) -> Steps[Answers]:
        for _ in self.world.doze() if isinstance(step.call, PushPlain | PushDecided) else ():
            yield PAUSE
        return (yield from super().ask(step))


class Part:
    """One shard as one client uses it: its ``Shard``, and what that has of runner, membership and fleet."""

    operation_timeout = 0.0
    away = refusal = None

    def __init__(self, world: World, name: ShardName, settings: Settings) -> None:
        self.name: Final = name
        self.register: Final = world.register
        self._settings = settings
        self._world = world
        self._client = Dozing(world)
        self.servers: Final = world.servers
        self.membership: Final = self
        self.fleet: Final = self
        self.cutter: Final = self
        self.replicas: Final = WatchedReplicas(self, self._client)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing goes on in the background."""

    async def open(self, recover_with: Collection[ServerId] = ()) -> bool:
        servers = {id: Location(id, id) for id in self.servers}
        self._client.view = (await self.run(Founding(self._settings, servers).join())).view
        return False

    def start(self) -> None:
        """The schedule has clients that look after the servers."""

    # -- the runner --------------------------------------------------------------------------------------------------

    def run(self, operation: Operation[T], confirm: Confirm | None = None) -> Awaitable[T]:
        self._client.tries = 1 + self._world.below(TRIES)
        return self._do(self._client.run(operation, confirm or nowhere))

    repair = run

    async def _do(self, steps: Steps[T]) -> T:
        try:
            return await Awaited(steps)
        except NotNow:
            raise
        except Failure as failure:
            raise translate(failure) from failure

    # -- the cutter --------------------------------------------------------------------------------------------------

    def hurry(self, seconds: float = 0.0) -> None:
        """The schedule decides when payloads are dropped."""

    # -- the membership ----------------------------------------------------------------------------------------------

    @property
    def view(self) -> View:
        return self._client.view

    def seen(self, view: View) -> View:
        """Nothing is overlooked."""
        return view

    async def change(self, known: View, change: ViewChange) -> View:
        if Rule.MAP_RAISES_THE_EPOCH not in self._world.on:
            change = partial(_in_this_epoch, change)
        await doze(self._world)
        return await self._do(self._client.change(known, change))

    def tell_went_back(self, register: str, known: int, stored: int, step: str, *, told: str) -> str:
        """Without the compare-and-set of the map it goes back."""
        return went_back(register, known, stored, step)

    async def end(self, known: View) -> bool:
        await doze(self._world)
        return self._world.end(known)

    # -- the fleet ---------------------------------------------------------------------------------------------------

    def identify(self, servers: Collection[ServerId]) -> Awaitable[Mapping[ServerId, ServerInfo | Answer]]:
        return self.run(iter(Identify(servers)))

    def ask(self, epoch: int, lives: Mapping[ServerId, Life], call: Call[Any], *, once: bool) -> Awaitable[Answers]:
        return self.run(iter(Ask(epoch, lives, call, once)))

    def url_for(self, url: str) -> str:
        return url

    def drop(self) -> None:
        """There are no connections."""


def _in_this_epoch(change: ViewChange, view: View, /, *, by: str) -> View:
    return replace(change(view, by=by), epoch=view.epoch)


class WatchedReplicas(Replicas):
    """The library's; the observer sees which pushes return on which shard."""

    def __init__(self, part: Part, client: Client) -> None:
        super().__init__(cast("Runner", part), client.operations)
        self._on, self._ledger, self._register = client.on, client.world.ledger, client.world.register

    async def push_plain(
        self,
        queue: str,
        puts: Sequence[Put],
        *,
        map_number: int = 0,
        patient: bool = True,
        confirm: Confirm | None = None,
    ) -> Pushes:
        results = await super().push_plain(queue, puts, map_number=map_number, patient=patient, confirm=confirm)
        self._note(puts, results)
        unknown = any(isinstance(told, InDoubt) for told in results.exceptional.values())
        if unknown and not patient and Rule.UNKNOWN_STAYS not in self._on:
            raise Unavailable("perhaps")
        return results

    async def push_decided(self, call: PushDecided, *, map_number: int = 0, confirm: Confirm | None = None) -> Pushes:
        results = await super().push_decided(call, map_number=map_number, confirm=confirm)
        self._note(call.items, results)
        return results

    def _note(self, puts: Sequence[Put], results: Pushes) -> None:
        for at, put in enumerate(puts):
            ids = [put.item_id(position) for position in range(put.size)]
            for position, result in enumerate(results_of(results, at, ids, self.causes, are_named=False)):
                if not isinstance(result, ZkrqError):
                    self._ledger.push_returned(put.item_id(position).encode(), self._register)


class Hurried(ShardMap):
    """A map of which a client does not see that it is settling."""

    @property
    def is_settling(self) -> bool:
        return False


class AlteredPlacement(Placement):
    """Chance chooses among open shards: how busy they are matters to nobody here."""

    def __init__(self, world: World, shards: KnownShards) -> None:
        super().__init__(cast("Any", shards.coordinator), shards.refresh, shards.look_no_further)
        self._world = world

    def follow(self, map: ShardMap, version: int) -> None:
        states = {
            ShardState.JOINING: (Rule.JOINING_TAKES_NOTHING, ShardState.OPEN),
            ShardState.CLOSED: (Rule.CLOSED_TAKES_NOTHING, ShardState.DRAINING),
        }
        shown = dict(map.shards)
        for name, entry in map.shards.items():
            rule, state = states.get(entry.state, (None, entry.state))
            if rule and rule not in self._world.on:
                shown[name] = entry._replace(state=state)
        shown_map = replace(map, shards=shown)
        if Rule.REGISTERED_WHILE_SETTLING not in self._world.on:
            shown_map = Hurried(map.number, shown, map.by)
        super().follow(shown_map, version)

    def choose(self, tried: Collection[ShardName] = ()) -> Target:
        usable = [self.targets[name] for name in self.map.open if name in self.targets and name not in tried]
        if not usable:
            raise Unavailable("no shard takes pushes now")
        return choose(usable, lambda target: 0, self._world.below)

    async def find(self, queue: str, id: str) -> Target:
        if Rule.REPEATED_GOES_WHERE_IT_WENT not in self._world.on:
            return await self.home(queue)
        return await super().find(queue, id)

    async def home(self, queue: str) -> Target:
        if Rule.IDENTITY_GOES_HOME not in self._world.on:
            return self.choose()
        return await super().home(queue)


class AlteredTarget(Target):
    def avoid(self) -> None:
        """Time does not pass."""


class KnownShards(Shards):
    """Used by one client, as far as it has looked."""

    def __init__(self, ensemble: Ensemble, coordinator: Coordinator | None = None) -> None:
        self._ensemble = ensemble
        self.coordinator = coordinator or Coordinator(ensemble)
        super().__init__(
            {FIRST: {id: id for id in ensemble.first.servers}},
            cast("Any", self.coordinator),
            SETTINGS,
            events=Events(None),
            dial=cast("Any", None),
            changed=lambda: None,
            renewed=lambda: None,
        )

    def make(self, name: ShardName, servers: Mapping[str, str], register: str, settings: Settings) -> Shard:
        return cast("Shard", Part(self._ensemble.world_at(register, servers), name, settings))

    def make_placement(self) -> Placement:
        return AlteredPlacement(self._ensemble.first, self)

    async def look_no_further(self) -> None:
        """There is no time in which the shards could be opened."""

    def _target(self, shard: Shard) -> Target:
        return AlteredTarget(shard.name, shard.replicas, lambda: None)


class Pushing(Sender):
    """What places pushes, without what gathers them."""

    def __init__(self, shards: KnownShards) -> None:
        super().__init__(QUEUE, shards.placement)

    async def spread(self, make: Callable[[str], Put], count: int) -> tuple[Put, Sequence[object]]:
        """Push a bundle without an identity, whose id gets the ending given; return what came of its items."""

        def make_all(ending: str) -> tuple[Sequence[Put], Put]:
            put = make(ending)
            return [put], put

        pushes, put, causes = await self.anywhere(make_all, count)
        ids = [put.item_id(position) for position in range(put.size)]
        return put, results_of(pushes, 0, ids, causes, are_named=False)

    async def _refresh(self, map_number: int) -> None:
        """There is no time that could be waited for."""
        await self._placement.refresh()

    async def name(self, id: str, moment: int, payload: bytes) -> int | Receipt | ZkrqError:
        """Push an item under this id."""
        item = Named(put_of(Push(id, moment, payload, PLAIN)), by_caller=True)
        (result,) = await self.at_home([item], decided=bundle_and_position(id)[0] != id)
        return result


class AlteredResharding(Resharding):
    def __init__(self, shards: KnownShards, on: Collection[Rule]) -> None:
        super().__init__(shards, cast("Any", shards.coordinator), SETTINGS)
        self._on = on
        self._is_settling = False

    async def _settle(self, map: ShardMap, version: int, wanted: ShardMap) -> None:
        self._is_settling = True
        await super()._settle(map, version, wanted if Rule.HOMES_COME_FIRST in self._on else map)
        self._is_settling = False

    async def _ask_for_map(self, shard: Shard) -> None:
        if self._is_settling and Rule.HASHED_ASK_FOR_THE_MAP not in self._on:
            return
        closed = self._shards.map.shards[shard.name].state is ShardState.CLOSED
        if not closed or Rule.REMOVAL_ASKS_FOR_THE_MAP in self._on:
            await super()._ask_for_map(shard)

    async def _keep_closed(self, shard: Shard) -> View:
        if Rule.REMOVAL_ASKS_FOR_THE_MAP not in self._on:
            return shard.view
        return await super()._keep_closed(shard)

    async def _left_in(self, shard: Shard, *, force: bool) -> str | None:
        return await super()._left_in(shard, force=force) if Rule.REMOVED_ONLY_EMPTY in self._on else None

    async def _rejoin(self, shard: Shard) -> None:
        if Rule.OPENED_UNDER_A_NEW_VIEW in self._on:
            await super()._rejoin(shard)
        elif self._shards.map.shards[shard.name].state is ShardState.CLOSED:
            await self._change(rejoined, shard.name, shard.register)
