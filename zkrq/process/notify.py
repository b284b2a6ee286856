"""Tell the service manager about this process, by systemd's protocol: ``sd_notify``."""

from __future__ import annotations

import logging
import os
import socket

NOTIFY_SOCKET = "NOTIFY_SOCKET"
READY, STOPPING = "READY=1", "STOPPING=1"

_log = logging.getLogger("zkrq")


def notify(state: str) -> None:
    """Send a state to the socket that ``NOTIFY_SOCKET`` names; do nothing without one.  Never waits, never raises."""
    path = os.environ.get(NOTIFY_SOCKET)
    if not path:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(state.encode(), f"\0{path[1:]}" if path.startswith("@") else path)
    except OSError as error:
        _log.warning("%s could not be sent to NOTIFY_SOCKET %s: %s", state, path, error)
