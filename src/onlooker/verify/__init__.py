"""Trials of a program on calls it never saw, compared with the model in eager mode, leaf by leaf."""
