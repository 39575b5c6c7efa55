"""Containers: opened, closed, registered, described and compared."""
