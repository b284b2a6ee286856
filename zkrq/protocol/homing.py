"""Judge, step by step, what becomes of items that come home from another shard.

The steps are calls, which clients make in this order: ``Adopt`` at home, ``Cancel`` on the shard that has the items,
``Admit`` at home (``client/homing.py``).  Here is which items each step is for, from the replies of the one before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from zkrq.protocol.calls import Adopted, AdoptReply, CancelReply, MovableReply, bundle_and_position
from zkrq.protocol.records import DamagedRecord

if TYPE_CHECKING:
    from zkrq.protocol.deciding import Decided

MOVED = "M"
"""In place of a state: the item is on another shard, or is to be (``lua/cancel.lua``)."""


def to_adopt(movable: MovableReply) -> Sequence[Adopted]:
    """Return what home can adopt of the items that a shard has queued."""
    items: list[Adopted] = []
    bundles = {copied.id: copied for copied in movable.copies.items}
    for bundle, position in movable.places:
        if copied := bundles.get(bundle):
            try:
                item = Adopted.of(copied, position)
            except DamagedRecord:
                continue  # until it is mended
            if item:
                items.append(item)
    return items


def are_at_home(items: Sequence[Adopted], adopted: Decided[AdoptReply]) -> Sequence[str]:
    """Return the ids of those that are at home now, or have been: the shard from which they come may let them go."""
    there: list[str] = []
    for item, outcome in zip(items, adopted.reply.outcomes, strict=True):
        bundle, position = bundle_and_position(item.id)
        if outcome[:1] in b"+KD" and position not in adopted.superseded.get(bundle.encode(), ()):
            there.append(item.id)
    return there


def bundles_of(ids: Sequence[bytes]) -> Sequence[bytes]:
    """Return the bundles of items, each once."""
    return list(dict.fromkeys(bundle_and_position(id.decode())[0].encode() for id in ids))


def are_everywhere(
    affirmed: Collection[bytes], adopted: Sequence[bytes], superseded: Mapping[bytes, Collection[int]]
) -> Sequence[str]:
    """Return the ids of the adopted items that all servers of home have, since the primary has decided them again.

    ``superseded``: by that decision, see ``Decided``.
    """
    ids: list[str] = []
    for id in [each.decode() for each in adopted if each in affirmed]:
        bundle, position = bundle_and_position(id)
        if position not in superseded.get(bundle.encode(), ()):
            ids.append(id)
    return ids


def have_come(ids: Sequence[str], decided: Decided[CancelReply]) -> Mapping[str, bool]:
    """Return whether each adopted item has left its shard for home, or has ended there, without those of which neither
    is said."""
    come: dict[str, bool] = {}
    for id, state in zip(ids, decided.reply.states, strict=True):
        bundle, position = bundle_and_position(id)
        if position in decided.superseded.get(bundle.encode(), ()):
            continue
        if state in (b"Q", MOVED.encode(), b""):  # what is unknown was forgotten, and it was queued when it was adopted
            come[id] = True
        elif state == b"X":
            come[id] = False
    return come
