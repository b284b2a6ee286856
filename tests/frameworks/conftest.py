"""Programs of frameworks, and connections, each in a namespace of the test's own."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import zkrq
from tests.frameworks.workers import Stage
from tests.harness import SESSION_TIMEOUT, in_process, new_namespace
from zkrq import local, sync
from zkrq.coordination.memory import Hub

if TYPE_CHECKING:
    from kombu import Connection


@pytest.fixture
def options(servers: local.Servers) -> dict[str, Any]:
    """Transport options of a namespace of the test's own."""
    return {
        "redis": servers.redis_urls,
        "zookeeper": servers.zookeeper_hosts,
        "namespace": new_namespace(),
        "found": True,
        "session_timeout": SESSION_TIMEOUT,
    }


@pytest.fixture
def connection(options: dict[str, Any]) -> Generator[Connection]:
    from kombu import Connection  # others of this folder need it not

    from zkrq.kombu import BROKER_URL

    with Connection(BROKER_URL, transport_options=options) as connection:
        yield connection


@pytest.fixture
def jobs(options: dict[str, Any], connection: Connection) -> Generator[sync.Queue[bytes]]:
    """The same queue without kombu."""
    connection.connect()
    with sync.connect(**options) as cluster:
        yield cluster.queue("jobs", codec=zkrq.RAW)


@pytest.fixture
def stage(servers: local.Servers, tmp_path: Path) -> Stage:
    return Stage(servers, tmp_path)


@pytest.fixture
def connect(servers: local.Servers) -> Callable[[], zkrq.Cluster]:
    """Make a client of one namespace at each call."""
    hub, namespace = Hub(), new_namespace()
    return lambda: in_process(servers, namespace, hub)
