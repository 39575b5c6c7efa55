"""Comparisons of nested values: results that agree, digests of content, equal objects."""
