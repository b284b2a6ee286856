"""Ask one ZooKeeper server for its state, without a session: whether it takes part in a quorum, and as what."""

from __future__ import annotations

import asyncio
import ssl
from typing import NamedTuple

from zkrq.base import clock
from zkrq.base.handshakes import NO_ROOM, hangs_up, is_end
from zkrq.base.network import open_connection
from zkrq.coordination.zookeeper.hosts import Address, parse

QUESTION = b"srvr"
"""The one command that ZooKeeper allows without being told to (``4lw.commands.whitelist``)."""

MAX_REPLY = 1 << 16
"""Bytes of a reply."""


class HostReport(NamedTuple):
    """One server of the ensemble.

    ``mode``: leader, follower, observer or standalone, empty if it does not serve or does not say.  ``reason``: why it
    cannot be used, empty if it can.  ``is_crowded``: whether that is because it has no room for this client.
    ``round_trip``: seconds.
    """

    host: str
    mode: str = ""
    version: str = ""
    reason: str = ""
    round_trip: float = 0.0
    is_crowded: bool = False


async def ask_hosts(hosts: str, context: ssl.SSLContext | None, timeout: float) -> list[HostReport]:
    """Ask all servers of an ensemble at the same time, each for at most ``timeout`` seconds."""
    return await asyncio.gather(*(_ask(address, context, timeout) for address in parse(hosts).servers))


async def _ask(address: Address, context: ssl.SSLContext | None, timeout: float) -> HostReport:
    began = clock.now_us()
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await open_connection(address.host, address.port, context, name_seconds=timeout / 2)
            try:
                writer.write(QUESTION)
                reply = await reader.read(MAX_REPLY)
            finally:
                writer.close()
    except TimeoutError:
        return HostReport(str(address), reason=f"no answer within {timeout:g} s")
    except OSError as error:
        if is_end(error) and await hangs_up(address.host, address.port):
            return HostReport(str(address), reason=NO_ROOM, is_crowded=True)
        return HostReport(str(address), reason=str(error) or type(error).__name__)
    if not reply and await hangs_up(address.host, address.port):
        return HostReport(str(address), reason=NO_ROOM, is_crowded=True)
    return _read(str(address), reply.decode(errors="replace"), (clock.now_us() - began) / 1e6)


def _read(host: str, reply: str, round_trip: float) -> HostReport:
    lines = reply.splitlines()
    mode = next((line.removeprefix("Mode: ") for line in lines if line.startswith("Mode: ")), "")
    version = next((line.partition(": ")[2].partition("-")[0] for line in lines if line.startswith("Zookeeper")), "")
    if not mode and "not currently serving" in reply:
        return HostReport(host, reason="it serves nobody: it is in no quorum", round_trip=round_trip)
    return HostReport(host, mode, version, round_trip=round_trip)  # without a mode it may forbid the question
