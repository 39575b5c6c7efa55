"""Watches a method of a model: puts a wrapper on, takes it off without a trace, and keeps what
went by.
"""
