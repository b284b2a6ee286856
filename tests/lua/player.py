"""Generated histories of one server, and what plays them."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from hypothesis import strategies as st

from tests.lua.connection import Refused
from tests.lua.copying import PUSHED_AT_MS
from tests.lua.entries import BUNDLE, WINDOW_MS, Applied, Decided, Put, packed_item
from tests.lua.one_server import OneServer
from zkrq.protocol import calls
from zkrq.protocol.records import State, Version

IDS = tuple("abcdefgh")
OWNERS = ("ann", "bob")
VERBS = ("ack", "nack", "release", "bury", "extend")


class Step(NamedTuple):
    """One call of a client, or a change of the view."""

    name: str
    ids: tuple[str, ...] = ()
    state: State = State.QUEUED
    owner: str = ""
    verb: str = ""
    ms: int = 0
    many: int = 0


SIZES = {BUNDLE: 3, f"{BUNDLE}0": 5}
"""Bundles, and their numbers of items."""
some_ids = st.lists(st.sampled_from((*IDS, *SIZES)), min_size=1, max_size=5).map(tuple)
owners = st.sampled_from(OWNERS)
counts = st.integers(1, 4)
steps = st.one_of(
    st.builds(Step, st.just("put"), ids=some_ids, ms=st.sampled_from([0, 0, 1, 60_000])),
    st.builds(Step, st.just("claim"), owner=owners, ms=st.sampled_from([1, 60_000, 60_000]), many=counts),
    st.builds(Step, st.just("settle"), verb=st.sampled_from(VERBS), ms=st.sampled_from([0, 60_000]), many=counts),
    st.builds(Step, st.just("push"), ids=some_ids, ms=st.sampled_from([0, 0, 60_000]), many=st.integers(0, 3)),
    st.builds(Step, st.just("pause"), state=st.sampled_from([State.PAUSED, State.GONE])),
    st.builds(Step, st.just("decision without its push"), ids=some_ids),
    st.builds(Step, st.just("clear"), ms=st.sampled_from([0, WINDOW_MS]), many=st.integers(1, 2)),
    st.builds(Step, st.just("fence"), owner=owners),
    st.builds(Step, st.just("view")),
)
histories = st.lists(steps, max_size=25)


KEY_OF = dict(zip(IDS, ("", "", "", "", "k1", "k1", "k2", "k2"), strict=True))
TTL_OF = dict(zip(IDS, (None, None, 3_600_000, 50, None, 3_600_000, None, 50), strict=True))


def item(id: str, delay_ms: int) -> Put:
    """The push of this id, always with the same key and time to live."""
    if id in SIZES:
        return Put(id, [bytes([at]) * at for at in range(SIZES[id])], delay_ms, 5, PUSHED_AT_MS)
    return Put(id, id.encode(), delay_ms, IDS.index(id), PUSHED_AT_MS, KEY_OF[id], TTL_OF[id])


class Player:
    """Plays a history on one server.  Epochs go up by two, so that no two servers decide under the same."""

    def __init__(self, server: OneServer, epoch: int) -> None:
        self.server = server
        self.server.seal(epoch)
        self.server.epoch = epoch
        self._claims: list[tuple[Decided, int]] = []

    def play(self, history: list[Step]) -> None:
        for step in history:
            with suppress(Refused):  # an owner that was fenced
                self._play(step)

    def _play(self, step: Step) -> None:
        server = self.server
        if step.name == "put":
            if plain := [item(id, step.ms) for id in step.ids if not KEY_OF.get(id)]:
                server.put(*plain)
        elif step.name == "push":
            puts = [item(id, step.ms) for id in step.ids if id in IDS]
            puts += [put for id in step.ids if id in SIZES for put in self._pushed_again(id, step.many)]
            if puts:
                server.push(*puts, max_size=step.many * 3, again=step.many % 2)
        elif step.name == "pause":
            server.pause(step.state)
        elif step.name == "claim":
            claimed = server.claim(step.owner, step.many, lease_ms=step.ms)
            self._claims += ((claimed.decided[bundle], position) for bundle, position in claimed.places.values())
        elif step.name == "settle":
            claims = self._claims[-step.many :]
            if claims:
                server.settle(*(decided.settle(step.verb, step.ms, "why", [position]) for decided, position in claims))
        elif step.name == "decision without its push":
            for id in dict.fromkeys(id for id in step.ids if id in IDS):
                server.apply(Applied(id, self._claimed_by_eve(id), 60_000))
        elif step.name == "clear":
            server.clear(step.many, put_window_ms=step.ms, trim=1)
        elif step.name == "fence":
            server.fence(step.owner)
        else:
            server.epoch += 2
            server.seal(server.epoch)

    def _pushed_again(self, bundle: str, count: int) -> list[Put]:
        """Some items of a bundle, one by one."""
        return [
            Put(calls.item_id(bundle, at), bytes([at]) * at, 0, 5, PUSHED_AT_MS)
            for at in range(count % (SIZES[bundle] + 1))
        ]

    def _claimed_by_eve(self, id: str) -> bytes:
        return packed_item(
            Version(self.server.epoch, 2),
            State.CLAIMED,
            pushed_at_ms=PUSHED_AT_MS,
            due_us=self.server.epoch,  # what is decided at another moment names another one
            token="eve/1",
            key=KEY_OF[id],
            ttl_ms=TTL_OF[id] or 0,
        )


class Pair(NamedTuple):
    """Two servers, for all examples of a test."""

    one: OneServer
    two: OneServer

    def reset(self) -> tuple[Player, Player]:
        self.one.reset()
        self.two.command("FLUSHDB")
        self.two.epoch = 1
        self.two.enrol()
        return Player(self.one, 1), Player(self.two, 2)

    def agree_on_the_view(self) -> None:
        for server in self:
            server.epoch = max(self.one.epoch, self.two.epoch)
