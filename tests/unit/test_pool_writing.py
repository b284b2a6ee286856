"""Writing without waiting: what a connection does not take at once follows in order, and a closed end is told."""

from __future__ import annotations

import socket
from collections.abc import Generator

import anyio
import anyio.to_thread
import pytest

from tests.harness import HANG
from zkrq.pool.writing import Writer

pytestmark = pytest.mark.anyio

MUCH = bytes(range(256)) * 20_000


@pytest.fixture
def ends() -> Generator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        yield ours, theirs


def read_all(end: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += end.recv(1 << 16)
    return data


async def test_what_does_not_fit_follows_in_order(ends: tuple[socket.socket, socket.socket]) -> None:
    writer = Writer(ends[0])
    assert writer.send(MUCH)
    assert writer.is_behind
    assert writer.send(b"end")
    with anyio.fail_after(HANG):
        data = await anyio.to_thread.run_sync(read_all, ends[1], len(MUCH) + 3, abandon_on_cancel=True)
    assert data == MUCH + b"end"
    while writer.is_behind:
        await anyio.sleep(0)
    writer.detach()


async def test_a_closed_end_is_told_once_it_is_known(ends: tuple[socket.socket, socket.socket]) -> None:
    writer = Writer(ends[0])
    assert writer.send(b"a")
    ends[1].close()
    assert not writer.send(b"b")
    assert not writer.is_behind
    writer.detach()
