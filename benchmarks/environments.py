"""Prepare the contest: the peers' virtual environments and, if this user may install packages, two Debian packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

from benchmarks.sheet import Sheet

PEERS = Path(__file__).with_name("peers.txt")
PACKAGES = ("nats-server", "rabbitmq-server")
PATIENCE = 600
POLICY = Path("/usr/sbin/policy-rc.d")
"""Program that Debian asks whether an installed service may be started."""

NODE_PACKAGES = ("bullmq@6.7.0", "ioredis@6.0.0")


def prepare(folder: Path, sheet: Sheet) -> dict[str, Path]:
    """Make what is missing; return the Python of each environment.  A failure is remarked, and nothing fails."""
    _install_packages(sheet)
    return {name: _environment(folder / name, lines, sheet) for name, lines in sections().items()}


def sections() -> dict[str, list[str]]:
    """Return the pinned requirements of each environment."""
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in map(str.strip, PEERS.read_text().splitlines()):
        if line.startswith("["):
            current = found.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            current.append(line)
    return found


def _environment(folder: Path, wanted: list[str], sheet: Sheet) -> Path:
    """Make a virtual environment with these packages, unless one with the same packages exists."""
    python, stamp = folder / "bin" / "python", folder / "stamp"
    digest = sha256("\n".join([sys.version, *wanted]).encode()).hexdigest()
    if python.exists() and stamp.exists() and stamp.read_text() == digest:
        return python
    print(f"bench: installing the peers into {folder}", flush=True)
    try:
        _run(sys.executable, "-m", "venv", "--clear", str(folder))
    except (OSError, subprocess.SubprocessError) as error:
        sheet.remark(f"peers: no virtual environment could be made: {_last_line(error)}")
        return python
    pip = (str(python), "-m", "pip", "--disable-pip-version-check")
    install = (*pip, "--quiet", "install", "--no-deps")
    try:
        _run(*install, *wanted)
    except (OSError, subprocess.SubprocessError):
        for each in wanted:  # one by one, so that a missing package does not prevent the others
            try:
                _run(*install, each)
            except (OSError, subprocess.SubprocessError) as error:
                sheet.remark(f"peers: {each} could not be installed: {_last_line(error)}")
        return python
    try:
        _run(*pip, "check")
    except (OSError, subprocess.SubprocessError) as error:
        sheet.remark(f"peers: the pins of {folder.name} are not complete for this Python: {_last_line(error)}")
        return python
    stamp.write_text(digest)
    return python


def prepare_node(folder: Path, sheet: Sheet) -> Path | None:
    """Install the peers that run in Node.js; return the folder of their packages, None if that is not possible."""
    modules, stamp = folder / "node_modules", folder / "stamp"
    wanted = " ".join(NODE_PACKAGES)
    if stamp.exists() and stamp.read_text() == wanted:
        return modules
    folder.mkdir(parents=True, exist_ok=True)
    print(f"bench: installing {wanted} into {folder}", flush=True)
    try:
        _run("npm", "install", "--prefix", str(folder), "--ignore-scripts", "--no-audit", "--no-fund", *NODE_PACKAGES)
    except (OSError, subprocess.SubprocessError) as error:
        sheet.remark(f"peers: {wanted} could not be installed: {_last_line(error)}")
        return None
    stamp.write_text(wanted)
    return modules


def _install_packages(sheet: Sheet) -> None:
    missing = [name for name in PACKAGES if shutil.which(name) is None]
    if not missing:
        return
    names = " ".join(missing)
    if shutil.which("apt-get") is None or os.getuid() != 0:
        sheet.remark(f"peers: not installed: {names} (apt-get install {names})")
        return
    print(f"bench: installing {names}", flush=True)
    install = ("apt-get", "install", "-y", "-q", "--no-install-recommends", *missing)
    own_policy = not POLICY.exists()
    try:
        if own_policy:  # install without starting the services
            POLICY.write_text("#!/bin/sh\nexit 101\n")
            POLICY.chmod(0o755)
        try:
            _run(*install)
        except subprocess.SubprocessError:
            _run("apt-get", "update", "-q")
            _run(*install)
    except (OSError, subprocess.SubprocessError) as error:
        sheet.remark(f"peers: {names} could not be installed: {_last_line(error)}")
    finally:
        if own_policy:
            POLICY.unlink(missing_ok=True)


def _run(*command: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE, env=environment)


def _last_line(error: Exception) -> str:
    text = error.stderr or error.stdout if isinstance(error, subprocess.CalledProcessError) else str(error)
    lines = [line for line in str(text).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
