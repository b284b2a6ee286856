"""Define the protocol: which server to ask what, and what its answers mean.  No I/O, no clock, no randomness."""
