"""Run workers: call a handler for each claimed item."""
