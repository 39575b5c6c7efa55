"""What a call must satisfy, compiled: the check that dispatch, ``check()`` and every target
share.
"""
