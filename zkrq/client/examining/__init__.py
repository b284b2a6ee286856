"""Examine a namespace, also one that cannot be used: `zkrq doctor`."""
