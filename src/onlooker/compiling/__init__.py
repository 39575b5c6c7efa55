"""torch.compile on the calls that were watched: how often it compiles, why, and the marks that keep
it from doing so.

=========== ==================================================================================
marks       plans -> the axes that change, and the block in which calls are marked
reasons     the text of a failed guard -> kind, argument, axis and line of the model
replay      runs recorded calls on a model that is compiled by a backend that only counts
recompiles  the counts as a value, with its table
padder      a call padded to larger sizes, and its result cut back
paddings    the fewest sizes to which calls can be padded with the same results
=========== ==================================================================================
"""
