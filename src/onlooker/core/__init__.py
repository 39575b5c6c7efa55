"""The words of onlooker, as values: frozen, comparable, and free of torch.

========== =====================================================================================
Path       where a leaf stands, printed as Python: ``past_key_values.layers[0].keys``
Spec       what a leaf is: a tensor's shape, dtype and device, or a constant
Structure  how leaves are held together: which containers, in which order
Call       one finished call of the watched method
Recording  the calls of one method of one model
Axis       a dimension of a tensor leaf; an int leaf counts as an axis of its own
Plan       what was inferred: symbols, expressions, relations, presence, each with Evidence
Tally      the sum of all checks of a program; 3 of 4 is never "verified"
========== =====================================================================================
"""
