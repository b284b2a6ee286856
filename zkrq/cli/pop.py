"""Define the command ``pop``: an item is acked after it was printed, and otherwise handed back."""

from __future__ import annotations

import asyncio
import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from zkrq.base.errors import ZkrqError
from zkrq.base.retry import Retry
from zkrq.cli.command import Command, Incomplete, Line, Lines, count, open_cluster
from zkrq.cli.flags import Takes
from zkrq.cli.forms import CODEC, Form, form_of, raw_queue
from zkrq.consuming.claims import Claim
from zkrq.operations.claims import CLAIM, CLAIMED
from zkrq.operations.kinds import Count, Seconds
from zkrq.process.exits import Exit

if TYPE_CHECKING:
    from zkrq.client.queue import Queue

POP_AT_ONCE = 100
"""Items claimed together, at most."""

UNREAD_MAX = 100
"""Items that could not be read after which no more are taken; they are held until the end, so none is met twice."""

_NO_LIMIT = Retry(max_attempts=None)


class _Hands:
    """Hold claims until each is printed, and then acked, or handed back."""

    def __init__(self, queue: Queue[bytes], form: Form) -> None:
        self._queue = queue
        self._form = form
        self._held = dict[Claim[bytes], None]()
        self._printed: list[Claim[bytes]] = []
        self.unread = 0
        self.lost = 0

    def take(self, claims: Sequence[Claim[bytes]]) -> None:
        self._held.update(dict.fromkeys(claims))

    def read(self, claim: Claim[bytes]) -> Line | None:
        """Return an item's line, None if it cannot be read."""
        try:
            return _line(claim, self._form)
        except (ValueError, TypeError) as error:
            self.unread += 1
            sys.stderr.write(f"zkrq pop: item {claim.id} is not {self._form.name}, it is handed back: {error}\n")
            return None

    def note_printed(self, claim: Claim[bytes]) -> None:
        del self._held[claim]
        self._printed.append(claim)

    async def ack(self) -> None:
        """Ack what was printed.  Raises ``Unavailable``, ``OutcomeUnknown``: it may be delivered again."""
        self.lost += len(await self._queue.ack_many(self._printed))
        self._printed.clear()

    async def empty(self) -> None:
        """Ack what was printed, and hand back everything else; neither is counted as an attempt."""
        try:
            await self.ack()
        finally:
            with suppress(ZkrqError):  # then closing the cluster hands it back
                await asyncio.gather(*(claim.release() for claim in self._held))


async def _pop(args: Namespace) -> Lines:
    deadline = asyncio.get_running_loop().time() + args.wait
    form = form_of(args.codec)
    async with open_cluster(args) as cluster:
        # Items that have failed often elsewhere are not buried here.
        queue, left = raw_queue(cluster, args.queue, retry=_NO_LIMIT), args.count
        hands = _Hands(queue, form)
        try:
            while left > 0 and hands.unread < UNREAD_MAX:
                wait = max(0.0, deadline - asyncio.get_running_loop().time())
                claims = await queue.pop_many(min(left, POP_AT_ONCE), timeout=wait)
                if not claims:
                    break
                hands.take(claims)
                for claim in claims:
                    line = hands.read(claim)
                    if line is not None:
                        yield line
                        hands.note_printed(claim)  # reached when the line is flushed
                        left -= 1
                await hands.ack()
        finally:
            await hands.empty()
    if hands.unread:
        hint = "" if form.decode is None else "; --codec names another form, --codec raw reads any"
        raise Incomplete(f"{count(hands.unread, 'item')} could not be read and handed back{hint}", Exit.UNREAD)
    if hands.lost:
        lost = count(hands.lost, "item")
        raise Incomplete(f"{lost} printed too late: the claims had ended, others may get the items")


def _line(claim: Claim[bytes], form: Form) -> Line:
    """Show a claim's item.  Raises ``ValueError``, ``TypeError`` if it is not of this form."""
    item: object = None
    payload = dict[str, str]()
    if form.decode is None:
        text, payload = repr(claim.item), {"payload": claim.item.decode(errors="backslashreplace")}
    else:
        item = form.decode(claim.item)
        text = json.dumps(item)
    return Line(text, {**CLAIMED.tell(claim), "item": item, **payload})


# Many are claimed by several requests, and a shell may wait for any time.
TAKES = Takes(
    CLAIM,
    without={"lease": "claims are extended until their items are printed"},
    changed=(replace(CLAIM.by_name["count"], kind=Count()), replace(CLAIM.by_name["wait"], kind=Seconds())),
)

COMMANDS = (
    Command(
        "pop",
        "take items: print each on one line, then ack it; hand back what cannot be read or printed",
        _pop,
        (CODEC,),
        takes=TAKES,
    ),
)
