"""Faults against real servers while items flow, and a count of what every client saw: ``python -m tests.chaos --help``.

record.py          the log: one line per event, one file per process
checker.py         finds violations in the logs: lost, revived, two holders ...; no I/O
client_process.py  producers and consumers in a process of their own
stage.py           the servers, the client processes, and a proxy between each pair of them
faults/            the faults: one class each
run.py             one run: clients, faults, healing, draining, counting
report.py          the table and the picture
"""
