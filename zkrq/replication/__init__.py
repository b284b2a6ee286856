"""Replicate items over N servers: one decides, all apply.  ARCHITECTURE.md describes the protocol."""
