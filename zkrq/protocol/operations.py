"""Combine all operations that clients run on a queue."""

from __future__ import annotations

from zkrq.protocol.fencing import Fencing
from zkrq.protocol.flows import Flowing
from zkrq.protocol.forgetting import Forgetting
from zkrq.protocol.pushing import Pushing


class Operations(Pushing, Fencing, Forgetting, Flowing):
    """Push, decide, fence, forget, end flows and read, as generators; see ``steps.py``."""


OPERATIONS = Operations()
