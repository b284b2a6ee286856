"""Render the page's templates: they escape whatever they are given, and know no value that is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from zkrq.client import texts
from zkrq.serve import actions, listing, navigation, payloads

HERE = Path(__file__).parent


def make_templates() -> Environment:
    """Return the templates."""
    templates = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    cast("dict[str, Any]", templates.globals).update(
        columns=listing.COLUMNS, standings=texts.STANDINGS, places=navigation.PLACES, pauses=actions.PAUSES
    )
    cast("dict[str, Any]", templates.filters).update(
        {
            "number": texts.show_number,
            "backlog": texts.show_backlog,
            "duration": texts.show_duration,
            "due": texts.show_due,
            "moment": texts.show_moment,
            "pause": texts.show_pause,
            "bytes": texts.show_bytes,
            "count": texts.show_count,
            "alarm": texts.show_alarm,
            "tone": texts.show_tone,
            "state": texts.show_state,
            "begin": payloads.begin,
            "write": payloads.write,
            "part": show_part,
        }
    )
    return templates


def show_part(text: str) -> str:
    """Write a text as a part of an address: also ``/`` and ``&`` in it."""
    return quote(text, safe="", errors="backslashreplace")
