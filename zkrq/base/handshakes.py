"""Find out why a server ended a connection before it answered anything: TLS on one side only, or a refused certificate.

Over TLS 1.3 a server refuses a client's certificate only after the handshake, when the client may have sent its first
request.  Then the connection is reset, and the alert that has the reason is often lost.  So the client connects once
more, sends nothing, and reads.
"""

from __future__ import annotations

import asyncio
import ssl

from zkrq.base.network import open_connection

SECONDS = 0.5
"""Seconds that one of these questions may take."""

NO_ROOM = "it ends every connection from here without a word, as a server does that has too many of them"
"""Why a server that hangs up cannot be used."""


async def speaks_tls(host: str, port: int) -> bool:
    """Ask whether a server answers a TLS handshake.  Nothing is sent to it, so its certificate does not matter."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(SECONDS):
            _, writer = await open_connection(host, port, context)
    except ssl.SSLError as error:
        return is_alert(error)
    except (OSError, TimeoutError):
        return False
    writer.transport.abort()
    return True


async def speaks_plainly(host: str, port: int, question: bytes) -> bool:
    """Ask whether a server answers this question without TLS, by a text.  No credentials are sent."""
    try:
        async with asyncio.timeout(SECONDS):
            reader, writer = await open_connection(host, port)
            try:
                writer.write(question)
                first = await reader.read(1)
                return first.isascii() and first.decode().isprintable() and bool(first)  # an alert begins with 0x15
            finally:
                writer.transport.abort()
    except (OSError, TimeoutError):
        return False


async def hangs_up(host: str, port: int) -> bool:
    """Ask whether a server ends a connection on which nothing was sent, as one without room for it does."""
    try:
        async with asyncio.timeout(SECONDS):
            reader, writer = await open_connection(host, port)
            try:
                return not await reader.read(1)
            finally:
                writer.transport.abort()
    except TimeoutError:
        return False
    except OSError as error:
        return is_end(error)


async def read_alert(host: str, port: int, context: ssl.SSLContext) -> ssl.SSLError | None:
    """Return the alert by which a server refuses this client's certificate, None if there is none."""
    try:
        async with asyncio.timeout(SECONDS):
            reader, writer = await open_connection(host, port, context)
            try:
                await reader.read(1)
            finally:
                writer.transport.abort()
    except ssl.SSLError as error:
        return error if is_alert(error) else None
    except (OSError, TimeoutError):
        return None
    return None


def is_end(error: OSError) -> bool:
    """Tell whether the other side ended the connection, without a word about the reason."""
    return isinstance(error, ConnectionResetError | ConnectionAbortedError | BrokenPipeError | ssl.SSLEOFError)


def is_alert(error: ssl.SSLError) -> bool:
    """Tell whether the server itself refused, in TLS's own words."""
    return "ALERT" in (error.reason or "")
