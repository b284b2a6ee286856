"""The runner of production carries out every step that an operation may yield."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from zkrq.base.events import Events
from zkrq.base.settings import DEFAULTS
from zkrq.protocol import steps
from zkrq.protocol.steps import Ask, Begin, CheckTime, Look, Step
from zkrq.replication.causes import Causes
from zkrq.replication.runner import Runner

IN_THE_HOT_PATH = {Ask, Begin, CheckTime, Look}


def test_each_step_has_a_row_in_the_table_or_is_in_the_hot_path() -> None:
    nothing = cast("Any", SimpleNamespace())
    runner = Runner(nothing, nothing, nothing, settings=DEFAULTS, events=Events(None), cutter=nothing, causes=Causes())
    rows = runner._steps.keys()  # pyright: ignore[reportPrivateUsage]
    defined: set[object] = {
        each for each in vars(steps).values() if isinstance(each, type) and issubclass(each, Step) and each is not Step
    }
    assert rows | IN_THE_HOT_PATH == defined
    assert not rows & IN_THE_HOT_PATH
