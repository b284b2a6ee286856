"""Provide the stored schedules for threads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar, Unpack

from zkrq.client import scheduling
from zkrq.client.scheduling import UNCHANGED
from zkrq.sync.blocking import blocking, with_arguments_of
from zkrq.sync.queue import Queue, find_of

if TYPE_CHECKING:
    from zkrq.base.checks import Duration
    from zkrq.client.timetable import ScheduleOptions, StoredSchedule
    from zkrq.sync.portal import Portal

R = TypeVar("R")
T = TypeVar("T")


class StoredSchedules:
    """The schedules of a namespace: ``zkrq.StoredSchedules`` for threads, with the same meanings and errors.

    Made by ``Cluster.schedules``.  A program of threads does not run them; ``zkrq schedules run`` does.
    """

    def __init__(self, portal: Portal) -> None:
        self._portal = portal

    def __repr__(self) -> str:
        return "<StoredSchedules for threads>"

    def _call(self, act: Callable[[scheduling.StoredSchedules], Awaitable[R]]) -> R:
        return self._portal.call(lambda cluster: act(cluster.schedules()))

    list = blocking(scheduling.StoredSchedules.list)
    get = blocking(scheduling.StoredSchedules.get)
    keep = blocking(scheduling.StoredSchedules.keep)

    def add(
        self,
        queue: Queue[T],
        name: str,
        when: Duration | str,
        item: T,
        *,
        replace: bool = False,
        **options: Unpack[ScheduleOptions],
    ) -> StoredSchedule:
        """Add a schedule; see ``zkrq.StoredSchedules.add``."""
        return self._portal.call(
            lambda cluster: cluster.schedules().add(
                find_of(queue)(cluster), name, when, item, replace=replace, **options
            )
        )

    @with_arguments_of(scheduling.StoredSchedules.change)
    def change(
        self,
        queue: Queue[T],
        name: str,
        *,
        when: Duration | str = UNCHANGED,
        item: T = UNCHANGED,
        **options: Unpack[ScheduleOptions],
    ) -> StoredSchedule:
        """Change what is given of a schedule; see ``zkrq.StoredSchedules.change``."""
        return self._portal.call(
            lambda cluster: cluster.schedules().change(find_of(queue)(cluster), name, when=when, item=item, **options)
        )

    pause = blocking(scheduling.StoredSchedules.pause)
    resume = blocking(scheduling.StoredSchedules.resume)
    run_now = blocking(scheduling.StoredSchedules.run_now)
    remove = blocking(scheduling.StoredSchedules.remove)
