"""The code that a client runs: that of this release, or that of the release before, loaded beside it.

The release before is a package of its own, ``zkrq_before``: its files as git has them, except that they import each
other by that name.  With this release it shares the modules that say how a client meets what is outside of it, because
the simulation plays that for both: errors, what a coordinator is, and the replies of servers.
"""

from __future__ import annotations

import re
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.history import BUILT, extract
from zkrq import Cancellation, Receipt

if TYPE_CHECKING:
    from types import ModuleType

    from zkrq.base.settings import Settings
    from zkrq.client.cluster import Cluster

BEFORE = "zkrq_before"
"""Package of the release before."""

SHARED = ("base.errors", "coordination.coordinator", "replication.stream")
"""Modules of which there is one for both releases; this release's have all that the others have."""


class Code:
    """One release, as its clients and those who watch them need it."""

    def __init__(self, package: str) -> None:
        self._package = package
        self.make_cluster: type[Cluster] = self.module("client.cluster").Cluster
        self.make_settings: type[Settings] = self.module("base.settings").Settings

    def __repr__(self) -> str:
        return f"<Code {self._package}>"

    def module(self, name: str) -> ModuleType:
        """Return one of its modules by the name that it has in every release."""
        return import_module(f"{self._package}.{name}")

    @property
    def is_present(self) -> bool:
        """Whether it is that of this release."""
        return self is PRESENT

    def translated(self, value: Any) -> Any:
        """Return what one of its calls returned, as this release says it."""
        if self.is_present:
            return value
        if isinstance(value, Receipt):  # made without the fields that came later
            return Receipt(*value)
        if type(value).__name__ == "Cancellation":
            return Cancellation(value.value)
        return value


PRESENT = Code("zkrq")

LOADED = [PRESENT]
"""All that may run in this process."""


def load_before() -> Code:
    """Load the release before; git must have it (``history.has_history``)."""
    if len(LOADED) == 1:
        folder = BUILT / "simulated"
        if not folder.exists():
            _unpack(folder)
        for name in SHARED:
            sys.modules[f"{BEFORE}.{name}"] = PRESENT.module(name)
        sys.path.append(str(folder))
        LOADED.append(Code(BEFORE))
    return LOADED[1]


def _unpack(folder: Path) -> None:
    """Write the package beside, and put it in its place as a whole: another process may do the same."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as beside:
        made = Path(beside) / "made"
        extract(made, "zkrq")
        (made / "zkrq").rename(made / BEFORE)
        for file in (made / BEFORE).rglob("*.py"):
            file.write_text(_renamed(file.read_text()))
        try:
            made.rename(folder)
        except OSError:
            if not folder.exists():
                raise


def _renamed(source: str) -> str:
    """Have a module import its own package by its new name, and find its files there."""
    source = re.sub(r"(?m)^(\s*from) zkrq\b", rf"\1 {BEFORE}", source)
    source = re.sub(r"(?m)^(\s*import) zkrq$", rf"\1 {BEFORE} as zkrq", source)
    return source.replace('files("zkrq.', f'files("{BEFORE}.')
