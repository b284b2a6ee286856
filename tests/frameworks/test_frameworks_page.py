"""docs/applications.md: its programs run as they stand there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

import zkrq
from tests.harness import new_namespace, over_zookeeper
from tests.snippets import snippet
from zkrq import local

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "applications.md").read_text()
TIMEOUT = 60.0  # seconds for a program

SETTINGS = """
SECRET_KEY = "of a test"
INSTALLED_APPS = ["shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db"}}
ROOT_URLCONF = "shop.urls"
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
"""

URLS = """
from django.urls import path

from shop.views import buy

urlpatterns = [path("buy", buy)]
"""

IMPORTS_OF_TESTS = """
from shop.jobs import send
from shop.models import Order
"""

RUN_TESTS = """
import django
from django.test.runner import DiscoverRunner

django.setup()
runner = DiscoverRunner()
count = runner.build_suite(["shop"]).countTestCases()
print(f"{count} tests, {runner.run_tests(['shop'])} failed")
"""

TESTS = snippet("applications.md", "from unittest.mock")

MODELS = """
from django.db import models

class Order(models.Model):
    address = models.TextField()
"""

REQUEST = """
import django

django.setup()
from django.core.management import call_command
from django.test import RequestFactory

from shop.views import buy

call_command("migrate", run_syncdb=True, verbosity=0)
print(buy(RequestFactory().post("/buy", {"address": "ann@example.org"})).status_code)
"""

SIGN_UP = """
from fastapi.testclient import TestClient

with TestClient(app) as client:
    for _ in range(2):
        print(client.post("/sign-up", params={"address": "ann@example.org"}).status_code)
"""


def block(opening: str) -> str:
    """The one block of Python with this line."""
    (found,) = (
        each for each in re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL) if opening in each
    )
    return found


@pytest.fixture
async def environment(servers: local.Servers) -> dict[str, str]:
    namespace = new_namespace()
    await zkrq.found(servers.redis_urls, servers.zookeeper_hosts, namespace=namespace)
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("ZKRQ_")},
        "ZKRQ_REDIS": ",".join(f"{name}={url}" for name, url in servers.redis_urls.items()),
        "ZKRQ_ZOOKEEPER": servers.zookeeper_hosts,
        "ZKRQ_NAMESPACE": namespace,
    }


IN_BACKGROUND = """
import time
from fastapi.testclient import TestClient

with TestClient(app) as client:
    before = app.state.emails
    while app.state.emails is None:
        time.sleep(0.01)
    print(before, bool(app.state.emails), client.post("/sign-up", params={"address": "ann@example.org"}).status_code)
"""

WITHOUT_QUEUE = """
import builtins, threading
from fastapi.testclient import TestClient

said = threading.Event()
shown = print

def print(*words):
    shown(*words)
    said.set()

with TestClient(app):
    said.wait()
"""


async def run(program: str, folder: Path, environment: dict[str, str]) -> str:
    path = os.pathsep.join((str(folder), str(ROOT)))
    with anyio.fail_after(TIMEOUT):
        done = await anyio.run_process(
            [sys.executable, "-c", program], cwd=folder, env={**environment, "PYTHONPATH": path}, check=False
        )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


async def test_fastapi(servers: local.Servers, environment: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    pytest.importorskip("httpx")
    assert await run(block("lifespan=lifespan") + SIGN_UP, tmp_path, environment) == "202\n202\n"
    async with over_zookeeper(servers, environment["ZKRQ_NAMESPACE"]) as cluster:
        assert [item.item async for item in cluster.queue("emails").scan()] == [{"to": "ann@example.org"}]


async def test_fastapi_that_starts_without_its_queue(
    servers: local.Servers, environment: dict[str, str], tmp_path: Path
) -> None:
    pytest.importorskip("fastapi")
    pytest.importorskip("httpx")
    program = block("lifespan=lifespan") + block("def keep_open") + "app.router.lifespan_context = lifespan\n"
    assert await run(program + IN_BACKGROUND, tmp_path, environment) == "None True 202\n"
    environment["ZKRQ_ZOOKEEPER"] = "127.0.0.1:1"
    environment["ZKRQ_SESSION_TIMEOUT"] = "1"
    assert "no queue yet: ZooKeeper does not answer" in await run(program + WITHOUT_QUEUE, tmp_path, environment)


async def test_django(servers: local.Servers, environment: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("django")
    shop = tmp_path / "shop"
    shop.mkdir()
    (shop / "__init__.py").touch()
    (shop / "settings.py").write_text(SETTINGS)
    (shop / "models.py").write_text(MODELS)
    for name in ("queues", "views", "jobs"):
        (shop / f"{name}.py").write_text(block(f"# shop/{name}.py"))
    (shop / "urls.py").write_text(URLS)
    (shop / "tests.py").write_text(IMPORTS_OF_TESTS + TESTS)
    environment |= {"DJANGO_SETTINGS_MODULE": "shop.settings", "PYTHONUNBUFFERED": "1"}
    assert (await run(RUN_TESTS, tmp_path, environment)).splitlines()[-1] == "2 tests, 0 failed"
    assert await run(REQUEST, tmp_path, environment) == "202\n"
    command = [sys.executable, "-m", "zkrq", "worker", "shop.jobs:worker", "--log-level", "error"]
    environment["PYTHONPATH"] = os.pathsep.join((str(tmp_path), str(ROOT)))
    with anyio.fail_after(TIMEOUT):
        async with await anyio.open_process(
            command, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, stderr=None
        ) as worker:
            assert worker.stdout
            printed = BufferedByteReceiveStream(worker.stdout)  # one print is several writes
            assert await printed.receive_until(b"\n", 100) == b"sending to ann@example.org"
            worker.send_signal(signal.SIGTERM)
            assert await worker.wait() == 0
    async with over_zookeeper(servers, environment["ZKRQ_NAMESPACE"]) as cluster:
        assert not any(await cluster.queue("emails").size())
