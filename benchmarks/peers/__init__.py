"""Other queues under the same load: small programs, each run in an environment of its own by ``benchmarks.contest``."""
