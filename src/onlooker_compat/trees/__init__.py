"""Caches and nested values: made, described, converted and compared."""
