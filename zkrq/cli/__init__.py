"""Provide the command line: ``zkrq`` and ``python -m zkrq``.

flags       flags, and those that are parameters of an operation
command     what a command consists of: flags, arguments, the lines that it yields; connecting
push pop items queues settings removing schedules servers shards trying worker serve top completion   the commands
forms       items as text: JSON, MessagePack, bytes
asking      questions before anything is removed
progress    how far long work is
supervisor  several processes of a worker
parsing     arguments and environment variables
running     one command, from its arguments to its exit code
stdin       lines from stdin
demo/       the demo
"""

import sys

from zkrq.base.version import __version__


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return the exit code.  Programs that only ask for the version load nothing else."""
    if (sys.argv[1:] if arguments is None else arguments) == ["--version"]:
        sys.stdout.write(f"zkrq {__version__}\n")
        return 0
    from zkrq.cli import running

    return running.main(arguments)
