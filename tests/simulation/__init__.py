"""The real code under seeded faults, in virtual time.

Several ``Cluster`` objects run in one event loop (``loop.py``) against servers in memory that execute the real Lua text
(``zkrq.testing.redis``), over a network (``wire.py``) and an ensemble (``ensemble.py``) that lose, delay and repeat
what real ones do.  ``faults/`` says what goes wrong and how much of it the promise covers, ``setting.py`` how large a
seed is and what its queues are like, ``workload.py``, ``producing.py`` and ``administering.py`` what the clients do,
``book.py`` what was promised, ``ledger.py``, ``agreement.py`` and ``audit.py`` what has to hold, ``scenario.py`` how
one seed goes, ``variants.py`` whether all this would notice a mistake; ``test_scenarios_of_*.py`` have schedules made
by hand, with the verbs of ``stage.py``.  ``python -m tests.simulation --help`` runs it; a seed always gives the same
run.
"""
