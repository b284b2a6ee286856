"""Measure with ``python -m benchmarks`` what zkrq costs on this machine, and what its peers cost.  Bounded; private
servers."""
