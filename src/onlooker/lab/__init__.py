"""Runs the model for experiments: one budget, one memo, one record."""
