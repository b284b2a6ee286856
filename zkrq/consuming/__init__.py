"""Claims: how a process gets them, keeps them, and under which name."""
