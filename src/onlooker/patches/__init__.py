"""Changes of torch for the time of a block: one attribute, what torch prints, attention whose rows
are all masked.
"""
