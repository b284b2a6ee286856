"""Claims: how a process gets them, extends and settles them, and under which owner id."""
