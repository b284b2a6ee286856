"""The replication protocol as a model: random schedules without sockets, in which every rule can be switched off.

A schedule is one seed: producers, consumers, a reaper, repairers and a scrubber over three servers, their messages
lost, doubled and late, servers losing their memory or coming back with an old dump, clients dying in the middle, the
power cut.  With all rules no promise is broken, and without a rule that bears load one soon is.

    rules.py        the rules, what they say, what goes wrong without
    server.py       a server and its scripts
    operations.py   what every client does: evict, put, decide and apply
    clients.py      producers, consumers, the reaper
    repair.py       catch-up, recovery, scrub
    world.py        servers, view and chance, shared by all
    schedule.py     whose turn it is, which message arrives, what fails
    promises.py     what clients were told, and what follows from it
    explore.py      many schedules; trace.py tells what happened in one

Changes of the view are those of ``zkrq.protocol.view``.  Left out: time (a lease is over when the reaper says so, a
push is old when its producer has gone), priorities and delays, several queues, several items in one claim, memory
pressure, and ZooKeeper's own failures.  ``python -m tests.model --help`` explores and replays.
"""
