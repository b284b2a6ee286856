"""On Windows zkrq can be imported, and says what needs a POSIX system; shown by hiding what Windows does not have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

HIDING = """
import asyncio, importlib, multiprocessing, os, pkgutil, signal, subprocess, sys, threading
# These know Windows by themselves.
import aiozk, anyio.from_thread, anyio._backends._asyncio, celery.result, redis.asyncio, rich.live
for module, names in {
    os: "fork forkpty register_at_fork getpgid getpgrp setpgid setpgrp setsid killpg getuid geteuid getgid getegid "
    "uname wait waitid WNOHANG chown chroot sched_getaffinity posix_spawn openpty mkfifo nice statvfs getloadavg",
    signal: "SIGKILL SIGSTOP SIGCONT SIGHUP SIGALRM SIGCHLD SIGPIPE SIGQUIT SIGUSR1 SIGUSR2 SIGTSTP alarm setitimer "
    "pthread_kill pthread_sigmask sigwait siginterrupt pause",
}.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
for name in ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "readline", "syslog", "uvloop"):
    sys.modules[name] = None
"""

IMPORTING = """
import zkrq
for module in pkgutil.walk_packages(zkrq.__path__, "zkrq."):
    if module.name not in {"zkrq.__main__", "zkrq.local.guard"}:  # these run
        importlib.import_module(module.name)
        print(module.name)
"""


def run(script: str) -> str:
    command = [sys.executable, "-W", "error", "-c", HIDING + script]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def test_every_module_can_be_imported() -> None:
    imported = run(IMPORTING).split()
    assert {"zkrq.sync.portal", "zkrq.local.private", "zkrq.working.worker", "zkrq.cli.running"} <= set(imported)


def test_private_servers_say_what_they_need() -> None:
    script = """
import zkrq
from zkrq import local
assert local.available() == frozenset()
try:
    zkrq.sync.embedded().__enter__()
except zkrq.ConfigError as error:
    print(error)
"""
    assert "need a POSIX system" in run(script)


def test_worker_programs_say_what_they_need() -> None:
    script = """
import zkrq
from zkrq.cli import main
def worker(cluster): ...
try:
    zkrq.run(worker, zkrq.connect(["redis://127.0.0.1:1"], "127.0.0.1:1"))
except zkrq.ConfigError as error:
    print(error)
sys.stderr = sys.stdout
print(main(["worker", "module:worker", "--processes", "2"]))
"""
    said, told, code = run(script).splitlines()
    assert said == "worker programs need a POSIX system: Linux, macOS or WSL"
    assert told == f"zkrq worker: {said}"
    assert code == "2"


def test_items_have_ids() -> None:
    assert run("import zkrq\nprint(len({zkrq.new_id() for _ in range(10)}))") == "10\n"
