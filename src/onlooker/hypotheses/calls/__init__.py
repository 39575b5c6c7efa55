"""Recorded calls, run again: what they depend on beside their arguments, and what they leave behind."""
