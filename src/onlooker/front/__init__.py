"""Exports for those who have example inputs: one function each, and nothing to watch."""
