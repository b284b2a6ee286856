"""Implement the coordinator on ZooKeeper: a register, a registry, an election and a session, as znodes.

    /<chroot>/<namespace>/<register>           a register; its version is the znode's
    /<chroot>/<namespace>/consumers/<owner>    ephemeral, one for each enrolled session; the data is its description
    /<chroot>/<namespace>/clients/<session>    ephemeral, one for each client that has introduced itself; what it said
    /<chroot>/<namespace>/election/leader      ephemeral; its creator leads

The election is one znode and not a queue of them: it costs nothing except when the leader changes, and because its name
is fixed, a retry after a lost answer is harmless.

Every request may be repeated: after a lost answer, reading the znode shows what happened.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

import anyio
from anyio.abc import TaskGroup

from zkrq.base.checks import check_kind
from zkrq.base.credentials import Credentials, Source
from zkrq.base.errors import Closed, ConfigError, PayloadTooLarge, Unavailable
from zkrq.base.tasks import see_through, supervise, wait_set
from zkrq.base.tls import TLS
from zkrq.coordination.coordinator import VIEW, Listener, Session, SessionState, Versioned, no_namespace, owner_id
from zkrq.coordination.lifecycle import Lifecycle
from zkrq.coordination.zookeeper import hosts as _hosts
from zkrq.coordination.zookeeper.link import (
    BadVersion,
    Interrupted,
    Node,
    NodeExists,
    NoNode,
    NotAllowed,
    Refused,
    Right,
    Stat,
    ZooKeeperLink,
)
from zkrq.coordination.zookeeper.session import ZooKeeperSession

MIN_SESSION_TIMEOUT = 0.1  # seconds
MAX_SESSION_TIMEOUT = 24 * 3600.0  # seconds
MAX_DATA_BYTES = 1_000_000  # of one znode; above 1 MiB a server hangs up without an answer
RESYNC_INTERVAL = 30.0  # seconds after which everything is read again even without a notice
READ_AHEAD = 64  # znodes read concurrently
NAMESPACES_LOOKED_AT = 512  # to list the existing ones in the error for a missing one
HIDDEN = Node(b"(enrolled with other credentials)", Stat(0, 0, 0))  # what another identity owns; it exists
ANY_VERSION = -1  # writes a znode whatever it holds

NEVER_SEEN = -1  # no transaction has this number: a register that is followed later is reported once

Look = Callable[[ZooKeeperLink], Awaitable[None]]

_T = TypeVar("_T")


class ZooKeeperCoordinator:
    """A session with a ZooKeeper ensemble (3.5 or newer); implements ``Coordinator``.

    hosts: ``zk1:2181,zk2:2181/chroot``; see ``hosts.py``.
    namespace: znode below which everything is stored; created if it is missing.
    session_timeout: seconds until ZooKeeper ends the session of a silent client; servers adjust it to bounds of their
    own.  It also bounds every call.
    auth: user and password for the digest scheme.  With it, all znodes are created for that identity only.
    tls: encrypts the connections; None: they are plain.
    found: whether the namespace may be founded; if not, one whose register was never written is left untouched, and
    entering raises ``ConfigError``.
    protect: with ``auth``, give the namespace's znodes to that identity alone, whosoever they were before.
    """

    def __init__(
        self,
        hosts: str,
        *,
        namespace: str = "zkrq",
        session_timeout: float = 10.0,
        auth: Credentials | None = None,
        tls: TLS | None = None,
        found: bool = True,
        protect: bool = False,
    ) -> None:
        ensemble = _hosts.parse(hosts)
        if not MIN_SESSION_TIMEOUT <= session_timeout <= MAX_SESSION_TIMEOUT:
            raise ConfigError(f"session_timeout is between {MIN_SESSION_TIMEOUT} and {MAX_SESSION_TIMEOUT} seconds")
        check_kind("zookeeper_tls", tls, TLS)
        source = None if auth is None else Source("zookeeper_auth", auth)
        base = ensemble.chroot + _hosts.path(namespace)
        self._namespace = namespace
        self._may_found = found
        self._base = base
        self._with_auth = source is not None
        self._protects = protect
        self._warned = False  # that anybody may change the znodes
        self._view = self._path(VIEW)
        self._enrolled = f"{base}/consumers"
        self._leader = f"{base}/election/leader"
        self._introduced = f"{base}/clients"
        self._parents = (self._enrolled, self._introduced, f"{base}/election")
        self._ensemble = ensemble
        self._life = Lifecycle(logging.LoggerAdapter(logging.getLogger(__name__), {"cluster": namespace}))
        self._changed = {path: asyncio.Event() for path in (self._view, self._enrolled, self._leader)}
        self._session = ZooKeeperSession(
            ensemble, session_timeout, source, tls, self._life, on_event=self._on_event, on_connected=self._look_again
        )
        self._seen: dict[str, int | None] = {VIEW: None}  # by followed register: the transaction that last wrote it
        self._learned: dict[str, tuple[Versioned, ZooKeeperLink]] = {}  # by followed register, and on which link
        self._seen_consumers: frozenset[str] = frozenset()
        self._descriptions: Mapping[str, str] = {}  # of live consumers; an entry never changes
        self._introductions: Mapping[str, str] = {}  # the same
        self.only_looks = False
        """Whether it changes no register and never leads; set before it is entered."""
        self._stands = True  # for election
        self._prepared = asyncio.Event()
        self._stop = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._tasks: TaskGroup | None = None

    def __repr__(self) -> str:
        return f"<ZooKeeperCoordinator {self._ensemble} session={self.session.id or None} {self.session.state.value}>"

    async def __aenter__(self) -> Self:
        if self._runner is not None:
            raise Closed("a coordinator is used once; make a new one")
        self._runner = asyncio.create_task(self._run(), name="zkrq-zookeeper")
        try:
            await self._ask(self._prepare)
        except BaseException:
            await self._close()
            raise
        self._prepared.set()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._close()

    @property
    def session(self) -> Session:
        return self._life.session

    @property
    def valid_until(self) -> float:
        return float("-inf") if self._life.state is SessionState.CLOSED else self._session.valid_until

    @property
    def granted(self) -> float:
        """The session timeout that ZooKeeper gives, in seconds: within bounds of its own."""
        return self._session.timeout

    @property
    def leading(self) -> bool:
        return self._life.leading

    def subscribe(self, listener: Listener) -> None:
        self._life.subscribe(listener)

    def _path(self, register: str) -> str:
        return f"{self._base}/{register}"

    # -- registers ------------------------------------------------------------------------------------------------

    def follow(self, register: str) -> None:
        if register in self._seen:
            return
        path = self._path(register)
        self._seen[register] = NEVER_SEEN
        self._changed[path] = asyncio.Event()
        self._start_watching(path, partial(self._look_at_register, register))

    async def read(self, register: str) -> Versioned:
        path = self._path(register)

        async def attempt(link: ZooKeeperLink) -> Versioned:
            await link.sync()
            node = await link.read(path)
            found = Versioned(None, -1) if node is None else Versioned(node.data, node.stat.version)
            self._learn(register, found, link)
            return found

        return await self._ask(attempt)

    def _learn(self, register: str, found: Versioned, link: ZooKeeperLink) -> None:
        if register in self._seen:
            self._learned[register] = found, link

    async def _is_another(self, link: ZooKeeperLink, register: str, version: int) -> bool:
        """Tell whether a followed register has other data of this version than this client knows.

        Asked once on each link: no ensemble is restored from a backup while a link to it lasts.
        """
        known, learned_on = self._learned.get(register, (None, None))
        if known is None or known.version != version or learned_on is link:
            return False
        node = await link.read(self._path(register))
        return node is not None and node.stat.version == version and node.data != known.data

    async def swap(
        self, register: str, data: bytes, expected: int, *, given: tuple[str, int] | None = None
    ) -> Versioned | None:
        """See ``Coordinator``.  Returns None also if this write succeeded, its answer was lost, and another write
        followed: in either case the caller starts again from the present register."""
        if self.only_looks:
            raise ConfigError("this client was made to look only: it changes nothing")
        _check_size(data)
        path, written = self._path(register), Versioned(data, expected + 1)
        condition = given and (self._path(given[0]), given[1])

        async def attempt(link: ZooKeeperLink) -> Versioned | None:
            for name, version in filter(None, ((register, expected), given)):
                if await self._is_another(link, name, version):
                    return None
            try:
                if condition:
                    await link.write_given(path, data, expected, condition)
                elif expected == -1:
                    await link.create(path, data)
                else:
                    await link.write(path, data, expected)
            except (NodeExists, BadVersion):  # by another client, or by this one with the answer lost
                node = await link.read(path)
                mine = node is not None and Versioned(node.data, node.stat.version) == written
                return written if mine else None
            except NoNode:
                if expected != -1:
                    return None
                await self._make(link, path.rpartition("/")[0])
                raise  # and try again
            self._learn(register, written, link)
            return written

        return await self._ask(attempt)

    # -- the registry ---------------------------------------------------------------------------------------------

    async def enrol(self, description: str, incarnation: int = 1) -> str:
        data = description.encode()
        _check_size(data)

        async def attempt(link: ZooKeeperLink) -> str:
            session = self._session.owner  # read together with the link: one link, one session
            owner = owner_id(session, incarnation)
            if incarnation > 1:
                with suppress(NoNode):
                    await link.delete(f"{self._enrolled}/{owner_id(session, incarnation - 1)}")
            with suppress(NodeExists):  # made before, by this session: no other session uses the name
                await link.create(f"{self._enrolled}/{owner}", data, ephemeral=True)
            return owner

        return await self._ask(attempt)

    @property
    def enrolled(self) -> int:
        return len(self._seen_consumers)

    async def alive(self, *, proved: bool = False) -> frozenset[str]:
        return await self._ask(partial(self._list_owners, proved=proved))

    async def _list_owners(self, link: ZooKeeperLink, *, proved: bool = False) -> frozenset[str]:
        if proved:
            # A leader that was cut off answers a sync without asking its followers, until it notices.  A write
            # needs a quorum, so a read after it, on the same link, sees every enrolment that had returned.
            await link.write(self._enrolled, b"", ANY_VERSION)
        else:
            await link.sync()
        return await link.children(self._enrolled)

    async def consumers(self) -> Mapping[str, str]:
        async def attempt(link: ZooKeeperLink) -> Mapping[str, str]:
            self._descriptions = await _read_texts(
                link, self._enrolled, await self._list_owners(link), self._descriptions
            )
            return dict(self._descriptions)

        return await self._ask(attempt)

    async def stand_down(self) -> None:
        self._stands = False
        await self._ask(self._look_at_leader)

    # -- introductions --------------------------------------------------------------------------------------------

    async def introduce(self, text: str, number: int = 1) -> None:
        data = text.encode()
        _check_size(data)

        async def attempt(link: ZooKeeperLink) -> None:
            # Another znode each time, because readers keep what they have read.
            with suppress(NodeExists):  # made before, by this session
                await link.create(f"{self._introduced}/{owner_id(self._session.owner, number)}", data, ephemeral=True)
            if number > 1:
                with suppress(NoNode):
                    await link.delete(f"{self._introduced}/{owner_id(self._session.owner, number - 1)}")

        await self._ask(attempt)

    async def clients(self) -> Mapping[str, str]:
        async def attempt(link: ZooKeeperLink) -> Mapping[str, str]:
            await link.sync()
            sessions = await link.children(self._introduced)
            self._introductions = await _read_texts(link, self._introduced, sessions, self._introductions)
            return dict(self._introductions)

        return await self._ask(attempt)

    # -- requests ---------------------------------------------------------------------------------------------------

    async def _ask(self, attempt: Callable[[ZooKeeperLink], Awaitable[_T]]) -> _T:
        """Make ``attempt``, which may be repeated, on one link after another until it is answered or the time is up."""
        if self._runner is None:
            raise Unavailable("the coordinator is not started")
        try:
            async with asyncio.timeout(self._session.timeout):
                while True:
                    link = await self._session.link()
                    with suppress(Interrupted):
                        try:
                            return await attempt(link)
                        except NoNode:
                            await self._make_parents(link)
                        except NotAllowed:
                            if not await self._session.renewed(link):
                                raise
        except TimeoutError as error:
            what, step = "does not answer", ""
            if self._session.is_crowded:
                what, step = (
                    "has no room for this client",
                    "; end clients of this machine, or raise maxClientCnxns in zoo.cfg",
                )
            raise Unavailable(f"ZooKeeper {what}: {self._session.trouble}{step}") from error
        except NotAllowed as error:
            step = "correct zookeeper_auth" if self._with_auth else "give this client zookeeper_auth"
            raise ConfigError(
                f"ZooKeeper: no right to do this ({error}); all clients of a namespace use the same credentials: {step}"
            ) from error
        except Refused as error:
            raise Unavailable(f"ZooKeeper refuses: {error}") from error

    async def _prepare(self, link: ZooKeeperLink) -> None:
        """Make the znodes, and read the present state, before any call is served, so that later changes are
        reported."""
        if not self._may_found:
            await self._check_founded(link)
        await self._make_parents(link)
        await self._look_at_register(VIEW, link)
        await self._look_at_consumers(link)
        await self._look_at_leader(link)
        if self._with_auth:
            await self._look_at_rights(link)

    async def _check_founded(self, link: ZooKeeperLink) -> None:
        """Raise ``ConfigError`` if the register was never written, with the names of the namespaces that exist."""
        await link.sync()
        if await link.stat(self._view) is not None:
            return
        found: list[str] = []
        with suppress(Refused):  # no such chroot, or no right to list it
            names = sorted(await link.children(self._ensemble.chroot or "/"))[:NAMESPACES_LOOKED_AT]
            for start in range(0, len(names), READ_AHEAD):
                some = names[start : start + READ_AHEAD]
                paths = [f"{self._ensemble.chroot}/{name}/{VIEW}" for name in some]
                views = await link.read_all(paths, unreadable=HIDDEN)
                found += [name for name, view in zip(some, views, strict=True) if view is not None]
        raise no_namespace(self._namespace, found)

    async def _look_at_rights(self, link: ZooKeeperLink) -> None:
        """Give the znodes to this session's identities if that is asked for; otherwise warn once if anybody may change
        them, because the namespace was founded without credentials."""
        if self._protects:
            await self._protect(link, self._base)
            return
        exist = [path for path in (self._base, *self._parents, self._view, self._leader) if await link.stat(path)]
        opened = [path for path in exist if any(right.opens for right in await _rights(link, path))]
        if opened and not self._warned:
            self._warned = True
            self._life.log.warning(
                "anybody who reaches ZooKeeper may change %s: the namespace was founded without zookeeper_auth. When "
                "all clients have it, found the namespace again with it (`zkrq found` or zkrq.found()): that gives "
                "them the znodes alone",
                ", ".join(opened),
            )

    async def _protect(self, link: ZooKeeperLink, path: str) -> None:
        """Give a znode, and all below it, to this session's identities: what clients make meanwhile is theirs."""
        with suppress(NoNode):
            await link.protect(path)
            for name in sorted(await link.children(path)):
                await self._protect(link, f"{path}/{name}")

    async def _make_parents(self, link: ZooKeeperLink) -> None:
        for path in self._parents:
            await self._make(link, path)

    async def _make(self, link: ZooKeeperLink, path: str) -> None:
        """Make a znode and its parents if they are missing; rights are needed only for missing ones."""
        if not path or await link.stat(path) is not None:
            return
        await self._make(link, path.rpartition("/")[0])
        with suppress(NodeExists):
            await link.create(path)

    # -- in the background --------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Run everything for this coordinator; it all ends with this task."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(supervise, self._session.run, "the ZooKeeper session")
            self._tasks = tasks
            self._start_watching(self._enrolled, self._look_at_consumers)
            self._start_watching(self._leader, self._look_at_leader)
            for register in self._seen:
                self._start_watching(self._path(register), partial(self._look_at_register, register))
            await self._stop.wait()
            self._tasks = None
            await self._session.end()
            tasks.cancel_scope.cancel()

    def _start_watching(self, path: str, look: Look) -> None:
        if self._tasks:
            watch = partial(self._watch, self._changed[path], look)
            self._tasks.start_soon(supervise, watch, f"watching {path}")

    async def _close(self) -> None:
        """End everything, bounded, and to the end even if the caller is cancelled meanwhile."""
        self._life.closed()
        self._stop.set()
        if self._runner is not None:
            await see_through(self._runner)

    async def _watch(self, changed: asyncio.Event, look: Look) -> None:
        """Look whenever something may have changed: a watch fired, the link is new, or no notice arrived for a long
        time."""
        await self._prepared.wait()
        while True:
            changed.clear()  # before looking: a change meanwhile causes another look
            link = await self._session.link()
            try:
                await look(link)
            except Interrupted:
                continue
            except NoNode:
                await self._make_parents(link)
                continue
            except Refused as error:
                if isinstance(error, NotAllowed) and await self._renewed(link):
                    continue
                self._life.log.warning("changes are not noticed at present: %s", error)
            await wait_set(changed, RESYNC_INTERVAL)

    async def _renewed(self, link: ZooKeeperLink) -> bool:
        try:
            return await self._session.renewed(link)
        except (ConfigError, Unavailable) as error:
            self._life.log.warning("the credentials cannot be read: %s", error)
            return False

    def _on_event(self, path: str) -> None:
        changed = self._changed.get(path)
        if changed is not None:
            changed.set()

    def _look_again(self) -> None:
        for changed in self._changed.values():
            changed.set()

    async def _look_at_register(self, register: str, link: ZooKeeperLink) -> None:
        stat = await link.stat(self._path(register), watch=True)
        seen = None if stat is None else stat.modified
        if seen != self._seen[register]:
            self._seen[register] = seen
            self._tell(partial(self._life.register_changed, register))

    async def _look_at_consumers(self, link: ZooKeeperLink) -> None:
        owners = await link.children(self._enrolled, watch=True)
        if owners != self._seen_consumers:
            self._seen_consumers = owners
            self._tell(self._life.consumers_changed)

    async def _look_at_leader(self, link: ZooKeeperLink) -> None:
        session_id, owner = self._session.id, self._session.owner  # read together with the link: one link, one session
        stat = await link.stat(self._leader, watch=True)
        if self.only_looks or not self._stands:
            if stat and stat.owner == session_id:
                with suppress(NoNode):
                    await link.delete(self._leader)
            self._life.lead(False)
            return
        if stat is None:
            try:
                stat = await link.create(self._leader, owner.encode(), ephemeral=True)
            except NodeExists:
                self._changed[self._leader].set()
                return
        self._life.lead(stat.owner == session_id)

    def _tell(self, change: Callable[[], None]) -> None:
        """Report a change, but not the state at the start."""
        if self._prepared.is_set():
            change()


async def _read_texts(
    link: ZooKeeperLink, folder: str, names: frozenset[str], known: Mapping[str, str]
) -> Mapping[str, str]:
    """Read the znodes of a folder that are not known yet; return all that are there."""
    found = {name: text for name, text in known.items() if name in names}
    unknown = sorted(names - found.keys())
    for start in range(0, len(unknown), READ_AHEAD):
        some = unknown[start : start + READ_AHEAD]
        nodes = await link.read_all([f"{folder}/{name}" for name in some], unreadable=HIDDEN)
        found |= {
            name: node.data.decode(errors="replace") for name, node in zip(some, nodes, strict=True) if node is not None
        }
    return found


async def _rights(link: ZooKeeperLink, path: str) -> list[Right]:
    """Read the rights to a znode; none if it has just gone."""
    try:
        return await link.rights(path)
    except NoNode:
        return []


def _check_size(data: bytes) -> None:
    if len(data) > MAX_DATA_BYTES:
        raise PayloadTooLarge(len(data), MAX_DATA_BYTES)
