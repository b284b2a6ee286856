"""Describe one operation: its parameters, the rules between them, its result.

Python, HTTP, the command line, the outbox, taskiq, Celery and schedules take their arguments, checks and texts from
here, so that what an option is stands in one place.
"""

from __future__ import annotations

import enum
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, ClassVar, Literal

from zkrq.base.errors import ConfigError
from zkrq.base.meant import unknown_option
from zkrq.operations.kinds import Content, Kind


class Absent(enum.Enum):
    """Stand for a parameter that is left out where None is a value of it."""

    KEEP = "as it is"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter.

    ``sentence``: what it does, for people, with its unit and its bounds; ``absent``: what holds without it.
    ``null``: what None says that is more than its absence; empty: None is no value of it.  ``example``: a value.
    ``metavar``: what stands for its value in the usage of a command, empty: as of its kind.
    """

    name: str
    kind: Kind[Any]
    sentence: str
    absent: str = ""
    default: Any = None
    metavar: str = ""
    required: bool = False
    null: str = ""
    example: Any = None

    @property
    def help(self) -> str:
        """The sentence and what holds without it."""
        return self.explained("null")

    def explained(self, none: str) -> str:
        """Return the sentence, what None says (``none``: how that is written), and what holds without it."""
        without = [f"{none}: {self.null}."] if self.null else []
        without += [f"Left out: {self.absent}."] if self.absent else []
        return " ".join([self.sentence, *without])


class Wording:
    """Write parameters in errors, as Python does; a face in which they look otherwise has its own."""

    def name(self, name: str) -> str:
        """Write the name of a parameter."""
        return name

    def given(self, name: str, value: Any) -> str:
        """Write a parameter with a value."""
        return f"{name}={value!r}"

    def shown(self, name: str, given: Mapping[str, Any]) -> str:
        """Write a parameter that is given: one that is yes or no with its value, which says more than the name."""
        return self.given(name, True) if given[name] is True else self.name(name)


PYTHON = Wording()


class Rule(ABC):
    """What must hold where the parameter ``name`` is given, each value being right by itself."""

    name: str

    @abstractmethod
    def check(self, given: Mapping[str, Any], wording: Wording = PYTHON) -> None:
        """Raise ``ConfigError`` if ``name`` contradicts the others that are given."""


@dataclass(frozen=True, slots=True)
class Needs(Rule):
    """One parameter means nothing without another, for which ``example`` stands."""

    name: str
    other: str
    example: str | bool

    def check(self, given: Mapping[str, Any], wording: Wording = PYTHON) -> None:
        if self.other not in given:
            example = wording.given(self.other, self.example)
            raise ConfigError(f"{wording.shown(self.name, given)} needs a {self.other}: {example}")


@dataclass(frozen=True, slots=True)
class Excludes(Rule):
    """Two parameters, ``{name}`` and ``{other}``, contradict each other; ``why`` says it, and what to do."""

    name: str
    other: str
    why: str = "{name} and {other} exclude each other"

    def check(self, given: Mapping[str, Any], wording: Wording = PYTHON) -> None:
        if self.other in given:
            name, other = wording.shown(self.name, given), wording.shown(self.other, given)
            raise ConfigError(self.why.format(name=name, other=other))


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a result; ``sentence`` is empty where the name says all.

    ``nullable``: whether it may be None.  ``optional``: whether it may be left out, then no value has it.
    ``source``: where a value has it: the name of its attribute, that of an attribute of an attribute, or a function;
    empty: under the name of the field.
    """

    name: str
    kind: Kind[Any]
    sentence: str = ""
    nullable: bool = False
    optional: bool = False
    source: str | Callable[[Any], Any] = ""


@dataclass(frozen=True, slots=True)
class Record(Kind[Any]):
    """A result with named fields, which may be a field of another one."""

    metavar: ClassVar[str] = "JSON"
    name: str
    sentence: str
    fields: tuple[Field, ...]
    told: tuple[tuple[str, Callable[[Any], Any], Callable[[Any], Any] | None], ...] = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "told", tuple(map(_teller, filter(_is_told, self.fields))))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.fields)

    def check(self, name: str, value: Any) -> Any:
        return value

    def tell(self, value: Any) -> dict[str, Any]:
        """Return the fields of a value as JSON has them, but for contents, which each face writes in its own way."""
        told: dict[str, Any] = {}
        for name, get, tell in self.told:
            found = get(value)
            told[name] = found if tell is None or found is None else tell(found)
        return told


def _is_told(field: Field) -> bool:
    return not field.optional and not isinstance(field.kind, Content)


def _teller(field: Field) -> tuple[str, Callable[[Any], Any], Callable[[Any], Any] | None]:
    """Return the name of a field, how a value is asked for it, and how that is told, None: as it is."""
    get = attrgetter(field.source or field.name) if isinstance(field.source, str) else field.source
    kind: type[Any] = type(field.kind)
    return field.name, get, None if kind.tell is Kind[Any].tell else field.kind.tell


@dataclass(frozen=True, slots=True)
class Section:
    """Parameters that are given together, with the rules between them."""

    name: str
    sentence: str
    parameters: tuple[Parameter, ...] = ()
    rules: tuple[Rule, ...] = ()
    by_name: Mapping[str, Parameter] = field(init=False, repr=False, compare=False)
    defaults: Mapping[str, Any] = field(init=False, repr=False, compare=False)
    """What holds without each parameter."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {each.name: each for each in self.parameters})
        object.__setattr__(self, "defaults", {each.name: each.default for each in self.parameters})

    def check_names(self, what: str, names: Collection[str]) -> None:
        """Raise ``TypeError`` for a parameter that ``what`` does not have, which names the one that was meant."""
        if unknown := set(names) - self.by_name.keys():
            raise unknown_option(what, min(unknown), self.by_name)

    def check(self, given: Mapping[str, Any], wording: Wording = PYTHON) -> dict[str, Any]:
        """Return what is given and says more than its absence, checked.

        ``wording``: how errors write parameters.  Raises ``ConfigError`` for the first value that is wrong by itself,
        and then for those that contradict each other; ``KeyError`` for a name that is not in the table.
        """
        values: dict[str, Any] = {}
        for name, value in given.items():
            parameter = self.by_name[name]
            if value is None and parameter.null:
                values[name] = None
                continue
            checked = value if value == parameter.default else parameter.kind.check(wording.name(name), value)
            if checked != parameter.default:
                values[name] = checked
        self.check_rules(values, wording)
        return values

    def check_rules(self, values: Mapping[str, Any], wording: Wording = PYTHON) -> None:
        """Raise ``ConfigError`` for values, each right by itself and more than its absence, that contradict."""
        for rule in self.rules:
            if rule.name in values:
                rule.check(values, wording)

    def needing(self, name: str) -> frozenset[str]:
        """Return the names of the parameters that mean nothing without this one, or without one of them."""
        direct = [each.name for each in self.rules if isinstance(each, Needs) and each.other == name]
        return frozenset(direct).union(*map(self.needing, direct))

    def without(self, names: Collection[str]) -> tuple[Parameter, ...]:
        """Return the parameters but these."""
        return tuple(each for each in self.parameters if each.name not in names)


@dataclass(frozen=True, slots=True)
class Arguments(Kind[Mapping[str, Any]]):
    """Parameters with a name of their own, as one value."""

    metavar: ClassVar[str] = "JSON"
    of: Section

    def check(self, name: str, value: Any) -> Mapping[str, Any]:
        return self.of.check(value)


@dataclass(frozen=True, slots=True)
class Failure:
    """An error that an operation has and others have not: its name, and what it says."""

    error: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Operation(Section):
    """One public operation.

    ``sentence``: what it does, and ``more``: what else its callers know.  ``result``: None if there is none.
    ``method`` and ``path``: of HTTP, empty if HTTP does not have it.  ``repeatable``: whether a call of which nobody
    knows whether it happened may be repeated as it is.  ``on``: what it is asked of.  ``has_item``: whether it
    carries the content of an item, which each face writes in its own way.  ``command``: its words on the command line,
    empty if there is none.  ``subject``: under what it is listed.
    """

    result: Record | None = None
    method: str = ""
    path: str = ""
    repeatable: bool = True
    more: str = ""
    on: Literal["queue", "claim", "namespace"] = "queue"
    failures: tuple[Failure, ...] = ()
    has_item: bool = False
    command: str = ""
    subject: str = ""

    @property
    def places(self) -> tuple[str, ...]:
        """Names in its path for which values stand."""
        return tuple(re.findall(r"\{(\w+)\}", self.path))
