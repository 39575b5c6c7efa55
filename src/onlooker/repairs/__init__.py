"""Repairs: torch traces otherwise for a while. Each has its reason, its link, and says when it may
go.
"""
