"""Compute on paper what one queue over many shards costs: ``python -m benchmarks.scale``; see docs/benchmarks.md."""
