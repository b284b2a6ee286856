"""Start the benchmarks' programs: each gets its orders as JSON in its only argument, and answers in lines of JSON."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

END_SECONDS = 5.0
"""Seconds that a dismissed program has to end."""
LINE_MAX = 1 << 24
"""Bytes of an answer."""


class ProgramFailed(Exception):
    """A program gave no answer; the text says why, in one line."""


async def start(python: Path, module: str, orders: Mapping[str, object], *, group: int | None = None) -> Process:
    """Start a module by this Python, in a process group: a new one (0), another program's, or this process's (None).

    Raises ``ProgramFailed``.
    """
    return await spawn([str(python), "-m", module], orders, group=group)


async def spawn(
    command: Sequence[str],
    orders: Mapping[str, object],
    *,
    group: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> Process:
    """Start any command that reads its orders in the same way; ``environment``: variables beside this process's.

    Raises ``ProgramFailed``.
    """
    try:
        return await asyncio.create_subprocess_exec(
            *(*command, json.dumps(orders)),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            limit=LINE_MAX,
            process_group=group,
            env={**os.environ, **(environment or {})},
        )
    except OSError:
        raise ProgramFailed("its environment is missing") from None


async def last_words(program: Process, patience: float) -> Any:
    """Wait for the end of a program, and return its last answer.  Raises ``ProgramFailed``."""
    try:
        async with asyncio.timeout(patience):
            told, complaints = await program.communicate()
    except TimeoutError:
        raise ProgramFailed(f"no figures within {patience:g} s") from None
    finally:
        await kill(program)
    if program.returncode:
        raise _failure(program, complaints)
    return json.loads(told.splitlines()[-1])


async def answer(program: Process) -> Any:
    """Return the next answer of a program.  Raises ``ProgramFailed`` if it ends instead."""
    assert program.stdout
    assert program.stderr
    if line := await program.stdout.readline():
        return json.loads(line)
    complaints = await program.stderr.read()
    await program.wait()
    raise _failure(program, complaints)


async def ask(program: Process, question: object = None) -> Any:
    """Send a program one line of JSON, and return its answer.  Raises ``ProgramFailed``."""
    assert program.stdin
    program.stdin.write(json.dumps(question).encode() + b"\n")
    return await answer(program)


async def kill(program: Process) -> None:
    """Kill a program if it runs, and wait for its end."""
    if program.returncode is None:
        program.kill()
        await program.wait()


async def dismiss(program: Process) -> None:
    """Close a program's standard input, so that it ends by itself; kill it if it does not."""
    assert program.stdin
    program.stdin.close()
    with suppress(TimeoutError):
        async with asyncio.timeout(END_SECONDS):
            await program.wait()
    await kill(program)


def _failure(program: Process, complaints: bytes) -> ProgramFailed:
    lines = [line for line in complaints.decode(errors="replace").splitlines() if line.strip()]
    return ProgramFailed(lines[-1].strip() if lines else f"its program ended with {program.returncode}")
