"""Dynamic shapes and example inputs that are made from inputs or from a model, without a
recording.
"""
