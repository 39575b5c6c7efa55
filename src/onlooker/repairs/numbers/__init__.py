"""Sizes and values that Python, or torch, would make plain numbers of."""
