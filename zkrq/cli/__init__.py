"""The command line: ``zkrq`` and ``python -m zkrq``."""

from zkrq.cli.commands import main

__all__ = ["main"]
