"""The command line: ``zkrq`` and ``python -m zkrq``.

command     what a command is: flags, arguments, the lines that it yields
connection  the flags that every command on a namespace has
items queues servers trying   the commands
parsing     arguments and environment variables
running     one command, from the arguments to the exit code
stdin       lines from stdin
demo/       the demo
"""

from zkrq.cli.running import main

__all__ = ["main"]
