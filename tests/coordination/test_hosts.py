"""The host string and the constructor's checks: everything wrong is found before any I/O."""

from __future__ import annotations

import pytest

from zkrq.base.errors import ConfigError
from zkrq.coordination.zookeeper import ZooKeeperCoordinator
from zkrq.coordination.zookeeper.hosts import Address, parse, path


@pytest.mark.parametrize(
    ("hosts", "servers", "chroot"),
    [
        ("zk1", [("zk1", 2181)], ""),
        ("zk1:2182,zk2.example.org", [("zk1", 2182), ("zk2.example.org", 2181)], ""),
        (" zk1:2181 ,\tzk2 , 10.0.0.1:9 ", [("zk1", 2181), ("zk2", 2181), ("10.0.0.1", 9)], ""),
        ("[::1]:2182,::1,[2001:db8::1]", [("::1", 2182), ("::1", 2181), ("2001:db8::1", 2181)], ""),
        ("zk1,zk2/apps", [("zk1", 2181), ("zk2", 2181)], "/apps"),
        ("zk1:1/apps/shop/ ", [("zk1", 1)], "/apps/shop"),
        ("zk1/", [("zk1", 2181)], ""),
    ],
)
def test_host_strings(hosts: str, servers: list[tuple[str, int]], chroot: str) -> None:
    ensemble = parse(hosts)
    assert ensemble.servers == tuple(Address(*server) for server in servers)
    assert ensemble.chroot == chroot
    assert parse(str(ensemble)) == ensemble


@pytest.mark.parametrize(
    "hosts",
    [
        *["", " ", "zk1,", ",zk1", "zk1:", "zk1:0", "zk1:65536", "zk1:abc", "zk 1"],
        *["redis://zk1", "[zk1]:1", "[::1", "a:b:c", "zk1/a//b", "zk1/a/../b", "zk1/.", "zk1/a\0b", "zk1/a,zk2/a"],
    ],
)
def test_wrong_host_strings(hosts: str) -> None:
    with pytest.raises(ConfigError):
        ZooKeeperCoordinator(hosts)


@pytest.mark.parametrize("namespace", ["", "/", "a//b", "..", "a\x07"])
def test_wrong_namespaces(namespace: str) -> None:
    with pytest.raises(ConfigError):
        ZooKeeperCoordinator("zk1", namespace=namespace)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
def test_wrong_session_timeouts(timeout: float) -> None:
    with pytest.raises(ConfigError):
        ZooKeeperCoordinator("zk1", session_timeout=timeout)


@pytest.mark.parametrize("auth", [("", "secret"), ("a:b", "secret")])
def test_wrong_credentials(auth: tuple[str, str]) -> None:
    with pytest.raises(ConfigError):
        ZooKeeperCoordinator("zk1", auth=auth)


def test_paths() -> None:
    assert path("shop") == path("/shop/") == "/shop"
