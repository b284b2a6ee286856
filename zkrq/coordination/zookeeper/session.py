"""Keep one session after another, over one link after another.

    attach   find a server that accepts the session, or gives a new one: some seconds per server at most, bounded pauses
    serve    until the link breaks; callers get the link from ``link()``
    again    with the same session, until ZooKeeper itself says that it is over

Silence, refused connections and unanswered handshakes prove nothing: the session's id and password are kept and
retried. Only a handshake answered with session id 0 makes a session LOST.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio

from zkrq.base.errors import Closed, ConfigError
from zkrq.base.pauses import doubled
from zkrq.coordination.coordinator import SessionState
from zkrq.coordination.zookeeper.hosts import Address, Ensemble
from zkrq.coordination.zookeeper.link import Greeting, Interrupted, NoRoom, NotAllowed, Refused, ZooKeeperLink

if TYPE_CHECKING:
    from zkrq.base.credentials import Login, Source
    from zkrq.base.tls import TLS
    from zkrq.coordination.lifecycle import Lifecycle

ATTEMPT_TIMEOUT = 1 / 6  # of the session timeout, for one server in the first round; doubles with each round ...
MAX_ATTEMPT_TIMEOUT = 1 / 2  # ... up to this
NAME_SHARE = 1 / 2  # of the time for one server, until its last known addresses are used for want of its name
FIRST_PAUSE = 0.05  # seconds between rounds; doubles with each round ...
MAX_PAUSE = 0.5  # ... up to this
STABLE_SECONDS = 2.0  # a link that lasted longer makes the next search start without a pause
FORGET_ZXID_AFTER = 3  # session timeouts without contact; then a server that knows less is better than none
END_SECONDS = 1.0  # seconds for ZooKeeper to confirm the end of the session

# Part of the session timeout by which the deadline is earlier than the last answer alone would allow.  A follower
# passes signs of life on to the leader every half tick, and may die in between; a tick is at most half of a session
# timeout.
MARGIN = 1 / 4

ROUNDING = 0.001  # seconds; ZooKeeper counts milliseconds

_NO_SESSION = b"\x00"


class ZooKeeperSession:
    """Keep a session with an ensemble and report its state to ``life``.

    timeout: seconds; the requested timeout until a server has answered, then the granted one.
    on_event: called with the path of a znode whose watch fired.
    on_connected: called for every new link; watches of the old one are gone.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        timeout: float,
        auth: Source | None,
        tls: TLS | None,
        life: Lifecycle,
        *,
        on_event: Callable[[str], None],
        on_connected: Callable[[], None],
    ) -> None:
        self.timeout = timeout
        self.trouble = "no server was tried yet"  # why there is no link, for error texts
        self.is_crowded = False  # whether that is because no server has room for this client
        self._ensemble = ensemble
        self._wish = timeout
        self._auth = auth
        self._tls = tls
        self._life = life
        self._on_event = on_event
        self._on_connected = on_connected
        self._id = 0
        self._password = _NO_SESSION
        self._owner = ""
        self._zxid = 0
        self._contact = float("-inf")  # of earlier links, in this session
        self._alone_since = float("-inf")  # loop time at which the last link broke
        self._rounds = 0  # of searching since a link was stable
        self._link: ZooKeeperLink | None = None
        self._last_address: Address | None = None
        self._refusal: NotAllowed | None = None  # credentials refused before there was any session
        self._refusing = set[Address]()  # servers that did not let this client in
        self._wake = asyncio.Event()  # set while link() need not wait

    @property
    def id(self) -> int:
        """ZooKeeper's number for the session, as in a znode's stat; 0 while there is none."""
        return self._id

    @property
    def owner(self) -> str:
        """Name of the session: new for every one, even if ZooKeeper repeats a number."""
        return self._owner

    @property
    def valid_until(self) -> float:
        contact = max(self._contact, self._link.contact) if self._link is not None else self._contact
        return contact + self.timeout * (1 - MARGIN)

    async def link(self) -> ZooKeeperLink:
        """Return the present link, or the next one; the caller bounds the wait.  Raises ``Closed`` or
        ``ConfigError``."""
        while True:
            if self._life.state is SessionState.CLOSED:
                raise Closed
            if self._refusal is not None:
                raise ConfigError(f"ZooKeeper: {self._refusal}") from self._refusal
            if self._link is not None and self._link.broken is None:
                return self._link
            self._wake.clear()
            await self._wake.wait()

    async def renewed(self, link: ZooKeeperLink) -> bool:
        """Break a link whose credentials are not those that hold now; return whether they were others."""
        if self._auth is None or await self._auth.logins() == list(link.logins):
            return False
        link.kill("the credentials have changed")
        return True

    async def run(self) -> None:
        """Keep a session until it is cancelled or ``life`` is closed."""
        loop = asyncio.get_running_loop()
        while self._life.state is not SessionState.CLOSED:
            link = await self._attach()
            since = loop.time()
            try:
                self._use(link)
                await link.serve(self.timeout)
            finally:
                await self._drop(link)
            if loop.time() - since > STABLE_SECONDS:
                self._rounds = 0

    async def end(self) -> None:
        """End the session at ZooKeeper if it can be reached, in bounded time; ``life`` is already closed."""
        self._wake.set()
        if self._link is None:
            return
        with anyio.move_on_after(END_SECONDS, shield=True):
            try:
                await self._link.end_session()
            except (Interrupted, Refused) as error:
                self._life.log.debug("the session could not be ended, it will expire: %s", error)

    # -- a link: found, used, dropped -------------------------------------------------------------------------------

    async def _attach(self) -> ZooKeeperLink:
        """Try server after server until one accepts the session."""
        while True:
            await asyncio.sleep(self._pause())
            bound = doubled(ATTEMPT_TIMEOUT, self._rounds, most=MAX_ATTEMPT_TIMEOUT) * self.timeout
            self._rounds += 1
            self._forget_zxid()
            troubles, crowded = list[str](), 0
            refusals: list[NotAllowed] = []
            for address in self._order():
                try:
                    async with asyncio.timeout(bound):
                        return await self._establish(address, bound)
                except NotAllowed as error:
                    self._note_refusal(address, error)
                    refusals.append(error)
                    troubles.append(f"{address}: {error}")
                except NoRoom as error:
                    crowded += 1
                    troubles.append(f"{address}: {error}")
                except Exception as error:  # whatever it is, try the next server
                    troubles.append(f"{address}: {str(error) or type(error).__name__}")
            self.is_crowded = crowded == len(troubles)
            self._note_trouble("; ".join(troubles))
            if refusals:
                self._refuse(refusals[0])

    async def _establish(self, address: Address, bound: float) -> ZooKeeperLink:
        link = ZooKeeperLink(address, self._on_event)
        try:
            wish = Greeting(self._id, self._password, self._wish)
            logins, context = await self._logins(), self._context()
            greeting = await link.open(wish, self._zxid, logins, context, name_seconds=bound * NAME_SHARE)
            if greeting.session_id:
                self._accept(greeting)
                return link
        except BaseException:
            await link.close()
            raise
        await link.close()
        if not self._id:
            raise ConnectionError("the server gives no session")
        self._lose()
        return await self._establish(address, bound)

    async def _logins(self) -> list[Login]:
        """Read the credentials.  Raises ``NotAllowed``, ``Unavailable``."""
        try:
            return await self._auth.logins() if self._auth else []
        except ConfigError as error:
            raise NotAllowed(str(error)) from error

    def _context(self) -> ssl.SSLContext | None:
        """Read the certificates.  Raises ``NotAllowed``."""
        try:
            return self._tls.context() if self._tls else None
        except OSError as error:  # or ssl.SSLError
            raise NotAllowed(f"the files of zookeeper_tls cannot be used: {error}; correct them") from error

    def _accept(self, greeting: Greeting) -> None:
        if greeting.session_id != self._id:
            if self._id:  # never seen; but a session must not change silently
                self._lose()
            self._owner = f"{greeting.session_id & 0xFFFF_FFFF_FFFF_FFFF:x}-{secrets.token_hex(4)}"
        self._id = greeting.session_id
        self._password = greeting.password
        if greeting.timeout != self.timeout:
            self._note_timeout(greeting.timeout)
        self.timeout = greeting.timeout

    def _lose(self) -> None:
        """Record that ZooKeeper declared the session over."""
        self._id = 0
        self._password = _NO_SESSION
        self._contact = float("-inf")
        self._life.lost()

    def _use(self, link: ZooKeeperLink) -> None:
        self._link = link
        self._last_address = link.address
        if self._life.state is SessionState.CLOSED:
            return
        self._life.connected(self._owner)
        self._wake.set()
        self._on_connected()

    async def _drop(self, link: ZooKeeperLink) -> None:
        self._link = None
        self._alone_since = asyncio.get_running_loop().time()
        self._contact = max(self._contact, link.contact)
        self._zxid = max(self._zxid, link.zxid)
        if link.broken is not None:
            self.trouble, self.is_crowded = f"{link.address}: {link.broken}", False
        if self._life.state is SessionState.CONNECTED:
            self._life.log.debug("link to %s", self.trouble)
            self._life.suspended()
        await link.close()

    # -- small decisions --------------------------------------------------------------------------------------------

    def _pause(self) -> float:
        """Return the seconds before the next round: none after a stable link, then growing, randomised against
        herds."""
        if self._rounds == 0:
            return 0.0
        return doubled(FIRST_PAUSE, self._rounds - 1, most=MAX_PAUSE) * random.uniform(0.5, 1.0)  # noqa: S311

    def _order(self) -> list[Address]:
        """Return all servers, shuffled; the one whose link broke comes last."""
        servers = random.sample(self._ensemble.servers, len(self._ensemble.servers))
        return sorted(servers, key=lambda address: address == self._last_address)

    def _forget_zxid(self) -> None:
        silence = asyncio.get_running_loop().time() - self._alone_since
        if self._zxid and silence > FORGET_ZXID_AFTER * self.timeout:
            self._life.log.warning(
                "no server accepts the session for %.0f s: from now on one that knows less will do", silence
            )
            self._zxid = 0

    def _refuse(self, error: NotAllowed) -> None:
        """Report credentials that never worked as an error; those that worked before may work again."""
        if self._life.state is SessionState.CONNECTING:
            self._refusal = error
            self._wake.set()

    def _note_refusal(self, address: Address, error: NotAllowed) -> None:
        """Warn once about each server that does not let this client in."""
        if address not in self._refusing:
            self._refusing.add(address)
            self._life.log.warning("ZooKeeper server %s does not let this client in: %s", address, error)

    def _note_timeout(self, granted: float) -> None:
        """Warn if ZooKeeper gives another timeout than was asked for, unless by rounding: its limits lie in between."""
        if abs(granted - self._wish) < ROUNDING:
            return
        limit, than = ("max", "longer") if granted < self._wish else ("min", "shorter")
        self._life.log.warning(
            "session_timeout is %g s, but ZooKeeper gives %g s: it allows none that is %s. Claims of a process that "
            "dies come back after that. Ask for %g s, or set %sSessionTimeout in ZooKeeper's configuration",
            self._wish,
            granted,
            than,
            granted,
            limit,
        )

    def _note_trouble(self, trouble: str) -> None:
        level = logging.WARNING if self._rounds == 1 else logging.DEBUG  # once per outage
        self._life.log.log(level, "no ZooKeeper server accepts the session, retrying: %s", trouble)
        self.trouble = trouble
