"""Run the benchmarks and write their figures: JSON, Markdown, pictures.

    python -m benchmarks                    # everything, about twenty-five minutes
    python -m benchmarks --quick            # rougher, about four minutes
    python -m benchmarks --only throughput --only peers
    python -m benchmarks --docs             # renews docs/benchmarks/figures.md too
    python -m benchmarks --profile          # only the hot path, under cProfile

No figure makes it fail.  A line names each measurement that is not possible here.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import (
    bars,
    client_memory,
    contest,
    curve,
    fates,
    fleet,
    flows,
    groups,
    growth,
    held,
    hot_path,
    latency,
    limit,
    machine,
    plots,
    report,
    throughput,
)
from benchmarks.plan import Plan
from benchmarks.sheet import Sheet

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks" / "figures.md"

Run = Callable[[Plan, Sheet], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One benchmark.  ``seconds`` is the most it may take, several times its usual duration; figures found until then
    count."""

    run: Run
    seconds: float


def benchmarks(folder: Path) -> Mapping[str, Benchmark]:
    """Return all benchmarks, in their order."""
    return {
        "curve": Benchmark(partial(curve.run, folder=folder), 600),
        "hot-path": Benchmark(hot_path.run, 60),
        "limit": Benchmark(limit.run, 120),
        "throughput": Benchmark(throughput.run, 240),
        "latency": Benchmark(latency.run, 240),
        "growth": Benchmark(growth.run, 300),
        "groups": Benchmark(groups.run, 600),
        "fates": Benchmark(fates.run, 240),
        "held": Benchmark(held.run, 420),
        "flows": Benchmark(partial(flows.run, folder=folder), 900),
        "memory": Benchmark(client_memory.run, 180),
        "fleet": Benchmark(partial(fleet.run, folder=folder), 900),
        "peers": Benchmark(partial(contest.run, folder=folder), 600),
    }


async def measure(chosen: Mapping[str, Benchmark], plan: Plan, sheet: Sheet, save: Callable[[], None]) -> None:
    """Run one after the other, and save the figures after each; a benchmark that fails is remarked, and the next one
    begins."""
    for name, benchmark in chosen.items():
        began = time.monotonic()
        try:
            async with asyncio.timeout(benchmark.seconds):
                await benchmark.run(plan, sheet)
        except TimeoutError:
            sheet.remark(
                f"{name}: cut short after {time.monotonic() - began:.0f} s, the machine is too slow or too busy"
            )
        except Exception as error:  # a benchmark that fails must not lose the figures of the others
            logging.getLogger("benchmarks").debug("%s", name, exc_info=True)
            sheet.remark(f"{name}: broke off: {type(error).__name__}: {error}")
        print(f"bench: {name}: {time.monotonic() - began:.0f} s", flush=True)
        save()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    known = tuple(benchmarks(ROOT))
    parser.add_argument("--quick", action="store_true", help="less of everything, once: about four minutes")
    parser.add_argument("--only", action="append", choices=known, help="this one; may be repeated")
    parser.add_argument("--docs", action="store_true", help="renew docs/benchmarks/figures.md")
    parser.add_argument("--profile", action="store_true", help="profile the hot path, and nothing else")
    parser.add_argument("--verbose", action="store_true", help="say what zkrq logs, and where a benchmark broke")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench", help="where the results go")
    options = parser.parse_args()
    logging.basicConfig(level=logging.DEBUG if options.verbose else logging.CRITICAL)

    folder: Path = options.output.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(ROOT)  # so that programs started below find this package
    if options.profile:
        (folder / "profile.txt").write_text(asyncio.run(hot_path.profile(Plan(options.quick))))
        print(f"bench: the profile is {folder / 'profile.txt'}")
        return
    sheet = Sheet()
    found = machine.describe(" ".join(["python -m benchmarks", *sys.argv[1:]]))
    chosen = {name: each for name, each in benchmarks(folder).items() if not options.only or name in options.only}
    asyncio.run(measure(chosen, Plan(options.quick), sheet, lambda: sheet.save(folder / "results.json", found)))
    found["load after"] = " ".join(f"{each:.2f}" for each in os.getloadavg())

    foot = machine.one_line(found)
    sheet.save(folder / "results.json", found)
    pictures = plots.draw(sheet, foot, folder)
    beside = {name: file.name for name, file in pictures.items()}
    (folder / "report.md").write_text(f"# Benchmarks\n\n{report.markdown(sheet, found, beside)}")
    if options.docs:
        drawn = plots.draw(sheet, foot, PAGE.parent)
        report.publish(PAGE, report.markdown(sheet, found, {name: file.name for name, file in drawn.items()}))
    print(bars.table(bars.bars(sheet)))
    print(f"bench: the report is {folder / 'report.md'}")


if __name__ == "__main__":
    main()
