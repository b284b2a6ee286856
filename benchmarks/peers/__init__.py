"""Run other queues under the same load: small programs, each in an environment of its own, for
``benchmarks.contest``."""
