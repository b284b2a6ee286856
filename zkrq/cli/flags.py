"""Describe flags, and make those that are parameters of an operation."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from zkrq.operations import kinds
from zkrq.operations.operation import Operation, Parameter, Section, Wording

QUEUE = {"queue": "the queue's name"}
"""The argument of a command about one queue."""


class Flag(NamedTuple):
    """Describe ``--name``; it takes no value if the type is bool.

    Its environment variable is ``ZKRQ_COMMAND_NAME``.  A ``setting`` of ``connect()`` has the variable ``ZKRQ_NAME``,
    which ``connect()`` reads if the flag is not given.  ``absent``: what holds without it, where the default does not
    say it.  ``merges``: the flag may be given several times, and its values, which are mappings, become one.
    """

    name: str
    help: str
    type: Callable[[str], object] = str
    default: object = None
    metavar: str | None = None
    setting: bool = False
    absent: str = ""
    merges: bool = False


def attribute(flag: str) -> str:
    """Return the attribute of the parsed arguments that holds a flag's value."""
    return flag.replace("-", "_")


@dataclass(frozen=True, slots=True)
class AsFlags(Wording):
    """Write parameters as flags.  ``called``: those whose flag has a name of its own."""

    called: Mapping[str, str] = field(default_factory=dict[str, str])

    def name(self, name: str) -> str:
        return f"--{self.called.get(name, name).replace('_', '-')}"

    def given(self, name: str, value: Any) -> str:
        return self.name(name) if value is True else f"{self.name(name)} {value}"


@dataclass(frozen=True, slots=True)
class Takes:
    """The parameters of an operation that a command has: as flags, those that are required as arguments.

    ``without``: those that it does not have, and why.  ``called``: flags with a name of their own.  ``changed``:
    parameters in place of those of the table, where the command takes more, or has another default.
    """

    operation: Operation
    without: Mapping[str, str] = field(default_factory=dict[str, str])
    called: Mapping[str, str] = field(default_factory=dict[str, str])
    changed: tuple[Parameter, ...] = ()
    arguments: Mapping[str, str] = field(init=False)
    section: Section = field(init=False)
    wording: Wording = field(init=False)
    flags: tuple[Flag, ...] = field(init=False)

    def __post_init__(self) -> None:
        changed = {each.name: each for each in self.changed}
        taken = [changed.get(each.name, each) for each in self.operation.without(self.without)]
        parameters = tuple(each for each in taken if not each.required)
        # Each text of a parameter that has several is a flag.
        one_each = {each.name: each.name.removesuffix("s") for each in parameters if isinstance(each.kind, kinds.Texts)}
        wording = AsFlags({**one_each, **self.called})
        object.__setattr__(self, "section", Section(self.operation.name, "", parameters, self.operation.rules))
        object.__setattr__(self, "wording", wording)
        required = {each.name: usage(each.sentence) for each in taken if each.required}
        object.__setattr__(self, "arguments", {**(QUEUE if self.operation.on == "queue" else {}), **required})
        object.__setattr__(self, "flags", tuple(flag_of(each, wording, self.section.by_name) for each in parameters))

    def read(self, args: Namespace) -> dict[str, Any]:
        """Return what was given and says more than its absence, checked.  Raises ``ConfigError``, which names flags."""
        names = zip(self.section.by_name, self.flags, strict=True)
        given = {name: getattr(args, attribute(flag.name)) for name, flag in names}
        return self.section.check({name: value for name, value in given.items() if value is not None}, self.wording)


def flag_of(parameter: Parameter, wording: Wording = AsFlags(), names: Collection[str] = ()) -> Flag:
    """Return the flag of a parameter.  ``names``: of the parameters that are flags of the same command."""
    kind = parameter.kind
    return Flag(
        wording.name(parameter.name).removeprefix("--"),
        usage(parameter.sentence, wording, names) + _bounds(parameter),
        bool if isinstance(kind, kinds.Flag) else reader(kind),
        parameter.default,
        parameter.metavar or kind.metavar,
        absent=parameter.absent,
        merges=isinstance(kind, kinds.Texts),
    )


BOUND_SHOWN = 1_000_000
"""Greatest bound that usage texts name."""


def _bounds(parameter: Parameter) -> str:
    """Say which values a parameter takes, where its sentence does not."""
    match parameter.kind:
        case kinds.Choice(words=words) if not all(word in parameter.sentence for word in words):
            return f": {', '.join(words[:-1])} or {words[-1]}"
        case kinds.Count(most=int(most)) if str(most) not in parameter.sentence and most <= BOUND_SHOWN:
            return f"; up to {most:,}"
        case _:
            return ""


def usage(sentence: str, wording: Wording = AsFlags(), names: Collection[str] = ()) -> str:
    """Return a sentence as the usage of a command has it: not as a sentence, and with flags in place of parameters."""
    text = re.sub(r"`([^`]+)`", lambda word: wording.name(word[1]) if word[1] in names else word[1], sentence)
    text = text.removesuffix(".")
    return text if text[1:2].isupper() else text[0].lower() + text[1:]


def reader(kind: kinds.Kind[Any], also: str = "") -> Callable[[str], Any]:
    """Return the function that reads a word of the command line as a value of this kind; ``also``: a word for none."""

    def read(text: str) -> Any:
        try:
            return text if also and text == also else kind.parse(text)
        except ValueError as error:
            raise ArgumentTypeError(f"{text!r:.100} {error}{also and f', or {also}'}") from error

    return read


_SECONDS = kinds.Seconds()


def duration(name: str, help: str, default: float | None = None, *, setting: bool = False) -> Flag:
    """Return a flag for a duration in seconds that is no parameter of an operation."""
    return Flag(name, help, reader(_SECONDS), default, _SECONDS.metavar, setting)
