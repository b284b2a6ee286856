"""Run faults against real servers and print the result: ``python -m tests.chaos --help``."""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.chaos.report import CannotDraw, complaints, draw, table
from tests.chaos.run import NAMES, Run, bound, run, usual
from tests.chaos.stage import LONG, Pace
from zkrq import local

START = 70.0
"""Seconds that the servers of one run may take to start and to end."""

USUAL_REST = 12.0
"""Seconds of a run beside its load and faults, when nothing goes wrong."""

COPIED_A_SECOND = 4_000
"""Items of a larger backlog that a catch-up brings, at least."""

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be run, and where its logs go."""

    faults: Sequence[str]
    min_replicas: Sequence[int]
    runs: int
    seed: int
    pace: Pace
    out: Path

    @property
    def size(self) -> int:
        """How many runs it is."""
        return len(self.faults) * self._repeated

    @property
    def usual(self) -> float:
        """Seconds that it takes when nothing goes wrong, about."""
        return sum(USUAL_REST + usual(fault, self.pace) for fault in self.faults) * self._repeated

    @property
    def bound(self) -> float:
        """Seconds after which all of it is over, whatever happens."""
        return sum(START + bound(fault, self.pace) for fault in self.faults) * self._repeated

    @property
    def _repeated(self) -> int:
        return len(self.min_replicas) * self.runs


def read_arguments(arguments: Sequence[str]) -> Plan:
    parser = argparse.ArgumentParser("python -m tests.chaos", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=LONG.seconds, help="of load and faults in each run (%(default)g)"
    )
    parser.add_argument("--faults", default=",".join(NAMES), help="of these, separated by commas: %(default)s")
    parser.add_argument("--min-replicas", default="1,2", help="values to run with, separated by commas (%(default)s)")
    parser.add_argument("--runs", type=int, default=1, help="of each fault with each value (%(default)s)")
    parser.add_argument(
        "--backlog", type=int, default=LONG.backlog, help="items that lie in a queue, where a fault asks (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="what is left to chance (random)")
    parser.add_argument("--out", type=Path, default=Path("build/chaos"), help="folder of the results (%(default)s)")
    given = parser.parse_args(arguments)
    faults = given.faults.split(",")
    if unknown := [fault for fault in faults if fault not in NAMES]:
        parser.error(f"no such fault: {', '.join(unknown)}")
    try:
        min_replicas = [int(value) for value in given.min_replicas.split(",")]
    except ValueError:
        parser.error("--min-replicas takes numbers")
    if not set(min_replicas) <= {1, 2}:
        parser.error("--min-replicas takes 1 and 2: the faults take one of three servers away")
    more = max(0, given.backlog - LONG.backlog) / COPIED_A_SECOND
    pace = replace(LONG, seconds=given.seconds + 4 * more, whole=LONG.whole + more, backlog=given.backlog)
    return Plan(faults, min_replicas, given.runs, given.seed, pace, given.out)


async def play(plan: Plan, done: list[Run]) -> None:
    """One run after the other, each on servers of its own; what is over is added to ``done``."""
    for fault in plan.faults:
        for min_replicas in plan.min_replicas:
            for number in range(1, plan.runs + 1):
                began = time.monotonic()
                seed = f"{plan.seed}/{fault}/{min_replicas}/{number}"
                directory = plan.out / "logs" / seed.replace("/", "-")
                shutil.rmtree(directory, ignore_errors=True)
                async with local.servers(redis=3, zookeeper=3) as servers:
                    given = await run(
                        servers,
                        fault,
                        "chaos",
                        min_replicas=min_replicas,
                        pace=plan.pace,
                        seed=seed,
                        directory=directory,
                    )
                done.append(given)
                say(f"{len(done)} of {plan.size}: {fault}, min_replicas={min_replicas}: {verdict(given)}", began)


def verdict(given: Run) -> str:
    return f"{given.fired} faults, {given.outcome.acked:,} acked, {'clean' if given.ok else 'NOT CLEAN'}"


def say(text: str, since: float) -> None:
    print(f"{text} ({time.monotonic() - since:.0f} s)", file=sys.stderr, flush=True)


def report(plan: Plan, runs: Sequence[Run]) -> None:
    """Print the table and write it down, with the picture."""
    wrong = [line for each in runs for line in complaints(each)]
    text = "\n".join([f"Seed {plan.seed}, {plan.pace.seconds:g} s each.", "", table(runs), ""])
    if wrong:
        text += "\n".join(["", *(f"- {line}" for line in wrong), "", f"Logs: {plan.out / 'logs'}", ""])
    print(text)
    (plan.out / "chaos.md").write_text(text)
    try:
        draw(runs, plan.out / "chaos.png")
    except CannotDraw as error:
        print(error, file=sys.stderr)


def main() -> int:
    plan = read_arguments(sys.argv[1:])
    if missing := {"redis", "zookeeper"} - local.available():
        print(f"not installed: {', '.join(sorted(missing))}", file=sys.stderr)
        return 1
    plan.out.mkdir(parents=True, exist_ok=True)
    expected = f"about {plan.usual / 60:.0f} min, at most {plan.bound / 60:.0f} min"
    print(f"{plan.size} runs, seed {plan.seed}: {expected}", file=sys.stderr)
    runs: list[Run] = []
    try:
        asyncio.run(play(plan, runs))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    if runs:
        report(plan, runs)
    if len(runs) < plan.size:
        return INTERRUPTED
    return 0 if all(each.ok for each in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
