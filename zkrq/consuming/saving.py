"""Save what a handler has done of an item: a state of its own, or the values of steps, which are not run again.

What a returned save holds, every later delivery of the item is given.  A step that has run, and whose process died
before its value was saved, runs again.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

from zkrq.base import saved
from zkrq.base.checks import check_id
from zkrq.base.codecs import call_codec, codec_of_item
from zkrq.base.errors import CodecError, ConfigError, text_of
from zkrq.base.saved import Saved

if TYPE_CHECKING:
    from zkrq.base.codecs import Codec
    from zkrq.consuming.lease import Lease

R = TypeVar("R")


class Saving:
    """What is saved of the item of one claim, as far as it is known here."""

    __slots__ = ("_lease", "_lock", "_named", "_number", "_saved")

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._lock = asyncio.Lock()
        """Saves of a claim are numbered, and follow one another: one that is executed late is known by its number."""
        self._number = 0
        self._named = set[str]()
        """Steps of this delivery."""
        self._saved: Saved | None = None
        """What the servers have, None: it was not read yet."""

    @property
    def known(self) -> Saved:
        """What the servers have.  Raises ``CodecError``."""
        if self._saved is None:
            text = self._lease.grant.saved_at(self._lease.position)
            self._saved = Saved() if text is None else saved.decode(text)
        return self._saved

    @property
    def _codec(self) -> Codec[Any]:
        return codec_of_item(self._lease.issuer.saved_codec, self._lease.id)

    def decoded(self, value: bytes | None) -> Any:
        """Return a value as its handler knows it, None for none.  Raises ``CodecError``."""
        if value is None:
            return None
        return call_codec(self._codec.decode, value, "what is saved of the item cannot be decoded")

    def _encoded(self, what: str, value: object) -> bytes:
        try:
            return self._codec.encode(value)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # of any codec
            raise CodecError(f"{what} cannot be saved: {text_of(error)}; nothing was saved") from error

    # -- saving --------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise ``ClaimLost``, or ``ConfigError`` at a level that lacks saved states."""
        self._lease.check_held()
        self._lease.issuer.check_saves()

    async def save(self, state: object, *, extend: bool) -> None:
        """Save the state.  Raises as ``Claim.save``."""
        self.check()
        encoded = self._encoded("the state", state)
        await self._write(lambda known: known._replace(state=encoded), extend=extend)

    async def save_step(self, name: str, value: object) -> None:
        """Save the value of a step beside all others.  Raises as ``Claim.save``."""
        encoded = self._encoded(f"the value of step {name!r}", value)
        await self._write(lambda known: known._replace(steps={**known.steps, name: encoded}), extend=True)

    async def _write(self, change: Callable[[Saved], Saved], *, extend: bool) -> None:
        async with self._lock:
            changed = change(self.known)
            text = changed.encode()
            self._number += 1
            await self._lease.save(self._number, text, extend=extend)
            self._saved = changed

    # -- steps ---------------------------------------------------------------------------------------------------------

    def begin_step(self, name: str) -> None:
        """Note the name of a step.  Raises ``ConfigError`` if it is none, or was named before in this delivery."""
        check_id("the name of a step", name)
        if self._lease.batch is not None:
            raise ConfigError(
                f"step {name!r}: an item of a batch has no steps, because its handler works on others beside it; "
                "use claim.save, or a handler that takes one item"
            )
        if name in self._named:
            raise ConfigError(f"step {name!r} was named twice in one delivery: give each step a name of its own")
        self._named.add(name)

    def key_of(self, name: str) -> str:
        """Return the key of a step: the same at each delivery of the item."""
        return f"{self._lease.id}/{name}"


class Step(Generic[R]):
    """One step of the work on an item, whose value is kept; made by ``claim.step``.

    ``await claim.step("charge", charge, order)`` returns the kept value, or calls the function and saves what it
    returns.  Or the step is a block::

        async with claim.step("charge") as step:
            if not step.done:
                step.value = await charge(order, idempotency_key=step.key)

    The value is saved where the block ends; if it raises, nothing is.
    """

    __slots__ = ("_has_value", "_running", "_saving", "_value", "name")

    def __init__(self, saving: Saving, name: str, call: Callable[[], R | Awaitable[R]] | None) -> None:
        saving.begin_step(name)
        self.name = name
        """The name that it was given."""
        self._saving = saving
        self._value: R | None = None
        self._has_value = False
        # Made now, so that Python warns of one that is never awaited.
        self._running = self._run(call) if call else None

    def __repr__(self) -> str:
        return f"<Step {self.name!r}>"

    @property
    def key(self) -> str:
        """The item's id and the step's name: the same at each delivery, for others that refuse to do a thing twice."""
        return self._saving.key_of(self.name)

    @property
    def done(self) -> bool:
        """Whether its value is saved.  Raises ``CodecError`` if that cannot be read."""
        return self.name in self._saving.known.steps

    @property
    def value(self) -> R:
        """Its value: that of an earlier delivery, or the one that was set; None without one."""
        if not self._has_value and self.done:
            self._value = self._saving.decoded(self._saving.known.steps[self.name])
            self._has_value = True
        return cast("R", self._value)

    @value.setter
    def value(self, value: R) -> None:
        if self.done:
            raise ConfigError(f"step {self.name!r} is done, its value stays: look at step.done first")
        self._value, self._has_value = value, True

    def __await__(self) -> Generator[Any, None, R]:
        if self._running is None:
            raise ConfigError(
                f"step {self.name!r} has no function: give one after its name, or enter it: async with claim.step(...)"
            )
        return self._running.__await__()

    async def _run(self, call: Callable[[], R | Awaitable[R]]) -> R:
        self._saving.check()
        if not self.done:
            value = call()
            await self._save(await value if inspect.isawaitable(value) else value)
        return self.value

    async def _save(self, value: object) -> None:
        """Save the value.  From now on it is what later deliveries are given: JSON makes lists of tuples."""
        await self._saving.save_step(self.name, value)
        self._has_value = False

    async def __aenter__(self) -> Self:
        if self._running is not None:
            self._running.close()
            raise ConfigError(f"step {self.name!r} has a function: await it, or enter it without one")
        self._saving.check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None and not self.done:
            await self._save(self._value)
