"""``torch.export`` by hand, from the calls that were observed: the arguments and dynamic shapes to
give it, and the exported model beside the observed results.
"""
