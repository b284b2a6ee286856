"""The demo: a consumer, a Redis server and the ZooKeeper leader are killed, the work goes on, every item is counted.

tally     what was pushed, delivered and acked, and what that amounts to; no I/O
consumer  a consumer, in a process of its own, that reports each delivery and each ack
crew      the consumers' processes, as the demo's own process sees them
words     what happened, and what came of it, in sentences
display   shows how it goes, line by line ...
live      ... or, on a terminal, with a live table
story     what happens when
"""

from zkrq.demo.display import display
from zkrq.demo.story import RATE, SECONDS, run
from zkrq.demo.words import describe

__all__ = ["RATE", "SECONDS", "describe", "display", "run"]
