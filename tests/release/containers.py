"""The image's file as builders read it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Containerfile").read_text()
INSTRUCTIONS = [
    (words[0], words[1].strip())
    for words in re.findall(r"^([A-Z]+) ((?:.*\\\n)*.*)$", re.sub(r"^ *#.*\n", "", TEXT, flags=re.M), re.MULTILINE)
]


def instructions(name: str) -> list[str]:
    return [text for kind, text in INSTRUCTIONS if kind == name]


def environment() -> dict[str, str]:
    return dict(re.findall(r"(\w+)=(\S+)", " ".join(instructions("ENV"))))
