"""Read parameters that a framework carries with a task: as labels, or as headers of its messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zkrq.base.errors import ConfigError

if TYPE_CHECKING:
    from zkrq.operations.operation import Operation


@dataclass(frozen=True, slots=True)
class Labels:
    """The parameters of an operation under their names, each behind ``prefix``, as they are or as texts.

    ``called``: what the framework calls them.  ``without``: those that it does not carry, and why.
    """

    operation: Operation
    called: str
    without: Mapping[str, str]
    prefix: str = ""

    def read(self, labels: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is given, to be checked by the operation.  Raises ``ConfigError`` for what cannot be read."""
        given: dict[str, Any] = {}
        for parameter in self.operation.without(self.without):
            label = self.prefix + parameter.name
            if (told := labels.get(label)) is None:
                continue
            try:
                given[parameter.name] = parameter.kind.read(told)
            except (TypeError, ValueError, SyntaxError) as error:
                raise ConfigError(f"the {self.called} {label} is {told!r:.100}, {error}") from error
        return given

    def but(self, given: Mapping[str, Any], *names: str) -> dict[str, Any]:
        """Return what is given without these parameters, and without those that mean nothing without one of them."""
        left_out = {*names}.union(*map(self.operation.needing, names))
        return {name: value for name, value in given.items() if name not in left_out}
