"""The image, built and run by docker or podman: what `test_image.py` reads, as a machine with a builder sees it."""

from __future__ import annotations

import json
import shutil
import subprocess
import uuid
from collections.abc import Generator
from contextlib import contextmanager

import anyio
import pytest

import zkrq
from tests.harness import new_namespace
from tests.release.containers import ROOT, environment, instructions
from zkrq import local
from zkrq.base.version import __version__

pytestmark = [pytest.mark.anyio, pytest.mark.chaos]

TAG = "zkrq:tested"
SECONDS = 600
"""For a build, which downloads the base image and the wheels."""

GRACE = 30
LOCKED = ("--network", "host", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
"""As in the compose file and the chart; the servers of the tests listen on this machine's loopback."""


def run(*words: str, timeout: float = SECONDS) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)


def done(*words: str) -> str:
    result = run(*words)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout.strip()


@pytest.fixture(scope="module")
def engine() -> str:
    """What has built the image."""
    for name, options in ("docker", ()), ("podman", ("--format", "docker")):  # OCI's format has no health check
        if shutil.which(name) and run(name, "info").returncode == 0:
            base = instructions("FROM")[0].split()[0]
            if run(name, "image", "inspect", base).returncode and run(name, "pull", base).returncode:
                pytest.skip(f"{name} cannot get the image {base}")
            done(name, "build", *options, "--file", "Containerfile", "--tag", TAG, ".")
            return name
    pytest.skip("neither docker nor podman works here")


@contextmanager
def started(engine: str, *words: str) -> Generator[str]:
    """Run a container in the background; yield its name, and remove it in the end."""
    name = f"zkrq-{uuid.uuid4().hex[:8]}"
    done(engine, "run", "--detach", "--name", name, *LOCKED, *words)
    try:
        yield name
    finally:
        run(engine, "rm", "--force", name)


async def become_healthy(engine: str, container: str) -> None:
    (check,) = instructions("HEALTHCHECK")
    words: list[str] = json.loads(check.partition("CMD ")[2])
    with anyio.fail_after(60):
        while run(engine, "exec", container, *words).returncode:
            await anyio.sleep(0.2)


def test_the_image_is_built_and_is_no_root(engine: str) -> None:
    assert done(engine, "run", "--rm", *LOCKED, TAG, "--version") == f"zkrq {__version__}"
    assert done(engine, "run", "--rm", *LOCKED, "--entrypoint", "id", TAG, "-u") == "10001"
    told = done(engine, "image", "inspect", TAG)
    assert environment()["ZKRQ_HEALTH"] in told
    assert "urllib.request" in told, "the health check is part of the image"


async def test_the_image_is_built_and_runs_a_worker_and_the_page(engine: str, servers: local.Servers) -> None:
    """They are healthy, the worker handles an item, and both drain when they are stopped."""
    namespace = new_namespace()
    settings = {
        "ZKRQ_REDIS": ",".join(f"{name}={url}" for name, url in servers.redis_urls.items()),
        "ZKRQ_ZOOKEEPER": servers.zookeeper_hosts,
        "ZKRQ_NAMESPACE": namespace,
    }
    given = [word for name, value in settings.items() for word in ("--env", f"{name}={value}")]
    page = ["--env", "ZKRQ_HEALTH=http://127.0.0.1:8080/livez", "--env", f"ZKRQ_SERVE_TOKEN={uuid.uuid4().hex}"]
    jobs = ["--volume", f"{ROOT / 'examples' / 'deploy' / 'jobs.py'}:/app/jobs.py:ro"]
    done(engine, "run", "--rm", *LOCKED, *given, TAG, "found", "--min-replicas", "2")
    with (
        started(engine, *given, *jobs, TAG, "worker", "jobs:worker", "--grace", str(GRACE)) as worker,
        started(engine, *given, *page, TAG, "serve") as serve,
    ):
        for container in worker, serve:
            await become_healthy(engine, container)
        async with zkrq.connect(servers.redis_urls, servers.zookeeper_hosts, namespace=namespace) as cluster:
            done(engine, "exec", worker, "zkrq", "push", "jobs", '{"to": "ann@example.org"}')
            with anyio.fail_after(60):
                while any(await cluster.queue("jobs").size()):
                    await anyio.sleep(0.1)
        for container in worker, serve:
            done(engine, "stop", "--time", str(GRACE + 20), container)
            assert done(engine, "inspect", "--format", "{{.State.ExitCode}}", container) == "0"
        logged = run(engine, "logs", worker)
        assert "ann@example.org" in logged.stdout + logged.stderr
