"""The rights to a namespace's znodes."""

from __future__ import annotations

from zkrq.client.cluster import Cluster
from zkrq.coordination.zookeeper import ZooKeeperCoordinator
from zkrq.coordination.zookeeper.link import Right, ZooKeeperLink


async def link_of(cluster: Cluster) -> ZooKeeperLink:
    coordinator = cluster._client.coordinator  # pyright: ignore[reportPrivateUsage]
    assert isinstance(coordinator, ZooKeeperCoordinator)
    return await coordinator._session.link()  # pyright: ignore[reportPrivateUsage]


async def rights(link: ZooKeeperLink, path: str) -> dict[str, list[Right]]:
    """The rights to a znode and to all below it."""
    found = {path: await link.rights(path)}
    for name in await link.children(path):
        found |= await rights(link, f"{path}/{name}")
    return found


async def opened(cluster: Cluster) -> list[str]:
    """Znodes that anybody may change."""
    every = await rights(await link_of(cluster), f"/{cluster.namespace}")
    assert len(every) >= 5
    return sorted(path for path, given in every.items() if any(right.opens for right in given))
