"""Handlers that run in processes: what people write, and what goes wrong in it.

A child finds them by the name of this module.  They say what they see by results, and by files in ``HERE``.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import itertools
import logging
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import zkrq

log = logging.getLogger("tests.jobs")


def hold_the_gil(seconds: float) -> None:
    """Sleep in C code that does not let another thread, or a signal's handler, run."""
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))


class Unpicklable(Exception):
    def __init__(self, one: object, two: object) -> None:
        super().__init__("has two arguments, and a lock")
        self.lock = threading.Lock()


class OddName(BaseException):
    def __str__(self) -> str:
        raise RuntimeError


def _raise_in_a_group(kind: type[Exception]) -> None:
    raise ExceptionGroup("several", [kind(), kind()])


def echo(item: Any) -> Any:
    return item


def where(item: Any, claim: zkrq.Claim[Any]) -> dict[str, Any]:
    """Where it runs, and what the claim knows."""
    assert isinstance(claim, zkrq.Claim)
    assert claim.item == item
    return {
        "process": os.getpid(),
        "id": claim.id,
        "queue": claim.queue,
        "attempts": claim.attempts,
        "failures": claim.failures,
        "headers": dict(claim.headers),
        "task": claim.task,
        "key": claim.key,
        "group": claim.group,
        "priority": claim.priority,
        "owner": claim.owner,
        "token": list(claim.token),
        "holds": claim.holds,
        "lost": bool(claim.lost),
        "seconds": (claim.deadline - claim.pushed_at).total_seconds(),
        "main thread": threading.current_thread() is threading.main_thread(),
        "redis": sorted(set(sys.modules) & {"redis", "aiozk"}),
    }


async def where_async(item: Any, claim: zkrq.Claim[Any]) -> dict[str, Any]:
    await asyncio.sleep(0)
    return {**where(item, claim), "loop": id(asyncio.get_running_loop())}


def process(item: Any) -> int:
    return os.getpid()


_early = itertools.count()


def fail(item: str, claim: zkrq.Claim[Any]) -> object:
    match item:
        case "value":
            raise ValueError("a bad value")
        case "unpicklable":
            raise Unpicklable(1, 2)
        case "odd":
            raise OddName
        case "exit":
            sys.exit(2)
        case "interrupt":
            raise KeyboardInterrupt
        case "cancelled":
            raise asyncio.CancelledError
        case "reject":
            raise zkrq.Reject("never")
        case "rejects":
            _raise_in_a_group(zkrq.Reject)
        case "later":
            if claim.attempts == 1:
                raise zkrq.RetryLater(0.01, "not yet")
        case "early":
            if next(_early) == 0:
                raise zkrq.Snooze(0.01)
            assert (claim.attempts, claim.failures) == (1, 0)
        case "result":
            return object()
        case "large":
            return "x" * 40_000
        case _:
            pass
    return item


async def fail_async(item: str, claim: zkrq.Claim[Any]) -> object:
    await asyncio.sleep(0)
    return fail(item, claim)


async def put_off(item: str, claim: zkrq.Claim[Any]) -> str:
    if next(_early) == 0:
        await claim.release(delay=0.01)
    assert claim.attempts == 1
    return item


def die(item: str) -> None:
    match item:
        case "segfault":
            ctypes.string_at(0)
        case "exit":
            os._exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "close":
            os.closerange(3, 100)
            time.sleep(60)
        case "frame":
            _write_to_the_parent(b"\xff" * 100)
            time.sleep(60)
        case _:
            pass


async def die_async(item: str) -> str:
    await asyncio.sleep(random.random() / 100)
    if item == "slow":
        await asyncio.sleep(60)
    die(item)
    return item


def die_plain(item: str) -> str:
    time.sleep(random.random() / 100)
    if item == "slow":
        time.sleep(60)
    die(item)
    return item


def _write_to_the_parent(data: bytes) -> None:
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                os.write(int(name), data)


def stay(item: dict[str, Any], claim: zkrq.Claim[Any]) -> str:
    """Begin, and stay until it is stopped; tell by files how it went."""
    here = Path(item["here"])
    claim.on_lost(lambda reason: (here / "lost").write_text(reason) and None)
    try:
        (here / "begun").write_text(f"{os.getpid()}")
        match item["how"]:
            case "gil":
                sum(itertools.repeat(1))  # for ever, in C code that looks for no signal
            case "regex":
                re.match(r"(a*)*b", "a" * 60)
            case "deaf":
                while True:
                    with contextlib.suppress(BaseException):
                        time.sleep(60)
            case "finish":
                with contextlib.suppress(asyncio.CancelledError):
                    time.sleep(60)
                return "finished"
            case _:
                time.sleep(60)
    except BaseException as error:
        (here / "raised").write_text(type(error).__name__)
        raise
    finally:
        (here / "ended").touch()
    return ""


async def stay_async(item: dict[str, Any], claim: zkrq.Claim[Any]) -> str:
    here = Path(item["here"])
    claim.on_lost(lambda reason: (here / "lost").write_text(reason) and None)
    try:
        (here / f"begun{item.get('n', '')}").write_text(f"{os.getpid()}")
        if item["how"] == "block":
            time.sleep(60)
        await asyncio.sleep(60)
    except BaseException as error:
        (here / "raised").write_text(type(error).__name__)
        raise
    return ""


async def call(item: str, claim: zkrq.Claim[Any]) -> object:
    """Settle the claim by its own calls."""
    match item:
        case "ack":
            await claim.ack(result="by hand")
            assert claim.settled is zkrq.Verb.ACK
        case "nack":
            if claim.attempts == 1:
                await claim.nack(0.01, "not yet")
        case "nack as the policy says":
            await claim.nack(reason="not yet")
        case "bury":
            await claim.bury("no use")
        case "extend":
            await claim.extend(120)
        case "extend for too long":
            try:
                await claim.extend(1e9)
            except zkrq.ConfigError as error:
                return str(error)
        case "twice":
            await claim.ack(result="once")
            try:
                await claim.ack()
            except zkrq.ClaimLost as error:
                log.warning("refused: %s", error)
        case _:
            pass
    return "returned"


async def ask_for_flow(item: str, claim: zkrq.Claim[Any]) -> str:
    """Ask for the flow of the item; say why there is none, or what the error is."""
    try:
        return str(claim.flow)
    except zkrq.ConfigError as error:
        return str(error)


def call_plain(item: str, claim: zkrq.Claim[Any]) -> str:
    """Call the claim on the handler's thread, which is its own; on another one it is refused."""
    with ThreadPoolExecutor(1) as threads:
        try:
            threads.submit(asyncio.run, claim.ack()).result()
        except zkrq.ConfigError as error:
            refused = str(error)
        else:
            refused = ""
    asyncio.run(claim.ack(result=refused))
    return "not this"


async def save(item: str, claim: zkrq.Claim[Any]) -> object:
    """Fail once after a save, and then tell what is left of it."""
    state = claim.saved
    value = await claim.step("draw", random.random)
    if state is None:
        await claim.save({"page": 3, "value": value})
        raise ValueError
    return {"state": state, "value": value, "attempts": claim.attempts}


def save_plain(item: str, claim: zkrq.Claim[Any]) -> object:
    return asyncio.run(save(item, claim))


def stay_asking(item: dict[str, Any], claim: zkrq.Claim[Any]) -> None:
    """Ask again and again, until it is stopped."""
    here = Path(item["here"])
    try:
        while True:
            asyncio.run(claim.extend(60))
            (here / "begun").touch()
    except BaseException as error:
        (here / "raised").write_text(type(error).__name__)
        raise


def tell(item: str, claim: zkrq.Claim[Any]) -> None:
    claim.progress(0.25, "a quarter")
    while not Path(item).exists():
        time.sleep(0.01)


def speak(item: str) -> None:
    log.info("said %s", item, extra={"user": "u1"})
    logging.getLogger("tests.quiet").info("not heard")
    try:
        raise ValueError("as expected")
    except ValueError:
        log.exception("failed")
    logging.getLogger("tests.quiet").warning("in a thread: %s", item)


def descriptors(item: Any) -> list[str]:
    return [target for name in os.listdir("/proc/self/fd") if int(name) > 2 and (target := target_of(name))]


def target_of(descriptor: str) -> str:
    """What an open file is; nothing if it is closed meanwhile."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except FileNotFoundError:
        return ""


def draw(item: Any) -> list[float]:
    numpy: Any = sys.modules["numpy"]  # preloaded
    return [float(numpy.random.random()), random.random()]


@dataclass
class Point:
    x: int


def move(point: Point) -> Point:
    assert isinstance(point, Point)
    return Point(point.x + 1)


def grow(item: int) -> int:
    """Use this many bytes more, for good."""
    _kept.append(b"x" * item)
    return os.getpid()


_kept: list[bytes] = []


def fork_and_come_back(item: str) -> str:
    """Both processes return, but only one of them is the child."""
    if (process := os.fork()) == 0:
        return "of another process"
    os.waitpid(process, 0)
    return "of the child"


async def fork_and_come_back_async(item: str) -> str:
    return fork_and_come_back(item)


def fork(item: str) -> int:
    """Start a process that outlives the handler, unless it is ended."""
    return subprocess.Popen(["sleep", "3600"]).pid


def ignored_in_a_subprocess(item: Any) -> int:
    """The signals that a process of the handler's own ignores, by bits."""
    status = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
    (line,) = [line for line in status.splitlines() if line.startswith("SigIgn")]
    return int(line.split()[1], 16)


class Called:
    """An object that can be called, as partial arguments are."""

    def __init__(self, word: str) -> None:
        self.word = word

    def __call__(self, item: str) -> str:
        return f"{self.word} {item}"


greet = Called("hello")


def _add(one: int, item: int) -> int:
    return one + item


add_three = partial(_add, 3)


def awaitable(item: str) -> object:
    """A plain function that returns something to await."""

    async def later() -> str:
        await asyncio.sleep(0)
        return item * 2

    return later()


lock = threading.Lock()


def take_the_lock(item: Any) -> bool:
    return lock.acquire(timeout=5)


def square_elsewhere(items: list[int]) -> list[int]:
    with multiprocessing.get_context("fork").Pool(1) as others:
        return others.map(_square, items)


def _square(number: int) -> int:
    log.info("%s squared", number)
    return number * number


def end_a_fork(item: Any) -> int:
    """Terminate a process that was forked, and return its exit code."""
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=[3600])
    process.start()
    process.terminate()
    process.join()
    return process.exitcode or 0


def leave_behind(item: Any) -> int:
    """Start a process that its own parent leaves, and that is in no group of a child; return its number."""
    command = ["setsid", "sh", "-c", "sleep 1 >/dev/null & echo $!"]
    return int(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
