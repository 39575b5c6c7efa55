"""Calls are served here: the graph that takes a call, the inputs it lacks, and what stays of it
in the arguments.
"""
