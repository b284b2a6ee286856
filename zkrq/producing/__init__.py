"""Pushes: prepare them, gather them into batches, repeat them on a schedule."""
