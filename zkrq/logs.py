"""Name what a log record is about, for programs that read logs: cluster, queue, shard, server and item stand beside it.

``JsonFormatter`` writes them out, one JSON object per line, with any handler of ``logging``::

    handler.setFormatter(zkrq.logs.JsonFormatter())
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from zkrq.base.log import USUAL


class JsonFormatter(logging.Formatter):
    """Format a record as one line of JSON.

    It has ``time`` (ISO 8601, UTC), ``level``, ``logger``, ``process`` and ``message``; what else the record was given,
    such as ``cluster``, ``queue``, ``shard``, ``server`` and ``item``; and the traceback as ``exception``.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _USUAL and value is not None}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:  # of another process
            line["exception"] = record.exc_text
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return json.dumps(line, default=str)


_USUAL = {*USUAL, "time", "level", "logger", "stack"}
"""Attributes of any record, and names that have another meaning in the line."""
