"""Nested values in words: containers, caches and tensors."""
