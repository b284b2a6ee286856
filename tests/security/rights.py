"""The rights of a Redis user, as docs/security.md gives them to copy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.harness import command
from zkrq import local

PAGE = Path(__file__).parents[2] / "docs" / "security.md"

WRITTEN: dict[str, Any] = {"user": "shop", "password": "a-long-random-password", "namespace": "shop"}
"""What a reader of the page replaces."""


def rule(user: str, password: str, namespace: str, *, strict: bool = False) -> list[str]:
    """The words after ``ACL SETUSER``, for another user, password and namespace.

    ``strict``: of the line for servers whose users do not trust each other.
    """
    loose, stricter = re.findall(r"^ {4}ACL SETUSER (\w+ reset (?:.+\\\n)*.+)$", PAGE.read_text(), re.MULTILINE)
    words: list[str] = (stricter if strict else loose).replace("\\\n", " ").split()
    assert words[0] == WRITTEN["user"]
    changed = {
        f">{WRITTEN['password']}": f">{password}",
        f"~{{{WRITTEN['namespace']}}}:*": f"~{{{namespace}}}:*",
        f"&{{{WRITTEN['namespace']}}}:wake:*": f"&{{{namespace}}}:wake:*",
        f"&{{{WRITTEN['namespace']}}}:topic:*": f"&{{{namespace}}}:topic:*",
    }
    assert changed.keys() <= set(words)
    return [user, *(changed.get(word, word) for word in words[1:])]


def commands() -> set[str]:
    """Names of the commands that the page allows."""
    return {word[1:] for word in rule(**WRITTEN) if word.startswith("+")}


async def each(servers: local.Servers, *words: str) -> None:
    """Give a command to every server."""
    for server in servers.redis:
        reply = await command(server, *words)
        assert not reply.startswith(b"-"), reply
