"""Names of hosts that hang or go, and a default executor that handlers have filled."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from tests.harness import HANG
from zkrq.base import network

_ask = socket.getaddrinfo


class Resolver:
    """In place of the host's: names under ``.test`` are this host, unless it hangs or has lost them."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.gone: set[str] = set()
        self.answers = threading.Event()
        self.answers.set()

    def __call__(self, host: str, *arguments: Any, flags: int = 0, **options: Any) -> Any:
        if not host.endswith(".test") or flags & socket.AI_NUMERICHOST:
            return _ask(host, *arguments, flags=flags, **options)
        self.asked.append(host)
        self.answers.wait(HANG)
        if host in self.gone:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return _ask("127.0.0.1", *arguments, **options)


@contextmanager
def resolving() -> Generator[Resolver]:
    """A resolver in place of the host's; no name was resolved before."""
    made = Resolver()
    with patch.object(socket, "getaddrinfo", made), patch.object(network, "_names", network._Names()):  # pyright: ignore[reportPrivateUsage]
        try:
            yield made
        finally:
            made.answers.set()


@contextmanager
def full_executor() -> Generator[None]:
    """The running loop's default executor has no thread left, as where handlers call ``asyncio.to_thread``."""
    may_end, loop = threading.Event(), asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as executor:
        loop.set_default_executor(executor)
        executor.submit(may_end.wait, HANG)
        try:
            yield
        finally:
            may_end.set()
    loop.set_default_executor(ThreadPoolExecutor(thread_name_prefix="asyncio"))
