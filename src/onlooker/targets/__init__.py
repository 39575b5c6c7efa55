"""Graphs of torch in the files of each target: one folder a target, which converts, writes,
reads and runs.
"""
