"""Hypotheses about a model, tested with it: one file for each family."""
