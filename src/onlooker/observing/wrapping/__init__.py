"""Wrappers in the place of methods: of the watched model, of its parts, and of its copies."""
