"""Bodies that are refused cost little, and say what is wrong in a few words."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from tests.every import every
from zkrq.serve import bodies, schedules
from zkrq.serve.bodies import UNKNOWN_NAMED, Push

REQUESTS: dict[str, type[BaseModel]] = {
    name: model
    for module in (bodies, schedules)
    for name, model in inspect.getmembers(module, inspect.isclass)
    if issubclass(model, BaseModel) and model.model_config.get("extra") == "forbid" and model.model_config.get("strict")
}


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


def test_many_headers_are_one_error() -> None:
    (message,) = errors_of(Push, {"item": 1, "headers": {str(number): number for number in range(10_000)}})
    assert "too many" in message
