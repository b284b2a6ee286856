"""A client: connects, follows the shards, and offers ``Cluster`` and ``Queue``, made of the rooms below."""
