"""Describe one operation: its parameters, the rules between them, its result.

Python, HTTP, the command line, the outbox, taskiq, Celery and schedules take their arguments, checks and texts from
here, so that what an option is stands in one place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from zkrq.base.errors import ConfigError

if TYPE_CHECKING:
    from zkrq.operations.kinds import Kind


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter.

    ``sentence``: what it does, for people, with its unit and its bounds; ``absent``: what holds without it.
    ``metavar``: what stands for its value in the usage of a command, empty: as of its kind.
    """

    name: str
    kind: Kind[Any]
    sentence: str
    absent: str = ""
    default: Any = None
    metavar: str = ""

    @property
    def help(self) -> str:
        """The sentence and what holds without it."""
        return f"{self.sentence} Left out: {self.absent}." if self.absent else self.sentence


class Rule(ABC):
    """What must hold where the parameter ``name`` is given, each value being right by itself."""

    name: str

    @abstractmethod
    def check(self, given: Mapping[str, Any]) -> None:
        """Raise ``ConfigError`` if ``name`` contradicts the others that are given."""


@dataclass(frozen=True, slots=True)
class Needs(Rule):
    """One parameter means nothing without another, for which ``example`` stands."""

    name: str
    other: str
    example: str
    shown: str = ""
    """How errors show the first one, empty: by its name."""

    def check(self, given: Mapping[str, Any]) -> None:
        if self.other not in given:
            raise ConfigError(f"{self.shown or self.name} needs a {self.other}: {self.other}={self.example}")


@dataclass(frozen=True, slots=True)
class Excludes(Rule):
    """Two parameters contradict each other; ``why`` says it, and what to do."""

    name: str
    other: str
    why: str = ""

    def check(self, given: Mapping[str, Any]) -> None:
        if self.other in given:
            raise ConfigError(self.why or f"{self.name} and {self.other} exclude each other")


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a result; ``sentence`` is empty where the name says all."""

    name: str
    sentence: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """A result with named fields."""

    name: str
    sentence: str
    fields: tuple[Field, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.fields)


@dataclass(frozen=True, slots=True)
class Operation:
    """One public operation.

    ``sentence``: what it does; ``method`` and ``path``: of HTTP, empty if HTTP does not have it.  ``result``: None if
    there is none.  ``repeatable``: whether a call of which nobody knows whether it happened may be repeated as it is.
    """

    name: str
    sentence: str
    parameters: tuple[Parameter, ...] = ()
    rules: tuple[Rule, ...] = ()
    result: Record | None = None
    method: str = ""
    path: str = ""
    repeatable: bool = True
    by_name: Mapping[str, Parameter] = field(init=False)
    defaults: Mapping[str, Any] = field(init=False)
    """What holds without each parameter."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {each.name: each for each in self.parameters})
        object.__setattr__(self, "defaults", {each.name: each.default for each in self.parameters})

    def check(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is given and says more than its absence, checked.

        Raises ``ConfigError`` for the first value that is wrong by itself, and then for those that contradict each
        other; ``KeyError`` for a name that is not in the table.
        """
        values: dict[str, Any] = {}
        for name, value in given.items():
            parameter = self.by_name[name]
            if value != parameter.default and (checked := parameter.kind.check(name, value)) != parameter.default:
                values[name] = checked
        for rule in self.rules:
            if rule.name in values:
                rule.check(values)
        return values

    def needing(self, name: str) -> frozenset[str]:
        """Return the names of the parameters that mean nothing without this one."""
        return frozenset(each.name for each in self.rules if isinstance(each, Needs) and each.other == name)

    def without(self, names: Collection[str]) -> tuple[Parameter, ...]:
        """Return the parameters but these."""
        return tuple(each for each in self.parameters if each.name not in names)
