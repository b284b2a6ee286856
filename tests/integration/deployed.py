"""Files that start ``zkrq``, read as what starts it reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zkrq.cli import running
from zkrq.cli.parsing import make_parser
from zkrq.client.environment import VARIABLES

FLAGS = {"ZKRQ_WORKER_LOG_FORMAT", "ZKRQ_SERVE_LOG_FORMAT"}


DRAIN = 15.0  # seconds that a process may take beyond the grace


def parse(command: list[str]) -> Any:
    assert Path(command[0]).name == "zkrq"
    return make_parser(running.COMMANDS).parse_args(command[1:])


def check_variables(names: set[str]) -> None:
    known = {f"ZKRQ_{name.upper()}{end}" for name in VARIABLES for end in ("", "_FILE")} | FLAGS
    assert names <= known
