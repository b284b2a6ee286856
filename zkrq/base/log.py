"""Name what a log record is about: cluster, queue, shard, server and item stand beside its message."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

USUAL = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"})
"""Attributes of any record."""


class Log(logging.LoggerAdapter[logging.Logger]):
    """Add what a log is about to its records, and keep what a single record adds (``extra``)."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs
