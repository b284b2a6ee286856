"""Pushes: prepared, gathered into batches, and repeated on a schedule."""
