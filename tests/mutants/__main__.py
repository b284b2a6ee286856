"""``python -m tests.mutants``: break a copy of the tree, one line at a time; each mistake has to be found.

Before that, every killer has to pass on an unbroken copy: one that always fails proves nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tests.mutants.table import MUTANTS
from tests.mutants.trial import Mutant, Outcome, Verdict, copy_of_tree, run, trial


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="only mutants whose name has one of these words")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at once")
    parser.add_argument("--seconds", type=float, default=600.0, help="a killer that needs longer gives no verdict")
    parser.add_argument("--list", action="store_true", help="print the table and run nothing")
    parser.add_argument("--unchecked", action="store_true", help="do not run the killers on the whole tree first")
    options = parser.parse_args()
    mutants = [one for one in MUTANTS if not options.names or any(name in one.name for name in options.names)]
    if options.list:
        for mutant in mutants:
            print(
                f"{mutant.name}: {mutant.why}\n    {mutant.file}: {mutant.old!r} -> {mutant.new!r}\n    {mutant.killer}"
            )
        return 0
    if not options.unchecked and not _pass_on_the_whole_tree(mutants, options.jobs, options.seconds):
        return 1
    wide = max(len(mutant.name) for mutant in mutants)
    failed = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        verdicts = pool.map(partial(_timed, seconds=options.seconds), mutants)
        for mutant, (verdict, took) in zip(mutants, verdicts, strict=True):
            print(f"{verdict.outcome.value:10}  {mutant.name:{wide}}  {took:5.1f} s  {mutant.killer}", flush=True)
            failed += verdict.outcome is not Outcome.KILLED
            if verdict.outcome is Outcome.NO_VERDICT:
                print(verdict.output)
    print(f"{len(mutants) - failed} of {len(mutants)} killed")
    return 1 if failed else 0


def _timed(mutant: Mutant, seconds: float) -> tuple[Verdict, float]:
    began = time.monotonic()
    return trial(mutant, seconds), time.monotonic() - began


def _pass_on_the_whole_tree(mutants: Sequence[Mutant], jobs: int, seconds: float) -> bool:
    killers = list(dict.fromkeys(mutant.killer for mutant in mutants))
    with copy_of_tree() as root, ThreadPoolExecutor(jobs) as pool:
        verdicts = list(pool.map(partial(run, root=root, seconds=seconds), killers))
    useless = [(killer, verdict) for killer, verdict in zip(killers, verdicts, strict=True)
               if verdict.outcome is not Outcome.SURVIVED]  # fmt: skip
    for killer, verdict in useless:
        print(f"complains about the whole tree: {killer}\n{verdict.output}")
    return not useless


if __name__ == "__main__":
    sys.exit(main())
