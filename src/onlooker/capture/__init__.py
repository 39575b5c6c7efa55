"""Watching whole programs, in any number of processes, without a change of their code.

``startup`` and ``hook`` run inside the program and write one file a process; the other modules read
these files.
"""
