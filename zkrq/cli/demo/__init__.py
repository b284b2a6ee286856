"""Run the demo: kill a consumer, a Redis server and the ZooKeeper leader; the work continues, every item is counted.

tally     counts items pushed, delivered and acked, and computes the result; no I/O
words     events, figures and results as text
consumer  a consumer in its own process, which reports each delivery and each ack; and its end in the demo's process
story     the schedule
"""
