"""The outbox in a database of Django, by a program of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import anyio.to_thread
import pytest

import zkrq
from tests.harness import HANG, drain, new_namespace, over_zookeeper
from zkrq import local

pytestmark = pytest.mark.anyio


def database_of(url: str) -> dict[str, str]:
    """Return Django's description of a database."""
    if url.startswith("sqlite"):
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": url.removeprefix("sqlite:///")}
    host = parse_qs(urlsplit(url).query)["host"][0]
    return {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "USER": "zkrq", "HOST": host}


async def test_a_program_with_django(url: str, servers: local.Servers, tmp_path: Path) -> None:
    namespace = new_namespace()
    await zkrq.found(servers.redis_urls, servers.zookeeper_hosts, namespace=namespace)
    environment = {
        **os.environ,
        "ZKRQ_REDIS": ",".join(f"{name}={url}" for name, url in servers.redis_urls.items()),
        "ZKRQ_ZOOKEEPER": servers.zookeeper_hosts,
        "ZKRQ_NAMESPACE": namespace,
    }
    words = [sys.executable, "-m", "tests.outbox.by_django", json.dumps(database_of(url))]

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=HANG, check=False)

    result = await anyio.to_thread.run_sync(run)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout.splitlines()[-1]) == {
        "rows": 1,
        "forwarded": [1, 0, 0],
        "then": 0,
        "inbox": [True, True, False, True],
        "said": "1 pushed, 0 failed, 0 left\n",
    }
    async with over_zookeeper(servers, namespace) as cluster:
        assert await drain(cluster) == [{"order": 1}, {"order": 3}]
