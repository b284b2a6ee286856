"""``python -m tests.mutants``: break a copy of the tree, one line at a time; each mistake has to be found.

Before that, every killer has to pass on an unbroken copy: one that always fails proves nothing.  Only tests of the
suites ``quick`` and ``test`` kill, and seeds of the simulation; how many each has killed stands at the end.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tests import suites
from tests.mutants.table import MUTANTS
from tests.mutants.trial import SEEDS, Mutant, Outcome, Verdict, copy_of_tree, run, trial


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
    killed: Counter[str] = Counter()
    with ThreadPoolExecutor(options.jobs) as pool:
        verdicts = pool.map(partial(_timed, seconds=options.seconds), mutants)
        for mutant, (verdict, took) in zip(mutants, verdicts, strict=True):
            by = verdict.by if verdict.outcome is Outcome.KILLED else ""
            print(f"{verdict.outcome.value:10}", f"{by:5}", f"{mutant.name:{wide}}", f"{took:5.1f} s", mutant.killer,
                  sep="  ", flush=True)  # fmt: skip
            if by:
                killed[by] += 1
            if verdict.outcome is Outcome.NO_VERDICT:
                print(verdict.output)
    print("killed by")
    for by in (suites.QUICK, suites.TEST, SEEDS):
        print(f"  {by:5}  {killed[by]:4}")
    print(f"{killed.total()} of {len(mutants)} killed")
    return 0 if killed.total() == len(mutants) else 1


def _timed(mutant: Mutant, seconds: float) -> tuple[Verdict, float]:
    began = time.monotonic()
    return trial(mutant, seconds), time.monotonic() - began


def _pass_on_the_whole_tree(mutants: Sequence[Mutant], jobs: int, seconds: float) -> bool:
    killers = list(dict.fromkeys(mutant.killer for mutant in mutants))
    with copy_of_tree() as root, ThreadPoolExecutor(jobs) as pool:
        # The last suite of a killer has all of its tests: those of quick are a part of test.
        verdicts = list(pool.map(partial(run, root=root, seconds=seconds, only_last=True), killers))
    useless = [(killer, verdict) for killer, verdict in zip(killers, verdicts, strict=True)
               if verdict.outcome is not Outcome.SURVIVED]  # fmt: skip
    for killer, verdict in useless:
        print(f"complains about the whole tree: {killer}\n{verdict.output}")
    return not useless


if __name__ == "__main__":
    sys.exit(main())
