"""Loops over an axis, and the rows that they read."""
