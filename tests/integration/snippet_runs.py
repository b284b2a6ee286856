"""Which snippet of README and docs is run by which test."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.snippets import pointed, snippet
from zkrq import local

ELSEWHERE = {
    ("README.md", "# jobs.py"): "test_documentation.py",
    ("migrating.md", "# arq"): "a program of arq",
    ("security.md", "files = zkrq.TLS("): "tests/security/test_tls.py",
    ("applications.md", "from contextlib"): "tests/frameworks/test_frameworks_page.py",
    ("applications.md", "import asyncio"): "tests/frameworks/test_frameworks_page.py",
    ("applications.md", "# shop/"): "tests/frameworks/test_frameworks_page.py",
    ("outbox.md", "from zkrq.outbox.django import push"): "tests/outbox/by_django.py",
    ("applications.md", "from unittest.mock"): "tests/frameworks/test_frameworks_page.py",
    ("applications.md", "pytest_plugins"): "tests/unit/test_plugin.py",
    ("applications.md", "@pytest.mark.anyio"): "tests/unit/test_plugin.py",
}
"""Snippets that do not run here, by page and first line, and where they do."""

HERE: dict[tuple[str, str], Callable[..., Awaitable[None]]] = {}

Test = Callable[..., Awaitable[None]]


def runs(page: str, opening: str) -> Callable[[Test], Test]:
    """Give a test the snippet of this page that begins so."""

    def decorate(test: Test) -> Test:
        HERE[page, opening] = test
        return pytest.mark.parametrize("code", [pytest.param(snippet(page, opening), id=page)])(test)

    return decorate


def on(servers: local.Servers, namespace: str, code: str) -> str:
    return pointed(code, list(servers.redis_urls.values()), servers.zookeeper_hosts, namespace)
