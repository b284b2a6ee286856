"""Hold the view for a client that only looks, such as a command that shows figures: it never changes the view.

A client that meets a dead server evicts it and goes on with the others.  If a command that only shows something did so,
looking at a namespace would change it.  So such a client *overlooks* the server instead: for a while it reads from the
other members, as if the server had left, and names it.  Any member will do for reading, because each has all records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from zkrq.protocol.view import Life, ServerId, View
from zkrq.replication.membership import Membership

if TYPE_CHECKING:
    from zkrq.protocol.steps import Answers

OVERLOOK_SECONDS = 10.0
"""Seconds for which a client that only looks reads from other servers, after a server has failed it."""


class _Failed(NamedTuple):
    """Why a life of a server is not asked, and until when, by the event loop's clock."""

    life: Life
    reason: str
    until: float


class Looking(Membership):
    """Follow the view, and overlook the servers that do not answer."""

    only_looks = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Arguments are those of ``Membership``."""
        super().__init__(*arguments, **options)
        self._failed = dict[ServerId, _Failed]()

    def overlook(self, failed: Answers) -> None:
        """Read from other servers than these for ``OVERLOOK_SECONDS``."""
        until = asyncio.get_running_loop().time() + OVERLOOK_SECONDS
        receivers = self.view.receivers
        self._failed |= {
            id: _Failed(receivers[id], answer.reason, until) for id, answer in failed.items() if id in receivers
        }

    @property
    def overlooked(self) -> Mapping[ServerId, str]:
        now, receivers = asyncio.get_running_loop().time(), self.view.receivers
        failed = self._failed.items()
        return {id: each.reason for id, each in failed if now < each.until and receivers.get(id) == each.life}

    def seen(self, view: View) -> View:
        overlooked = self.overlooked
        members = {id: life for id, life in view.members.items() if id not in overlooked}
        return replace(view, members=members) if members and len(members) < len(view.members) else view
