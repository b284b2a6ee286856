"""Read lines from stdin without blocking the event loop."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator

READ_BYTES = 1 << 16
"""Bytes that one read takes from stdin; the lines in them are yielded together."""


async def stdin_lines() -> AsyncGenerator[list[bytes], None]:
    """Yield the lines of stdin, grouped by read."""
    rest = b""
    while True:
        await _until_readable(sys.stdin.fileno())
        data = os.read(sys.stdin.fileno(), READ_BYTES)
        *lines, rest = (rest + data).split(b"\n")
        if not data:
            yield [rest]
            return
        yield lines


async def _until_readable(fd: int) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.add_reader(fd, ready.set)
    except PermissionError:
        return  # a file never blocks
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)
