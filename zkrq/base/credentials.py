"""Give the users and passwords of connections: fixed, or read again whenever a connection is made.

So a password can be changed while a program runs: servers take the old and the new one for a time, the file gets the
new one, and each connection that is made from then on uses it.  Nothing here shows a password in its ``repr``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeAlias

from zkrq.base.checks import check_login
from zkrq.base.errors import ConfigError, Unavailable
from zkrq.base.threads import Threads

READ_SECONDS = 1.0
"""Seconds that reading credentials may take."""

READ_THREADS = 4
"""Credentials that are read at the same time."""

MAX_LOGINS = 8
"""Logins in one file or text; two are usual while a password is changed."""

Login: TypeAlias = tuple[str, str]
"""A user and a password."""

Logins: TypeAlias = Login | list[Login]
"""One login, or several while a password is changed."""

Credentials: TypeAlias = Logins | Callable[[], Logins]
"""Logins, or what returns them; that is called in a thread for each connection, as ``LoginFile`` is."""


def parse_logins(text: str) -> Logins:
    """Read ``user:password``, one login on each line.  Raises ``ValueError``, which quotes nothing."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not 1 <= len(lines) <= MAX_LOGINS or not all(":" in line for line in lines):
        raise ValueError(f"user:password expected, on 1 to {MAX_LOGINS} lines")
    found: list[Login] = []
    for line in lines:
        user, _, password = line.partition(":")
        found.append((user, password))
    return found[0] if len(found) == 1 else found


class LoginFile:
    """A file with ``user:password``, read again for each connection; ``:password`` for Redis' default user.

    A second line has the login that is being replaced, or will be; only ZooKeeper uses it.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"LoginFile({str(self.path)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LoginFile) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    def __call__(self) -> Logins:
        """Read the file.  Raises ``OSError``, ``ValueError``."""
        return parse_logins(self.path.read_text())


_threads = Threads("zkrq credentials", most=READ_THREADS)


class Source:
    """Credentials that were checked, as the connections use them.

    what: name of the setting, for error texts.
    """

    def __init__(self, what: str, given: Credentials, *, nameless: bool = False) -> None:
        """Raises ``ConfigError`` for bad credentials.  ``nameless``: the user may be empty."""
        self._what = what
        self._given = given
        self._nameless = nameless
        if not callable(given):
            self._check(given)
        elif isinstance(given, LoginFile):
            self._read(given)

    def __repr__(self) -> str:
        return f"<{self._what}: {self._given!r}>" if callable(self._given) else f"<{self._what}>"

    async def logins(self) -> list[Login]:
        """Return the logins that hold now.

        Raises ``ConfigError`` if they cannot be read or are wrong, ``Unavailable`` after ``READ_SECONDS``.
        """
        given = self._given
        if not callable(given):
            return self._check(given)
        try:
            async with asyncio.timeout(READ_SECONDS):
                return await _threads.run(partial(self._read, given))
        except TimeoutError:
            raise Unavailable(f"{self._what} was not read within {READ_SECONDS:g} s from {given!r}") from None

    def _read(self, given: Callable[[], Logins]) -> list[Login]:
        try:
            logins = given()
        except OSError as error:
            raise ConfigError(f"{self._what} cannot be read: {error}") from error
        except Exception as error:  # without its text, which may quote a password
            raise ConfigError(f"{self._what} cannot be read from {given!r}: {type(error).__name__}") from None
        return self._check(logins)

    def _check(self, logins: Logins) -> list[Login]:
        several = logins if isinstance(logins, list) else [logins]
        if not 1 <= len(several) <= MAX_LOGINS:
            raise ConfigError(f"{self._what} has {len(several)} logins: 1 to {MAX_LOGINS} expected")
        return [check_login(self._what, login, nameless=self._nameless) for login in several]
