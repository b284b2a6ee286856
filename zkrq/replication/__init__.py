"""Items on N servers: decided by one, applied to all.  ARCHITECTURE.md tells the protocol."""
