"""Run private Redis and ZooKeeper servers on this machine, for tests, development and the demo."""

from zkrq.local.private import LocalRedis, LocalServer, LocalZooKeeper, Servers, available, servers

__all__ = ["LocalRedis", "LocalServer", "LocalZooKeeper", "Servers", "available", "servers"]
