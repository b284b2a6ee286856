"""The typed calls of the scripts, by name, and made-up values for their fields."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from zkrq.protocol import calls
from zkrq.protocol.calls import Call

CALLS: dict[str, type[Call[Any]]] = {
    each.script: each
    for each in vars(calls).values()
    if isinstance(each, type) and issubclass(each, Call) and "script" in each.__dict__
}


def sentinels(call: type[Call[Any]]) -> dict[str, Any]:
    """Another value for every field."""
    return {field.name: f"the {field.name}" for field in fields(call) if field.name != "items"}  # pyright: ignore
