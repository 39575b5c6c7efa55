"""Graphs compiled by AOTInductor."""
