"""Bodies that are refused cost little, and say what is wrong in a few words."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from tests.every import every
from zkrq.operations.operation import Arguments
from zkrq.operations.push import PUSH
from zkrq.operations.table import OPERATIONS
from zkrq.serve.bodies import UNKNOWN_NAMED, Body, body_of

WITH_BODIES = [each for each in OPERATIONS.values() if each.method != "GET"]
SECTIONS = [kind.of for each in WITH_BODIES for one in each.parameters if isinstance(kind := one.kind, Arguments)]
MODELS: list[type[Body]] = list(map(body_of, [*WITH_BODIES, *SECTIONS]))
REQUESTS: dict[str, type[BaseModel]] = {model.__name__: model for model in MODELS}


def errors_of(model: type[BaseModel], body: dict[str, Any]) -> list[str]:
    with pytest.raises(ValidationError) as error:
        model.model_validate(body)
    return [each["msg"] for each in error.value.errors()]


@every("name", sorted(REQUESTS))
def test_many_unknown_fields_are_one_error(name: str) -> None:
    """Of each pydantic makes an error, with what was given: seconds, and hundreds of megabytes."""
    (message,) = errors_of(REQUESTS[name], {f"f{number}": number for number in range(1_000)})
    assert message.startswith("there is no field 'f0', 'f1'")
    assert message.count("'f") == UNKNOWN_NAMED
    assert len(errors_of(REQUESTS[name], {"x" * 100_000: 1})[0]) < 200


@every("headers", [5, True, "x", [1], [["a", "b"]]])
def test_headers_that_are_no_object_are_an_error_of_the_request(headers: object) -> None:
    (message,) = errors_of(body_of(PUSH), {"item": 1, "headers": headers})
    assert "dictionary" in message


def test_many_headers_are_one_error() -> None:
    (message,) = errors_of(body_of(PUSH), {"item": 1, "headers": {str(number): number for number in range(10_000)}})
    assert "too many" in message
