"""The replication protocol as a model: random schedules without sockets, in which every rule can be switched off.

A schedule is one seed: producers, consumers, a reaper, repairers and a scrubber over three servers, their messages
lost, doubled and late, servers losing their memory or coming back with an old dump, clients dying in the middle, the
power cut.  With all rules no promise is broken, and without a rule that bears load one soon is.

With ``--shards`` there is a second shard, of other servers and with a view of its own.  Operators add, drain and remove
it while producers push by maps that they read long ago; operators die in the middle, clients doze before what they do
counts, and a compare-and-set of ZooKeeper's is lost, repeated, or carried out without an answer.  What follows the map,
places pushes and reshards is the library's own: its coroutines await nothing but what a client of the model does.

With ``--turns`` consumers settle the last of what they hold and claim what they do next in one decision, mostly under
the same owner.  With ``--limits`` the queue has a limit of items claimed at once.

With ``--homing`` a limit or an order is declared while items are queued, claimed and delayed on two shards, from one of
which they come home; those who bring them die anywhere.

With ``--results`` consumers ack with a result, and callers ask what became of items.

With ``--flows`` some items are members of a flow, which another one follows; clients make it, add to it, and end it.

The clients run the operations of ``zkrq.protocol`` themselves, and what a consumer's process asks for, keeps and hands
out is decided by ``zkrq.consuming.core``.  A rule of theirs is switched off by overriding one
small piece, a rule of the scripts by a flag of the model's server.

    rules.py        the rules, what they say, what goes wrong without
    kinds.py        which of them only some kinds of schedules miss
    altered.py      the library's operations, in which rules can be switched off
    bundle.py       a bundle as a script works on it
    content.py      what a server holds of one queue, and how scripts store it
    deciding.py     what the scripts do that decide; moving.py: that bring items home
    ending.py       what the scripts do that end flows
    scripts.py      all scripts; twins.py holds them against the real ones
    server.py       a server's life, its disk, and the door of its scripts
    membership.py   the view as one client knows it
    runner.py       carries out operations, as requests to servers
    clients.py      producers, the reaper, callers that ask for results
    consumers.py    who claims and settles; process.py is the shell of the library's ``consuming/core`` in it
    repair.py       when servers are caught up, recovered and scrubbed
    world.py        servers, view and chance, shared by all
    ensemble.py     with several shards: what ZooKeeper holds besides a view
    shards.py       the shards as one client knows them; awaiting.py runs the library's coroutines
    spreading.py    producers and operators of several shards
    flowing.py      who makes flows, and ends them; flow_ending.py how all flows come to their end
    coming.py       who declares a limit or an order over two shards, and who brings items home
    schedule.py     whose turn it is, which message arrives, what fails
    promises.py     what clients were told, and what follows from it
    explore.py      many schedules; trace.py tells what happened in one

Left out: time (a lease is over when the reaper says so, a push is old when a scrub finds that its producer has gone),
priorities and delays, keys and limits, several queues, cancelling and clearing, memory pressure, reservations, and
ZooKeeper's own failures but those named.  With shards: pauses, ``force``, which server of a shard is added or removed,
a third shard, and consumers of two shards at once, because a claim is on one: how ``consuming/core`` spreads requests
over shards walks ``unit/test_core_dispatch_walk.py``.

``python -m tests.model --help`` explores and replays.
"""
