"""Combine all operations that clients run on a queue."""

from __future__ import annotations

from zkrq.protocol.fencing import Fencing
from zkrq.protocol.forgetting import Forgetting
from zkrq.protocol.putting import Putting


class Operations(Putting, Fencing, Forgetting):
    """Push, decide, fence, forget and read, as generators; see ``steps.py``."""


OPERATIONS = Operations()
