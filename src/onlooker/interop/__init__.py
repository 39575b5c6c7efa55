"""Names that exist for users of other packages, with their inside; nothing else in the library
needs them.
"""
