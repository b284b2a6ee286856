"""The image and the compose file: read as builders read them, and what they start tried without one."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml

import zkrq
from tests.harness import new_namespace
from tests.integration.deployed import check_variables, parse
from tests.release.containers import ROOT, environment, instructions
from zkrq import local
from zkrq.cli.running import COMMANDS


def test_hadolint_finds_nothing() -> None:
    program = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("not installed: hadolint")
    words = [program, "--config", str(ROOT / ".hadolint.yaml"), str(ROOT / "Containerfile")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == ""
    assert done.returncode == 0, done.stderr


def test_it_is_no_root_and_process_1_is_zkrq() -> None:
    assert instructions("USER") == ["10001"]
    assert json.loads(instructions("ENTRYPOINT")[0]) == ["zkrq"]
    for text in (*instructions("ENTRYPOINT"), *instructions("CMD")):
        json.loads(text)  # no shell, which would keep the signals for itself
    assert instructions("STOPSIGNAL") == ["SIGTERM"]


def test_variables_are_those_of_commands() -> None:
    parser_text = " ".join(flag.name for command in COMMANDS for flag in command.flags)
    for name in environment():
        if match := re.fullmatch(r"ZKRQ_(?:WORKER|SERVE)_(\w+)", name):
            assert match[1].lower().replace("_", "-") in parser_text
        else:
            assert name in ("PYTHONPATH", "PYTHONUNBUFFERED", "ZKRQ_HEALTH")


def test_what_is_copied_exists_and_is_not_ignored() -> None:
    ignore = (ROOT / ".containerignore").read_text()
    assert ignore == (ROOT / ".dockerignore").read_text(), "two names of one thing"
    for copied in instructions("COPY"):
        for name in copied.split()[:-1] if "--from=" not in copied else ():
            assert (ROOT / name).exists()
            assert f"!{name}\n" in ignore
    extras = re.findall(r"\[([\w,]+)\]", " ".join(instructions("RUN")))[0].split(",")
    known = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert set(extras) <= set(known)


@pytest.mark.anyio
async def test_the_health_check_by_a_worker_that_runs(servers: local.Servers, tmp_path: Path) -> None:
    """The command of the Containerfile, and the worker of the compose file: healthy while it runs."""
    (check,) = instructions("HEALTHCHECK")
    words: list[str] = json.loads(check.partition("CMD ")[2])
    namespace = new_namespace()
    await zkrq.found(servers.redis_urls, servers.zookeeper_hosts, namespace=namespace)
    shutil.copy(ROOT / "examples" / "deploy" / "jobs.py", tmp_path)
    port = _free_port()
    variables = {
        **os.environ,
        "PYTHONPATH": f"{tmp_path}:{ROOT}",
        "ZKRQ_REDIS": ",".join(f"{name}={url}" for name, url in servers.redis_urls.items()),
        "ZKRQ_ZOOKEEPER": servers.zookeeper_hosts,
        "ZKRQ_NAMESPACE": namespace,
        "ZKRQ_WORKER_PROBES": f"127.0.0.1:{port}",
        "ZKRQ_HEALTH": environment()["ZKRQ_HEALTH"].replace("9464", str(port)),
    }

    async def healthy() -> bool:
        done = await anyio.run_process([sys.executable, *words[1:]], env=variables, check=False)
        return done.returncode == 0

    assert not await healthy()
    worker = [sys.executable, "-m", "zkrq", *compose()["services"]["worker"]["command"]]
    async with await anyio.open_process(worker, env=variables, stdout=subprocess.DEVNULL, stderr=None) as process:
        with anyio.fail_after(60):
            while not await healthy():
                await anyio.sleep(0.2)
        async with zkrq.connect(servers.redis_urls, servers.zookeeper_hosts, namespace=namespace) as cluster:
            await cluster.queue("jobs").push({"to": "ann@example.org"})
            with anyio.fail_after(60):
                while any(await cluster.queue("jobs").size()):
                    await anyio.sleep(0.1)
        process.terminate()
        assert await process.wait() == 0
    assert not await healthy()


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def compose() -> Any:
    return yaml.safe_load((ROOT / "compose.yaml").read_text())


def test_the_compose_file_runs_a_worker_and_the_page() -> None:
    services = compose()["services"]
    for name in ("found", "worker", "page"):
        service = services[name]
        parse(["zkrq", *service["command"]])
        settings = {each for each in service["environment"] if each not in ("ZKRQ_HEALTH", "ZKRQ_SERVE_TOKEN")}
        check_variables(settings)
        for needed in service["depends_on"]:
            assert needed in services
        for volume in service.get("volumes", ()):
            assert (ROOT / volume.split(":")[0]).exists()
    module = ast.parse((ROOT / "examples" / "deploy" / "jobs.py").read_text())
    functions = {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
    assert services["worker"]["command"][1].partition(":")[2] in functions


@pytest.mark.skipif(not shutil.which("docker"), reason="not installed: docker")
def test_compose_reads_the_file() -> None:
    done = subprocess.run(
        ["docker", "compose", "--file", str(ROOT / "compose.yaml"), "config", "--quiet"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if "is not a docker command" in done.stderr or "unknown" in done.stderr:
        pytest.skip("not installed: docker compose")
    assert done.returncode == 0, done.stderr
