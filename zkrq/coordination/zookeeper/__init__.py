"""Coordinate by ZooKeeper.  From the bottom: hosts, link (one connection), session (over many), coordinator."""

from zkrq.coordination.zookeeper.coordinator import ZooKeeperCoordinator

__all__ = ["ZooKeeperCoordinator"]
