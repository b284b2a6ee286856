"""The protocol: what is asked of which server, and what the answers mean.  No I/O, no clock, no chance."""
