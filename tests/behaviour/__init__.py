"""Behaviour that users rely on, the same on ``zkrq.testing``, on ``zkrq.embedded`` and on real Redis and ZooKeeper."""
