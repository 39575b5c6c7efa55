"""Whose code a frame runs, and what the source of a model says: tests, messages, lines."""
