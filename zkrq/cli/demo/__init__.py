"""The demo: a consumer, a Redis server and the ZooKeeper leader are killed, the work goes on, every item is counted.

tally     what was pushed, delivered and acked, and what that amounts to; no I/O
consumer  a consumer, in a process of its own, that reports each delivery and each ack
crew      the consumers' processes, as the demo's own process sees them
words     what happened, and what came of it, in sentences
display   shows how it goes, line by line ...
live      ... or, on a terminal, with a live table
story     what happens when
"""

from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TextIO

from zkrq.cli.demo.display import Display, Plain
from zkrq.cli.demo.story import RATE, SECONDS, run
from zkrq.cli.demo.words import describe

__all__ = ["RATE", "SECONDS", "describe", "display", "run"]


@contextmanager
def display(stream: TextIO) -> Generator[Display, None, None]:
    """The best that ``stream`` can show."""
    if stream.isatty() and find_spec("rich"):
        from zkrq.cli.demo.live import live

        with live(stream) as shown:
            yield shown
    else:
        yield Plain(stream)
