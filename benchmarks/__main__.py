"""Runs every benchmark and prints a Markdown table; ``--json`` prints one object instead."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import sys

from benchmarks import hot_path, throughput

TIMEOUT = 300.0
"""Seconds for all of it."""


async def run() -> dict[str, float]:
    async with asyncio.timeout(TIMEOUT):
        return {**await hot_path.run(), **await throughput.run()}


if __name__ == "__main__":
    results = asyncio.run(run())
    machine = f"Python {platform.python_version()}, {os.cpu_count()} cores"
    if "--json" in sys.argv:
        print(json.dumps({"machine": machine, "results": results}))
    else:
        print(f"| {machine} | |\n| --- | ---: |")
        for name, figure in results.items():
            print(f"| {name} | {figure:,.1f} |")
