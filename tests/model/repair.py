"""Who looks after the servers: one by one they are brought back, and all of them when none is left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tests.model.operations import PAUSE, QUEUE, Client, Steps
from tests.model.rules import Rule
from tests.model.server import Item, Record, Records, Request, Server, State, Status
from zkrq.protocol.view import Life, ServerId, View, admit, dismiss, promote, recover, restored


class Repairer(Client):
    """Brings servers back: wiped and enrolled, a learner, caught up, a member."""

    REPAIRS = 6
    ROUNDS = 8

    def work(self) -> Steps[None]:
        world = self.world
        for _ in range(self.REPAIRS):
            for _ in range(world.below(6)):
                yield PAUSE
            yield from self.dismiss()
            if world.blackouts and self.is_recovery_due(self.view):
                yield from self.recover()
                continue
            outside = [id for id in world.servers if id not in self.view.receivers]
            if outside:
                yield from self.repair(outside[world.below(len(outside))])

    def repair(self, id: ServerId) -> Steps[None]:
        view, server = self.view, self.world.servers[id]
        known = view.eligible.get(id)
        kept = Rule.ELIGIBLE_IS_KEPT in self.on and known == Life(server.run_id, server.generation)
        life = Life(server.run_id, restored(known) if known and kept else self.world.nonce())
        expected = server.generation
        yield PAUSE
        if Rule.CATCH_UP_NEEDS_ALL_MEMBERS in self.on:
            answers = yield [self.request(member, Server.seal) for member in view.members]
            if any(answer.status is not Status.OK for answer in answers):
                return
        (answer,) = yield [Request(id, life, view.epoch, Server.renew if kept else Server.enrol, (expected,))]
        if answer.status is not Status.OK:
            return
        if not (yield from self.swap(view, admit(view, id, life, by=self.world.nonce()))):
            return
        copied_from = set[Life]()  # what was copied is not copied again as long as its source keeps its life
        for _ in range(self.ROUNDS):
            self.view = view = self.world.view
            if view.learners.get(id) != life:
                return
            source = view.members[view.primary(QUEUE)]
            if source not in copied_from:
                if not (yield from self.catch_up(id)):
                    continue
                copied_from.add(source)
            if self.world.view is not view:
                continue
            if (yield from self.swap(view, self.promoted(view, id, life))):
                self.world.ledger.counts["joins"] += 1
                yield from self.dismiss()
                return

    def promoted(self, view: View, id: ServerId, life: Life) -> View:
        promoted = promote(view, id, life, by=self.world.nonce())
        early = promoted.writable and Rule.ELIGIBLE_UNTIL_ANSWERED not in self.on
        return dismiss(promoted) if early else promoted

    def dismiss(self) -> Steps[None]:
        """Give up the eligible servers once all members have answered in a view in which pushes complete."""
        self.view = view = self.world.view
        if not (view.eligible and view.writable):
            return
        answers = yield [self.request(member, Server.seal) for member in view.members]
        if all(answer.status is Status.OK for answer in answers):
            yield from self.swap(view, dismiss(view))

    def catch_up(self, id: ServerId) -> Steps[bool]:
        """Copy everything to the learner, record by record; writes go on meanwhile."""
        source = self.view.primary(QUEUE)
        (content,) = yield [self.request(source, Server.read)]
        if content.status is not Status.OK:
            return False
        for item, record in content.records.items():
            if record.state is State.GONE and Rule.CATCH_UP_COPIES_TOMBSTONES not in self.on:
                continue
            if not (yield from self.copy(item, record, id)):
                return False
        return True

    def copy(self, item: Item, record: Record, to: ServerId) -> Steps[bool]:
        (answer,) = yield [self.request(to, Server.apply, {item: record})]
        return answer.status in (Status.OK, Status.SUPERSEDED)

    # -- everybody was restarted -------------------------------------------------------------------------------------

    def is_recovery_due(self, view: View) -> bool:
        """Whether no member is met in the life in which the view knows it."""
        met = [self.world.in_sync(id) and not self.world.servers[id].paused for id in view.members]
        return not any(met) if Rule.RECOVERY_ONLY_OF_THE_DEAD in self.on else not all(met)

    def meet(self, wanted: Iterable[ServerId]) -> Steps[dict[ServerId, Life] | None]:
        """In which lives the servers are now; None while not all of them answer."""
        met: dict[ServerId, Life] = {}
        for id in wanted:
            yield PAUSE
            server = self.world.servers[id]
            if not server.paused:
                met[id] = server.life
            elif Rule.RECOVERY_WAITS_FOR_ALL in self.on:
                return None
        return met

    def recover(self) -> Steps[None]:
        """Merge what the disks gave back; left in the middle, it is continued by whoever tries next."""
        view = self.view
        wanted = {**view.members, **view.eligible} if Rule.ELIGIBLE_TAKE_PART in self.on else view.members
        met = yield from self.meet(wanted)
        if met is None:
            return
        if Rule.RECOVERY_ONLY_OF_THE_DEAD in self.on and any(met.get(id) == life for id, life in view.members.items()):
            return
        suffix = "" if Rule.RENEWED_ARE_RECOGNISED in self.on else f"/{view.epoch}"
        renewed = {id: restored(Life(life.run_id, life.generation + suffix)) for id, life in wanted.items()}
        taking_part = {
            id: life
            for id, life in met.items()
            if life.generation in (wanted[id].generation, renewed[id])
            or (life.generation and Rule.RECOVERY_BY_GENERATION not in self.on)
        }
        if not taking_part or not (yield from self.merge(view, taking_part)):
            return
        if Rule.RECOVERY_RENEWS_GENERATIONS in self.on:
            lives = {id: Life(life.run_id, renewed[id]) for id, life in taking_part.items()}
            for id, life in lives.items():
                expected = taking_part[id].generation
                (answer,) = yield [Request(id, life, view.epoch, Server.renew, (expected,))]
                if answer.status is not Status.OK:
                    return
        else:
            lives = taking_part
        if (yield from self.swap(view, recover(view, lives, by=self.world.nonce()))):
            self.world.ledger.counts["recoveries"] += 1

    def merge(self, view: View, lives: Mapping[ServerId, Life]) -> Steps[bool]:
        """Give each of the servers what any of them holds."""
        merged: dict[Item, Record] = {}
        for id, life in lives.items():
            (content,) = yield [Request(id, life, view.epoch, Server.read)]
            if content.status is not Status.OK:
                return False
            for item, record in content.records.items():
                if item not in merged or record.version > merged[item].version:
                    merged[item] = record
            if Rule.RECOVERY_MERGES not in self.on:
                break
        for id, life in lives.items():
            (answer,) = yield [Request(id, life, view.epoch, Server.apply, (merged,))]
            if answer.status not in (Status.OK, Status.SUPERSEDED):
                return False
        return True


class Scrubber(Client):
    """Compares the followers with the primary, and mends what a client left behind that died in the middle."""

    SCRUBS = 2

    def work(self) -> Steps[None]:
        for _ in range(self.SCRUBS):
            for _ in range(self.world.below(40)):
                yield PAUSE
            self.view = self.world.view
            yield from self.scrub()

    def scrub(self) -> Steps[None]:
        view, primary = self.view, self.view.primary(QUEUE)
        for id in view.members:
            if id == primary:
                continue
            here, there = yield [self.request(primary, Server.read), self.request(id, Server.read)]
            if here.status is not Status.OK or there.status is not Status.OK:
                return
            forward = self.unfinished(here.records, there.records)
            if forward:
                (answer,) = yield [self.request(primary, Server.apply, forward)]
                if answer.status is not Status.OK:
                    return
            differing = [item for item, record in here.records.items() if there.records.get(item) != record]
            if differing or forward:
                self.world.ledger.counts["mended"] += len(differing) + len(forward)
                yield from self.decide(Server.affirm, [*differing, *forward])
                if self.view is not view:
                    return

    def unfinished(self, here: Records, there: Records) -> Records:
        """Pushes that the primary does not know of, and that no producer is busy with any more."""
        if Rule.SCRUB_ROLLS_FORWARD not in self.on:
            return {}
        pushing = self.world.ledger.pushing
        return {item: record for item, record in there.items() if item not in here and item not in pushing}
