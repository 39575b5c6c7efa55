"""The conditions of a graph on its calls, compiled: the check that dispatch, ``check()`` and every
target share.
"""
