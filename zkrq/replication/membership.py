"""Hold the view as this client knows it: read it again when a server calls it old, change it by compare-and-set.

A client whose compare-and-set is lost starts again from the view that won.  A client makes one change at a time, so
that many operations that meet the same dead server evict it once.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, Final

from zkrq.base.errors import ConfigError, Unavailable
from zkrq.base.events import Events, LevelRaised, LevelRefused, NotWritable, RegisterWentBack, ViewChanged, went_back
from zkrq.coordination.coordinator import VIEW, Coordinator
from zkrq.protocol.levels import OtherLevel
from zkrq.protocol.steps import Answers, Register
from zkrq.protocol.view import NoView, ServerId, View, ViewChange, check_view, decode, encode, encode_end

if TYPE_CHECKING:
    from zkrq.replication.fleet import Fleet


class Membership:
    """Hold the present view and change it; ``fleet`` follows it.  Call ``begin`` first."""

    only_looks: ClassVar[bool] = False
    """Whether this client never changes the view; see ``looking.py``."""

    def __init__(
        self,
        coordinator: Coordinator,
        fleet: Fleet,
        *,
        namespace: str,
        events: Events,
        register: str = VIEW,
        shard: str = "",
    ) -> None:
        """``shard``: name of the shard as commands give it, empty: of the first one."""
        self.fleet: Final = fleet
        self.changing: Final = asyncio.Lock()
        """Held during a change of the view."""
        self._coordinator = coordinator
        self._register = register
        self._namespace = namespace
        self._events = events
        self.refusal = ""
        """Why this release cannot read the view any more, so that nothing is done under the former one; empty while it
        can."""
        self.went_back = ""
        """Why the view cannot be changed: the register holds an older one; empty while it does not."""
        self._shard = shard
        self._view: View | None = None
        self._version = -1
        self._watchers: list[Callable[[View], None]] = []
        self._first: list[Callable[[View], None]] = []

    # -- the view ------------------------------------------------------------------------------------------------------

    @property
    def view(self) -> View:
        """Latest view that this client knows."""
        assert self._view is not None, "begin() comes first"
        return self._view

    @property
    def has_view(self) -> bool:
        """Whether there is one yet."""
        return self._view is not None

    def overlook(self, failed: Answers) -> None:
        """Note servers that have failed a client that only looks."""
        raise NotImplementedError

    @property
    def overlooked(self) -> Mapping[ServerId, str]:
        """Servers that a client that only looks does not ask at present, and why."""
        return {}

    def seen(self, view: View) -> View:
        """Return the view by which this client reads: without the members that it overlooks, if any other is left."""
        return view

    def watch(self, changed: Callable[[View], None]) -> None:
        """Call ``changed`` with every view of a greater epoch."""
        self._watchers.append(changed)

    @contextmanager
    def watching(self, changed: Callable[[View], None]) -> Generator[None]:
        """Call ``changed`` with every view of a greater epoch, inside the context."""
        self._watchers.append(changed)
        try:
            yield
        finally:
            self._watchers.remove(changed)

    def watch_all(self, changed: Callable[[View], None]) -> None:
        """Call ``changed`` with every newer view, even within an epoch, before the other watchers."""
        self._first.append(changed)

    def begin(self, view: View, version: int) -> None:
        """Take the first view, which was read from the register at this version."""
        self._adopt(view, version)

    # -- reading and changing ------------------------------------------------------------------------------------------

    async def refresh(self, known: View) -> View:
        """Return the present view, which is newer than ``known`` if there is a newer one.  Raises ``Unavailable``."""
        async with self.changing:
            # Many operations notice the same eviction at the same time.  The first reads the register; the others
            # find the view newer than the one they know, and do not ask ZooKeeper.
            return self.view if self.view.epoch > known.epoch else await self._read()

    async def change(self, known: View, change: ViewChange) -> View:
        """Write the result of ``change``, unless it equals ``known``; return the view to continue with, which is this
        one or one written before it.  Raises ``Unavailable``: it may have been written."""
        async with self.changing:
            if self.view.epoch > known.epoch:
                return self.view
            # Based on the present view, which may have a newer accusation than ``known`` within the same epoch.
            if self.went_back:
                return await self._read()  # a later one may be there by now
            # The nonce tells this writer, after an unknown outcome, whether the view that is there is its own.
            wanted = change(self.view, by=secrets.token_hex(8))
            assert wanted.epoch >= self.view.epoch, f"a change from epoch {self.view.epoch} back to {wanted.epoch}"
            return self.view if wanted == self.view else await self.swap(wanted)

    async def swap(self, view: View) -> View:
        """Replace the present view by ``view``, while ``changing`` is held; return it, or the one that was written
        before it.  Raises ``Unavailable``: it may have been written."""
        if self.went_back:
            return await self._read()
        written = await self.write(view, self._version)
        # Another client was faster.  Its view decides: the caller starts again from there, and may find nothing left
        # to do.
        if written is None:
            return await self._read()
        self._adopt(view, written)
        return view

    async def _read(self) -> View:
        view, version = await self.read()
        if view is None:
            raise Unavailable("ZooKeeper no longer knows the view of this namespace")
        self._adopt(view, version)
        return self.view

    def _adopt(self, view: View, version: int) -> None:
        old = self._view
        # The epoch only grows.  A smaller one, or the same one by another writer, means that ZooKeeper lost data, and
        # guessing would give two clients two views: writes under the old epoch may have completed on servers that the
        # older view does not name.
        if old and view.epoch <= old.epoch:
            if view.epoch < old.epoch or view.by != old.by:
                self._note_went_back(old, view)
                raise Unavailable(self.went_back)
            # Accusations and refutations change no epoch.  They are taken, but no operation has to start again for
            # them.  Not by the greater version: if ZooKeeper lost no more than an accusation, its version is smaller.
            if version != self._version:
                self._take(view, version)
            self.went_back = ""
            return
        self.went_back = ""
        # The fleet first, because a watcher of the view may ask its servers immediately.
        self.fleet.follow(view, old)
        self._take(view, version)
        if old and view.level > old.level:
            self._events.tell(LevelRaised(self._namespace, view.level, view.raised_by, view.epoch), logging.WARNING)
        self._events.tell(ViewChanged(self._namespace, view.epoch, tuple(view.members), tuple(view.learners)))
        if not view.writable and (old is None or old.writable):
            self._events.tell(NotWritable(self._namespace, tuple(view.members), view.min_replicas), logging.ERROR)
        for changed in tuple(self._watchers):
            changed(view)

    def _note_went_back(self, known: View, stored: View) -> None:
        """Report once that ZooKeeper stores an older view than this client knows.  Nothing is written over it here: the
        client may be the one that is wrong, and which servers count is for an operator to say."""
        shard = f"--shard {self._shard} " if self._shard else ""
        step = f"`zkrq servers recover --older-zookeeper {shard}{' '.join(sorted(known.members))}`"
        step = f"{step} continues with what these servers hold"
        self.went_back = self.tell_went_back("view", known.epoch, stored.epoch, step, told=self.went_back)

    def tell_went_back(self, register: str, known: int, stored: int, step: str, *, told: str) -> str:
        """Report that a register went back, unless the text of that was ``told``; return the text."""
        text = went_back(register, known, stored, step)
        if text != told:
            self._events.tell(RegisterWentBack(self._namespace, register, known, stored, step), logging.ERROR)
        return text

    def _take(self, view: View, version: int) -> None:
        self._view, self._version = view, version
        for changed in self._first:
            changed(view)

    async def end(self, known: View) -> bool:
        """Write into the register that there is no view any more; return whether ``known`` was the last one.

        Raises ``Unavailable``: it may have been written.
        """
        async with self.changing:
            if self.view.epoch > known.epoch or self.went_back:
                return False
            data = encode_end(secrets.token_hex(8))
            return await self._coordinator.swap(self._register, data, self._version) is not None

    def check_invariants(self) -> None:
        """Assert what holds between any two callbacks, also before there is a view.

        - A view was read at a version, by which it is changed: a change by another version would overwrite what this
          client does not know.
        - There is a server for each that the view names, or calls under the view would be answered for it.
        """
        self.fleet.check_invariants()
        if view := self._view:
            check_view(view)
            assert self._version >= 0, "a view without a version of its register"
            if not self.fleet.is_dropped:
                unknown = view.receivers.keys() - self.fleet.servers.keys()
                assert not unknown, f"servers of the view that the fleet does not have: {unknown}"

    # -- the register --------------------------------------------------------------------------------------------------

    async def read(self, *, even_damaged: bool = False) -> Register:
        """Read the register.  Raises ``ConfigError`` if it holds no view of zkrq, ``Unavailable``.

        ``even_damaged``: see ``ReadRegister``.
        """
        register = await self._coordinator.read(self._register)
        try:
            return Register(None if register.data is None else decode(register.data), register.version)
        except NoView as error:
            raise Unavailable(f"this shard of namespace {self._namespace!r} was removed") from error
        except ValueError as error:
            if even_damaged and not isinstance(error, OtherLevel):
                return Register(None, register.version)
            refusal = ConfigError(f"namespace {self._namespace!r} in ZooKeeper: {error}")
            if isinstance(error, OtherLevel) and not self.refusal:
                self.refusal = str(refusal)
                self._events.tell(LevelRefused(self._namespace, self.refusal), logging.ERROR)
            raise refusal from error

    async def write(self, view: View, version: int) -> int | None:
        """Write the register if it still has this version; return its new version, None if it has another one.
        Raises ``Unavailable``: it may have been written."""
        written = await self._coordinator.swap(self._register, encode(view), version)
        return None if written is None else written.version
