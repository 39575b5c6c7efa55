"""Reversible repairs, each with its reason, its upstream link, and when it may go."""
