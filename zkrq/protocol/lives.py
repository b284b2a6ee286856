"""Compare the lives that a view names with those in which its servers were met: which of them live, and which were
restarted and still have the data of the view.  Pure functions, for recovery and for its advice.
"""

from __future__ import annotations

from collections.abc import Mapping

from zkrq.protocol.view import Life, ServerId, View, restored


def alive(view: View, met: Mapping[ServerId, Life]) -> list[ServerId]:
    """Return the members that were met in the life that the view names."""
    return [id for id, life in view.members.items() if met.get(id) == life]


def holding(view: View) -> Mapping[ServerId, Life]:
    """Return the servers that may hold promised items, including those evicted last, which hold every pushed item."""
    return {**view.members, **view.eligible}


def with_data(view: View, met: Mapping[ServerId, Life]) -> list[ServerId]:
    """Return those of ``holding`` that were met with the data of the view, in whichever life of the process."""
    known = ((id, life) for id, life in holding(view).items() if id in met)
    return [id for id, life in known if met[id].generation in (life.generation, restored(life))]


def restarted(view: View, met: Mapping[ServerId, Life]) -> list[ServerId]:
    """Return the servers to continue with where no member lives: those that were met and have the data of the view; all
    of ``holding`` that were met if none of them has."""
    return with_data(view, met) or [id for id in holding(view) if id in met]
