"""``python -m tests.simulation --seeds 500``: run seeds and report the findings.

A failing seed is printed with what was violated and when; ``--trace SEED`` shows everything that happened in it.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.history import NO_HISTORY, has_history

HASH_SEED = "0"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, help="how many")
    parser.add_argument("--first", type=int, default=1, help="the first one")
    parser.add_argument("--only", metavar="SEEDS", help="these seeds, comma-separated")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    parser.add_argument("--faults", default="all", help="comma-separated; also: none, network, server, client")
    parser.add_argument("--shards", action="store_true", help="with a second shard, which comes and goes")
    parser.add_argument("--versions", action="store_true", help="with clients of the release before beside this one")
    parser.add_argument("--variant", help="run a deliberately broken zkrq (see variants.py)")
    parser.add_argument(
        "--variants",
        metavar="NAMES",
        help="run each of these, comma-separated, or all, from its first seed until it fails",
    )
    parser.add_argument("--trace", type=int, metavar="SEED", help="run one seed and print all that happens")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--stop", action="store_true", help="end with the first failing seed")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        os.environ["PYTHONHASHSEED"] = HASH_SEED
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    if options.versions and options.shards:
        parser.error("--versions has one shard: give either of the two")
    if options.versions and not has_history():
        parser.error(NO_HISTORY)
    if options.trace is not None:
        return _trace(options)
    if options.variants:
        return _find_out(options.variants, options.seeds)
    seeds: Sequence[int] = range(options.first, options.first + options.seeds)
    if options.only:
        seeds = [int(word) for word in options.only.split(",")]
    started = time.perf_counter()
    reports = _in_processes(options, seeds) if options.jobs > 1 else _here(options, seeds)
    wall = time.perf_counter() - started
    if options.json:
        print(json.dumps({"wall_seconds": wall, "reports": reports}))
    else:
        _print(reports, wall)
    return 1 if any(report["violations"] for report in reports) else 0


def _here(options: argparse.Namespace, seeds: Sequence[int]) -> list[dict[str, Any]]:
    from tests.simulation.batch import run

    gc.collect()
    gc.freeze()  # what is loaded by now is looked at no more
    reports: list[dict[str, Any]] = []
    for seed in seeds:
        report = run(seed, options.faults, options.variant, sharded=options.shards, versions=options.versions)
        reports.append(report)
        if report["violations"]:
            print(_line(report), file=sys.stderr, flush=True)
        if options.stop and report["violations"]:
            break
    return reports


def _find_out(names: str, seeds: int) -> int:
    """Run each variant until a seed of so many fails; print which one, None: none does."""
    from tests.simulation.batch import run
    from tests.simulation.variants import VARIANTS

    found = {
        name: next(
            (
                seed
                for seed in range(each.first, each.first + seeds)
                if run(seed, each.faults, name, versions=each.versions)["violations"]
            ),
            None,
        )
        for name, each in VARIANTS.items()
        if names == "all" or name in names.split(",")
    }
    print(json.dumps(found))
    return 1 if None in found.values() else 0


def _in_processes(options: argparse.Namespace, seeds: Sequence[int]) -> list[dict[str, Any]]:
    share = -(-len(seeds) // options.jobs)
    parts = [seeds[start : start + share] for start in range(0, len(seeds), share)]

    def work(part: Sequence[int]) -> list[dict[str, Any]]:
        command = [sys.executable, "-m", "tests.simulation", "--json", "--jobs=1"]
        command += [f"--only={','.join(map(str, part))}", f"--faults={options.faults}"]
        command += [f"--variant={options.variant}"] if options.variant else []
        command += ["--stop"] if options.stop else []
        command += ["--shards"] if options.shards else []
        command += ["--versions"] if options.versions else []
        done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
        if done.returncode not in (0, 1):
            raise RuntimeError(f"worker for seeds {part} ended with {done.returncode}")
        return json.loads(done.stdout)["reports"]

    with ThreadPoolExecutor(options.jobs) as pool:
        return [report for reports in pool.map(work, parts) for report in reports]


def _trace(options: argparse.Namespace) -> int:
    from tests.simulation.batch import run

    how = {"sharded": options.shards, "versions": options.versions}
    report = run(options.trace, options.faults, options.variant, **how, keep_trace=True)
    print("\n".join(report["trace"]))
    print(f"digest {report['digest']:08x}, {report['virtual_seconds']:.1f} virtual seconds")
    for violation in report["violations"]:
        print(violation)
    return 1 if report["violations"] else 0


def _line(report: dict[str, Any]) -> str:
    """A failing seed in one line."""
    first, *others = report["violations"]
    more = f" (and {len(others)} more)" if others else ""
    return f"seed {report['seed']}: {first[:400]}{more}"


def _print(reports: list[dict[str, Any]], wall: float) -> None:
    faults: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    for report in reports:
        faults.update(report["faults"])
        counts.update(report["counts"])
        for text in report["violations"]:
            kinds[text.partition(" s: ")[2].partition(":")[0][:40]] += 1
    failed = sum(bool(report["violations"]) for report in reports)
    print(f"{len(reports)} seeds, {failed} failed, {wall:.1f} s ({wall / len(reports):.3f} s each)")
    print("faults:", ", ".join(f"{kind} {count}" for kind, count in sorted(faults.items())))
    print("counts:", ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items())))
    print("violations:", ", ".join(f"{kind} {count}" for kind, count in kinds.most_common()) or "none")


if __name__ == "__main__":
    sys.exit(main())
