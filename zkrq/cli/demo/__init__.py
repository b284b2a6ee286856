"""Run the demo: kill a consumer, a Redis server and the ZooKeeper leader; the work continues, every item is counted.

tally     counts items pushed, delivered and acked, and computes the result; no I/O
consumer  a consumer in its own process, which reports each delivery and each ack
crew      the consumer processes, seen from the demo's own process
words     events and results as sentences
display   shows the progress, line by line ...
live      ... or, on a terminal, in a live table
story     the schedule
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
    """Choose the best display that ``stream`` supports."""
    if stream.isatty() and find_spec("rich"):
        from zkrq.cli.demo.live import live

        with live(stream) as shown:
            yield shown
    else:
        yield Plain(stream)
