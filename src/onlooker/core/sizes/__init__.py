"""Sizes as values: expressions of symbols, and conditions on them."""
