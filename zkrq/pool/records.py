"""Bring log records of a child to its parent, whose handlers write them: so lines of several processes do not mix, and
the configuration of the parent holds for all."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, cast

from zkrq.base.log import USUAL
from zkrq.pool.frames import TEXT_MAX, Kind, Told, encode_up

if TYPE_CHECKING:
    from zkrq.pool.claim import PooledClaim

working: ContextVar[PooledClaim | None] = ContextVar("zkrq_pooled_claim", default=None)
"""The claim of the handler that runs, in a child."""

NAMES_MAX = 1_000
"""Loggers that a parent makes for names that children send; records of further ones are those of ``zkrq.pool``."""

EXTRAS_MAX = 20
"""Values beside its message that a record keeps."""

EXTRA_TEXT_MAX = 200
"""Characters of such a value."""

_named = set[str]()


def levels() -> dict[str, int]:
    """Return the levels that are set in this process, by the name of the logger."""
    known = logging.root.manager.loggerDict.items()
    set_here = {name: each.level for name, each in known if isinstance(each, logging.Logger) and each.level}
    return {"root": logging.root.level, **set_here}


class Records(logging.Handler):
    """Send records to the parent, in a child."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        super().__init__()
        self._send = send
        self._format = logging.Formatter()

    def install(self, levels: Mapping[str, int]) -> None:
        """Be the handler of the root logger, instead of those that it has, with these levels of loggers."""
        logging.root.handlers[:] = [self]
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record."""
        claim = working.get()
        try:
            message = record.getMessage()[:TEXT_MAX]
            trace = self._format.formatException(record.exc_info)[-TEXT_MAX:] if record.exc_info else ""
            extras = {name: value for name, value in vars(record).items() if name not in USUAL}
            if claim is not None:
                extras |= {"queue": claim.queue, "item": claim.id, "attempt": claim.attempts}
            told = {str(name): _plain(value) for name, value in list(extras.items())[:EXTRAS_MAX]}
            self._send(
                encode_up(
                    Kind.RECORD,
                    name=record.name,
                    level=record.levelno,
                    message=message,
                    trace=trace,
                    created=record.created,
                    path=record.pathname,
                    line=record.lineno,
                    function=record.funcName,
                    thread=record.threadName,
                    extras=told,
                )
            )
        except Exception:
            self.handleError(record)


def _plain(value: object) -> object:
    return value if isinstance(value, int | float | bool) or value is None else str(value)[:EXTRA_TEXT_MAX]


def handle(told: Told, process: int) -> None:
    """Handle a record of a child in its parent."""
    logger = _logger(told.text("name", EXTRA_TEXT_MAX))
    level = min(max(told.number("level"), 0), logging.CRITICAL)
    if not logger.isEnabledFor(level):
        return
    values: dict[str, object] = {
        "name": logger.name,
        "levelno": level,
        "levelname": logging.getLevelName(level),
        "msg": told.text("message"),
        "created": told.seconds("created") or 0.0,
        "pathname": told.text("path", EXTRA_TEXT_MAX),
        "lineno": told.number("line"),
        "funcName": told.text("function", EXTRA_TEXT_MAX),
        "threadName": told.text("thread", EXTRA_TEXT_MAX),
        "process": process,
        "exc_text": told.text("trace") or None,
    }
    extras = told.values.get("extras")
    if isinstance(extras, dict):
        given = list(cast("dict[str, object]", extras).items())[:EXTRAS_MAX]
        values |= {name[:EXTRA_TEXT_MAX]: _plain(value) for name, value in given if name not in USUAL}
    logger.handle(logging.makeLogRecord(values))


def _logger(name: str) -> logging.Logger:
    if name not in logging.root.manager.loggerDict:
        if len(_named) >= NAMES_MAX:
            name = "zkrq.pool"
        _named.add(name)
    return logging.getLogger(name) if name else logging.root
