"""``python -m benchmarks``: what zkrq costs on this machine.  Bounded; private servers on loopback."""
