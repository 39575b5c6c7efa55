"""Exported models beside the model in eager mode: on calls never seen, and on the calls that
were observed.
"""
