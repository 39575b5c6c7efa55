"""Exports that others made, beside the model: which axes, inputs and outputs of them are right."""
