"""Runs of a model on each side of what it decides by sizes, beside the graphs that serve such calls."""
