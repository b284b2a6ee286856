"""Say why the figures of a table are as they are; the generated page has each text above its table."""

from __future__ import annotations

from collections.abc import Mapping

REASONS: Mapping[str, str] = {
    "watching": """\
A client watches the view of each of its shards, and looks at each again every 30 s even without a notice: with all
1,000 shards, 10,000 clients would ask 334,000 times per second, seven times what ZooKeeper is taken to bear. A
server that dies or is restarted changes its shard's view three times: evicted, learner, member. With 3,000 servers
that is a change every 216 s on average, so notices are rare, if all servers do not restart in one night. At such a
change a client of the shard asks three times (the stat with a new watch, a `sync`, the view), and up to four times
more if it tried to evict the same server and was not the first. As long as the server is away, each client of the
shard tries to bring it back once a second, and asks for the view first. A ZooKeeper server that restarts causes as
many requests, because its clients set all their watches anew: with all shards 3.3 million for a third of the
clients, 67 s of the ensemble; with 30 shards of each 100,000, 2 s. A client leaves its ZooKeeper server if a
heartbeat is not answered for 3.3 s, so what lasts longer feeds itself. A client that watches all 1,000 shards reads
610 KB when it starts; one with 30 shards 38 KB.""",
    "registry": """\
Each consumer is a znode in one parent. Every client watches the parent, and lists it again every 30 s and after each
change. Those that look for orphans list it once more: the leader and five others after a change and every 10 s, each
of the rest at least every 10 minutes. Descriptions of consumers are read only to show them. If all clients restart,
the list changes twice for each. From 700 clients that restart in a minute on, their lists fill ZooKeeper's network
for that minute (above 100 %: longer, if each change had its own lists). But a client asks for one list at a time,
and changes that come meanwhile share the next one, so answers are late by no more than when one consumer comes. A
heartbeat is sent every 1.7 s (a sixth of `session_timeout`) and passes ZooKeeper's leader; a follower cannot answer
it alone. The election costs one watch for each client, except when the leader goes: then all clients try to create
one znode. At 37,000 consumers the list exceeds 1 MiB, ZooKeeper's usual limit of a message. Pinterest and others
[met
this](https://www.besthub.dev/articles/how-pinterest-scales-service-discovery-with-zookeeper-and-overcomes-its-pitfalls-1e1bb575528d)
when many servers restarted; Druid [had 100 million watches](https://github.com/apache/druid/issues/6647) because all
tasks watched all hosts.""",
    "shard": """\
Each client has a connection to each server of the shard, and a second one to the primary of a queue on which it
waits. Those that look for orphans ask the primary for all owners, in pages of 500. Above 300 clients, it counts that
each looks at least every 10 minutes: the square again, but a sixtieth of what it was when all looked every ten
seconds. Each client also looks once when it starts, so if 5,000 restart in a minute, the primary is busy with that
for 52 s of it. The figures are for one queue; each further queue that all of them use costs its primary the same
again.""",
    "spreading": """\
Each client draws its shards, or takes those that hash highest with it (rendezvous), which spreads them just like
drawing; or shards are dealt out to numbered clients ([Load Balancing in the
Datacenter](https://sre.google/sre-book/load-balancing-datacenter/), Google's SRE book). Dealing is the most even,
but needs clients that are numbered without gaps, and moves connections when a shard comes: Google [has replaced
it](https://queue.acm.org/detail.cfm?id=3570937) for that reason. Drawing anew moves nearly all; with rendezvous only
the new shard's part, one connection in a hundred. With 300 clients of a shard the busiest of 1,000 stays within 1.25
times the mean. The smallest subsets are computed from the binomial distribution, with shards taken as independent. A
deployment with fewer clients than shards needs nearly all shards in each client: then it has too many shards. A
shard without consumers is a matter of probability, and it is certain for queues that few clients consume: a client
that consumes has to be able to take a shard that has none. The clients of a namespace share the looks for orphans,
whatever their shards are. With 1,000 shards and 30 of them in each of 10,000 clients, every shard is looked at every
two seconds. But of the six clients that look immediately when a consumer dies, most shards are known to none: there
its items wait for a regular look, about two seconds. The clients of a shard should share that shard's looks.""",
    "choosing": """\
Of two shards drawn at random from its subset, a client takes the one with fewer of its own batches in flight. With
small subsets the number of clients decides how much a shard gets; the choice corrects part of that, most where
chance would overload a shard. With larger ones the difference vanishes: the 1.1 that is left with all shards is the
chance of counting 480 batches on each. A few busy clients know nearly everything, a thousand quiet ones nothing. One
of 50 shards that takes four times as long for a batch is noticed only while a batch of the client's own is stuck
there. With many quiet clients that is too late; they would have to remember how long the last batches took.""",
    "join": """\
One shard is added to 20 with 1,000 waiting batches each; all clients have heard of it within a second. With its own
batches as the signal, it gets its even part as soon as a client knows it: an empty queue is no faster to push to
than a full one. With the number of waiting items as the signal, two choices give it at most twice its part, because
it is in one of 2/(n + 1) draws; the least of all would give it ten times its part, several times what it can take,
and then nothing for six seconds. Items that wait stay where they are: a new shard relieves the others of new items
only.""",
    "draining": """\
A drained shard is empty when its items are consumed (5,000 per second here), and the last of 100 handlers that take
a second on average has returned. It may be removed after the put window (300 s), during which a push in flight may
still arrive. That is the longer of the two up to 1.5 million items. Items that are due later keep it as long as
that; dead letters, and items without consumers, keep it without end.""",
}
"""Texts of Markdown by the names of the topics."""
