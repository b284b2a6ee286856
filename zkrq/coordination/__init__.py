"""Decide which clients are alive, and hold the view."""
