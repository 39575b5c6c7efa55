"""Values first, ink later: what a program asked for, observed and obtained, as data, then as
text.
"""
