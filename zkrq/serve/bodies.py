"""Make what bodies of requests and replies consist of from the table of operations.

pydantic reads the types of JSON, and OpenAPI describes what is made here; values and what contradicts between them are
checked by the table, as in every other face, before anything is done.  Items are JSON, as ``zkrq.JSON`` writes them
for Python programs, or bytes in base64.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from functools import cache, partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NoReturn, Self, cast

from fastapi import Path, Query
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ValidationError,
    WithJsonSchema,
    create_model,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError

from zkrq.base import clock
from zkrq.base.checks import MAX_HEADERS
from zkrq.base.codecs import JSON
from zkrq.base.errors import CodecError
from zkrq.operations import kinds
from zkrq.operations.claims import CLAIMED
from zkrq.operations.items import ITEM, RESULT_OF_ITEM
from zkrq.operations.operation import Arguments, Operation, Parameter, Record, Section
from zkrq.operations.push import RECEIPT
from zkrq.operations.schedules import CRON_MAX, MIN_PERIOD, When
from zkrq.operations.table import PLACES
from zkrq.serve.problems import Happened

if TYPE_CHECKING:
    from zkrq.base.results import Result
    from zkrq.client.items import FoundPage, Item
    from zkrq.consuming.claims import Claim

UNKNOWN_NAMED = 5
"""Unknown fields that an error names."""

CALLED = {"claim": "ClaimItems", "progress": "ReportProgress"}
"""Names of bodies that are not those of their calls."""

_TYPES: Mapping[type[kinds.Kind[Any]], Any] = {
    kinds.Text: str,
    kinds.Seconds: float,
    kinds.Number: float,
    kinds.Count: int,
    kinds.Flag: bool,
    kinds.Moment: datetime,
    kinds.Past: datetime,
    kinds.Texts: dict[str, str],
    kinds.Choice: str,
    kinds.Header: str,
    kinds.Value: Any,
    When: float | str,
}
"""The types of JSON for kinds of values that consist of no others."""


# -- schemas of values -------------------------------------------------------------------------------------------------


def schema_of(kind: kinds.Kind[Any]) -> dict[str, Any] | None:
    """Return the schema of a kind whose values have bounds that a type does not tell."""
    match kind:
        case kinds.Text(most=most, least=least, pattern=pattern):
            return _schema("string", minLength=least or None, maxLength=most, pattern=pattern)
        case kinds.Header():
            return _schema("string", pattern="=", maxLength=MAX_HEADERS)
        case kinds.Choice(words=words):
            return _schema("string", enum=list(words))
        case kinds.Seconds(positive=True, most=most):
            return _schema("number", exclusiveMinimum=0, maximum=most)
        case kinds.Seconds(least=least, most=most) | kinds.Number(least=least, most=most):
            return _schema("number", minimum=_finite(least), maximum=_finite(most))
        case kinds.Count(least=least, most=most):
            return _schema("integer", minimum=least, maximum=most)
        case kinds.Moment():
            return _schema("string", format="date-time")
        case When():
            return {"anyOf": [_schema("number", minimum=MIN_PERIOD), _schema("string", maxLength=CRON_MAX)]}
        case _:
            return None


def _schema(type: str, **bounds: Any) -> dict[str, Any]:
    return {"type": type, **{name: bound for name, bound in bounds.items() if bound is not None}}


def _finite(bound: float) -> float | None:
    return bound if math.isfinite(bound) else None


def _bounded(type: Any, kind: kinds.Kind[Any]) -> Any:
    schema = schema_of(kind)
    return type if schema is None else Annotated[type, WithJsonSchema(schema)]


def _check(name: str, kind: kinds.Kind[Any]) -> AfterValidator:
    """Make the table's check one of the model; its ``ConfigError`` is a ``ValueError``."""
    return AfterValidator(partial(kind.check, name))


def _type_in_request(name: str, kind: kinds.Kind[Any]) -> Any:
    """Return the type of a field of a body."""
    match kind:
        case kinds.Many():

            def check_number(value: Any) -> Any:
                """Refuse too many values before any is looked at."""
                if isinstance(value, list):
                    kind.check_number(name, len(cast("list[Any]", value)))
                return cast("Any", value)

            bounds = {"minItems": kind.least or None, "maxItems": kind.most}
            extra: Any = Field(json_schema_extra={name: bound for name, bound in bounds.items() if bound is not None})
            return Annotated[list[_type_in_request(name, kind.each)], BeforeValidator(check_number), extra]
        case Arguments(of=section):
            return body_of(section)
        case kinds.ByName(each=each, nullable=nullable):
            of = _type_in_request(name, each)
            return dict[str, of | None if nullable else of]
        case kinds.Moment():
            return Annotated[_bounded(datetime, kind), BeforeValidator(kind.read), _check(name, kind)]
        case kinds.Header():
            return Annotated[_bounded(str, kind), AfterValidator(kind.read), _check(name, kind)]
        case _:
            return Annotated[_bounded(_TYPES[type(kind)], kind), _check(name, kind)]


def _type_in_reply(kind: kinds.Kind[Any]) -> Any:
    """Return the type of a field of a reply, whose bounds nobody has to know."""
    match kind:
        case Record():
            return reply_of(kind)
        case kinds.Many(each=each):
            return list[_type_in_reply(each)]
        case kinds.ByName(each=each):
            return dict[str, _type_in_reply(each)]
        case kinds.Pair(each=each):
            return tuple[_type_in_reply(each), _type_in_reply(each)]
        case kinds.Choice():
            return _bounded(str, kind)
        case _:
            return _TYPES[type(kind)]


def _type_in_url(parameter: Parameter) -> Any:
    """Return the type of a parameter that a path or a query has as a text."""
    kind, name = parameter.kind, parameter.name

    is_text = isinstance(kind, kinds.Header | kinds.Moment)
    type_of = _bounded(str if is_text else _TYPES[type(kind)], kind)
    return Annotated[type_of, AfterValidator(kind.read), _check(name, kind)]


def in_path(parameter: Parameter) -> Any:
    """Return the annotation of a parameter that a path has."""
    return Annotated[_type_in_url(parameter), Path(description=parameter.sentence)]


def in_query(parameter: Parameter) -> Any:
    """Return the annotation of a parameter that a query has."""
    of = _type_in_url(parameter)
    examples = None if parameter.example is None else [parameter.example]
    query: Any = Query(description=parameter.help, examples=examples)
    return Annotated[of if parameter.default is not None else of | None, query]


QueueName = Annotated[
    str,
    AfterValidator(lambda name: PLACES["queue"].kind.check("queue", name)),
    WithJsonSchema(schema_of(PLACES["queue"].kind)),
    Path(description=PLACES["queue"].sentence),
]


# -- requests ----------------------------------------------------------------------------------------------------------


class Body(BaseModel):
    """A body of a request: nothing is converted, and a field that does not exist is an error."""

    model_config = ConfigDict(strict=True, extra="forbid")

    section: ClassVar[Section] = Section("", "")
    nested: ClassVar[frozenset[str]] = frozenset()
    """Parameters that are bodies, or lists of them."""

    @model_validator(mode="before")
    @classmethod
    def _check_fields(cls, given: object) -> object:
        """Refuse unknown fields with one error: pydantic makes an error of each, and 300,000 took seconds."""
        if isinstance(given, dict):
            fields = cast("dict[str, Any]", given)
            if unknown := list(islice((name for name in fields if name not in cls.model_fields), UNKNOWN_NAMED + 1)):
                names = ", ".join(f"{name!r:.50}" for name in unknown[:UNKNOWN_NAMED])
                more = ", ..." * (len(unknown) > UNKNOWN_NAMED)
                text = PydanticCustomError("extra_forbidden", "there is no field {names}", {"names": names + more})
                wrong = InitErrorDetails(type=text, loc=(unknown[0][:50],), input=None)
                raise ValidationError.from_exception_data(cls.__name__, [wrong])
            headers: object = fields.get("headers")
            if isinstance(headers, dict) and len(cast("dict[str, Any]", headers)) > MAX_HEADERS:
                raise ValueError(f"headers have at most {MAX_HEADERS} bytes, so there are too many")
        return cast("object", given)

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Check what contradicts; each value is checked by itself, so that its error has its place."""
        if self.section.rules:
            self.section.check_rules(self.given())
        return self

    def given(self) -> dict[str, Any]:
        """Return the parameters that say more than their absence."""
        values, defaults = self.__dict__, self.section.defaults
        given: dict[str, Any] = {}
        for name in self.model_fields_set:
            if name not in defaults:
                continue
            value = values[name]
            if name in self.nested and isinstance(value, dict):
                named = cast("dict[str, Body | None]", value)
                given[name] = {key: each and each.given() for key, each in named.items()}
            elif name in self.nested and value is not None and not isinstance(value, list):
                given[name] = value.given()
            elif value != defaults[name] or (value is None and self.section.by_name[name].null):
                given[name] = value
        return given

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Leave defaults out of the schema: from a field with one, some generators make one that is always sent."""
        described = handler(schema)
        for field in handler.resolve_ref_schema(described).get("properties", {}).values():
            field.pop("default", None)
        return described


class Payload(Body):
    """An item: `item` or `base64`."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["item"]}, {"required": ["base64"]}]})

    item: Any = Field(None, description="The item, any JSON value; workers in Python get it decoded.")
    base64: str | None = Field(None, description="Instead of `item`: bytes in base64, stored as they are.")

    @model_validator(mode="after")
    def _check_payload(self) -> Self:
        if ("item" in self.model_fields_set) == (self.base64 is not None):
            raise ValueError("exactly one of item and base64 is expected")
        return self

    def payload(self) -> bytes:
        """Return the item as it is stored.  Raises ``CodecError``."""
        try:
            if self.base64 is not None:
                return b64decode(self.base64, validate=True)
            return JSON.encode(self.item)
        except ValueError as error:
            form = "base64" if self.base64 is not None else "JSON"
            raise CodecError(f"the item is not {form}: {error}; nothing was written") from error


@cache
def body_of(section: Section) -> type[Body]:
    """Return the model of parameters as a body; those that the path of an operation names are left out."""
    has_item = isinstance(section, Operation) and section.has_item
    places = section.places if isinstance(section, Operation) else ()
    base: type[Body] = Payload if has_item else Body
    name = CALLED.get(section.name, "".join(word[0].upper() + word[1:] for word in section.name.split("_")))
    fields: dict[str, Any] = dict(_fields_of(section.without(places)))
    model = create_model(name, __base__=base, __doc__=section.sentence, __module__=__name__, **fields)
    model.section = section
    model.nested = frozenset(each.name for each in section.parameters if _is_nested(each.kind))
    return model


def _is_nested(kind: kinds.Kind[Any]) -> bool:
    return isinstance(kind.each if isinstance(kind, kinds.Many | kinds.ByName) else kind, Arguments)


def _fields_of(parameters: tuple[Parameter, ...]) -> Iterator[tuple[str, Any]]:
    for each in parameters:
        of = _type_in_request(each.name, each.kind)
        if (each.null or (each.default is None and not each.required)) and not isinstance(each.kind, kinds.Value):
            of = of | None
        described: dict[str, Any] = {"description": each.help}
        if each.example is not None:
            described["examples"] = [each.example]
        yield each.name, (of, Field(**described) if each.required else Field(None, **described))


# -- replies -----------------------------------------------------------------------------------------------------------


@cache
def reply_of(record: Record) -> type[BaseModel]:
    """Return the model of a result as a reply."""
    fields: dict[str, Any] = {}
    for each in record.fields:
        if isinstance(each.kind, kinds.Content):
            fields[each.name] = Any, Field(None, description=f"{each.sentence} Left out if its bytes are not JSON.")
            fields["base64"] = str | None, Field(None, description="Otherwise: its bytes in base64.")
            continue
        of = _type_in_reply(each.kind)
        described: dict[str, Any] = {"description": each.sentence} if each.sentence else {}
        field: Any = Field(None, **described) if each.optional else Field(**described)
        fields[each.name] = of | None if each.nullable else of, field
    return create_model(record.name, __doc__=record.sentence, __module__=__name__, **fields)


class Problem(BaseModel):
    """What went wrong."""

    error: str = Field(description="The kind of error.")
    happened: Happened = Field(description="Whether anything may have been done.")
    next: str = Field(description="What the client does now, for people.")
    message: str
    ids: list[str] = Field([], description="Of items that may or may not have been pushed: push under these ids.")
    if TYPE_CHECKING:
        outcomes: list[Any]
    else:
        outcomes: list[reply_of(RECEIPT) | Problem] = Field(
            [], description="Of a push of many: what became of each item, in order."
        )


def claimed(token: str, claim: Claim[bytes], seconds: float) -> str:
    """Write one claim as JSON, under its name and for the seconds of its client's lease.

    An item that is JSON is put in as it was pushed, since reading and writing could change numbers.
    """
    deadline = clock.now() + timedelta(seconds=seconds)
    held = {"claim": token, "lease": seconds, "deadline": deadline.isoformat()}
    return with_item(CLAIMED.tell(claim) | held, claim.item)


def stored(item: Item[bytes]) -> str:
    """Write what is known of an item as JSON."""
    return with_item(ITEM.tell(item), item.payload)


def told(result: Result[bytes]) -> str:
    """Write what became of an item as JSON."""
    known = RESULT_OF_ITEM.tell(result)
    return json.dumps(known) if result.value is None else with_item(known, result.value, "result")


def found(page: FoundPage[bytes]) -> str:
    """Write a page of items as JSON."""
    head = json.dumps({"next": page.next, "restarted": page.restarted})
    return f'{head[:-1]}, "items": [{", ".join(map(stored, page.items))}]}}'


def with_item(told: dict[str, Any], payload: bytes, name: str = "item") -> str:
    """Write what is told as JSON, with an item: as it was pushed if it is JSON, else as ``base64``."""
    text = _as_json(payload)
    if text is None:
        told["base64"] = b64encode(payload).decode()
    head = json.dumps(told)
    return head if text is None else f'{head[:-1]}, "{name}": {text}}}'


def _as_json(payload: bytes) -> str | None:
    """Return the text of a payload if it is JSON, as the standard defines it, otherwise None."""
    try:
        text = payload.decode()
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return text


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
