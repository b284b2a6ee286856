# aiozk has no types; these stubs cover what zkrq/coordination/zookeeper/link.py uses, and nothing else.
from aiozk import exc as exc
from aiozk import protocol as protocol
