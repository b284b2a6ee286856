"""Fixtures of integration tests: clusters, each over ZooKeeper and in process, servers and programs."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Callable, Generator
from typing import TYPE_CHECKING, Any

import pytest

import zkrq
from tests.harness import SESSION_TIMEOUT, in_process, new_namespace, over_zookeeper
from tests.integration.shell import Shell, founded_shell
from zkrq import local, sync
from zkrq.client.cluster import Cluster
from zkrq.coordination.memory import Hub

if TYPE_CHECKING:
    from tests.browser import Browser
    from tests.integration.api_stage import Stage
    from tests.serving import Serving

pytest.register_assert_rewrite("tests.integration.scenes")


@pytest.fixture(params=["zookeeper", "in process"])
async def cluster(request: pytest.FixtureRequest, servers: local.Servers) -> AsyncGenerator[Cluster, None]:
    """A fresh namespace on three real Redis servers."""
    make = over_zookeeper if request.param == "zookeeper" else in_process
    async with make(servers, new_namespace()) as opened:
        yield opened


@pytest.fixture
def namespace() -> str:
    return new_namespace()


@pytest.fixture
def connect(servers: local.Servers, namespace: str) -> Callable[..., sync.Cluster]:
    """Make a client for threads of the test's namespace, which founds it where it does not exist."""

    def connect(**options: Any) -> sync.Cluster:
        settings: dict[str, Any] = {"found": True, "session_timeout": SESSION_TIMEOUT, **options}
        return sync.connect(servers.redis_urls, servers.zookeeper_hosts, namespace=namespace, **settings)

    return connect


@pytest.fixture
async def shell(servers: local.Servers, prepared_zkrq: list[str]) -> Shell:
    return await founded_shell(servers, prepared_zkrq)


NUMBERS = itertools.count()


@pytest.fixture(scope="module")
async def served(shared_servers: local.Servers) -> AsyncGenerator[tuple[Serving, zkrq.Cluster]]:
    """A server and another client, for all tests of a file that harm neither."""
    from tests.integration.api_stage import ORDERED  # it imports FastAPI, which few tests need
    from tests.serving import serving

    hub, namespace = Hub(), new_namespace()
    async with (
        in_process(shared_servers, namespace, hub) as cluster,
        serving(in_process(shared_servers, namespace, hub)) as http,
    ):
        await cluster.queue(ORDERED).set_groups(zkrq.Groups(ordered=True))
        yield http, cluster


@pytest.fixture
async def stage(served: tuple[Serving, zkrq.Cluster]) -> Stage:
    from tests.integration.api_stage import Stage

    return Stage(*served, f"emails-{next(NUMBERS)}")


@pytest.fixture
async def founded(servers: local.Servers, monkeypatch: pytest.MonkeyPatch) -> str:
    """A namespace on the shared servers, which the environment names, too."""
    namespace = new_namespace()
    await zkrq.found(list(servers.redis_urls.values()), servers.zookeeper_hosts, namespace=namespace)
    monkeypatch.setenv("ZKRQ_NAMESPACE", namespace)
    return namespace


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Generator[Browser]:
    from tests.browser import browse, missing  # it imports Selenium, which few tests need

    if lacking := missing():
        pytest.skip(f"not installed: {lacking}")
    browser = browse(tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.driver.quit()
